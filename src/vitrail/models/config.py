"""What the config of every family has, and what each of its fields is for."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from vitrail.models.limits import check_counts, check_eps, check_rates, check_sides

T = TypeVar("T")


class Purpose(StrEnum):
    """What a field decides. A test holds every family to this."""

    INPUT = "input"  # which images the model reads
    SHAPE = "shape"  # which tensors it has, and their shapes
    NUMERICS = "numerics"  # what is computed with them, which tensors show in part or not at all
    HEAD = "head"  # the classes and the layer on top
    RUNTIME = "runtime"  # dropout and the like: nothing but training depends on it


Input = Annotated[T, Purpose.INPUT]
Shape = Annotated[T, Purpose.SHAPE]
Numerics = Annotated[T, Purpose.NUMERICS]
Classifier = Annotated[T, Purpose.HEAD]
Runtime = Annotated[T, Purpose.RUNTIME]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A family adds its own fields: everything that decides what its model computes."""

    image_size: Input[tuple[int, int]] = (224, 224)
    channels: Input[int] = 3
    num_classes: Classifier[int] = 1000  # 0: no head, the model returns its features
    drop_path: Runtime[float] = 0.0  # of the last block; rises linearly from 0 at the first

    def __post_init__(self) -> None:
        """Checks what every family has; a family adds its own."""
        check_sides(self.image_size)
        check_counts(self, "channels", least=1)
        check_counts(self, "num_classes", least=0)
        check_rates(self, *fields_for(type(self), Purpose.RUNTIME))
        if hasattr(self, "norm_eps"):
            check_eps(self.norm_eps)

    @property
    def features(self) -> int:
        """The width of what the head reads."""
        raise NotImplementedError

    @property
    def tokens(self) -> int:
        """Number of tokens in the first attention, over all windows."""
        raise NotImplementedError


def purposes(config: type[Any]) -> dict[str, Purpose]:
    """What each field of a config is for, by its name, in the order of the fields.

    >>> purposes(Config)["drop_path"]
    <Purpose.RUNTIME: 'runtime'>
    """
    if config not in _KNOWN:
        hints = get_type_hints(config, include_extras=True)
        marks = {
            name: [m for m in get_args(h) if isinstance(m, Purpose)] for name, h in hints.items()
        }
        for name in (name for name, found in marks.items() if not found):
            raise TypeError(f"{config.__name__}.{name} must be annotated with its purpose")
        _KNOWN[config] = {name: found[0] for name, found in marks.items()}
    return _KNOWN[config]


_KNOWN: dict[type[Any], dict[str, Purpose]] = {}  # every new config is checked by it


def fields_for(config: type[Any], *wanted: Purpose) -> tuple[str, ...]:
    """The names of the fields with one of these purposes.

    >>> fields_for(Config, Purpose.INPUT, Purpose.HEAD)
    ('image_size', 'channels', 'num_classes')
    """
    return tuple(name for name, purpose in purposes(config).items() if purpose in wanted)
