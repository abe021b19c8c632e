"""A dialect: one public way of writing a family into a file, as a record of rows and constants."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from vitrail.core.layout import format_sides
from vitrail.core.passport import Passport, Preprocessing, ResizeMethod
from vitrail.core.records import validate
from vitrail.models.catalogue import family_of
from vitrail.models.config import Config, Purpose, fields_for
from vitrail.models.vit import ViTConfig
from vitrail.weights.families.family import NamedTensors, Request
from vitrail.weights.patterns import Table
from vitrail.weights.rows import Facts, Row

Sidecars = Mapping[str, dict[str, Any]]
Values = Mapping[str, Iterable[str | tuple[str, str]]]
ANY = object()
T = TypeVar("T")

# Fields that any dialect supports, beside those of input and training.
FREE = {
    "dim", "depth", "heads", "mlp_dim", "patch_size", "num_classes", "norm_eps", "activation",
    "prefix_positions",
}  # fmt: skip


@dataclass(frozen=True)
class Foreign(NamedTensors):
    """A foreign checkpoint as found: flat tensors, and the JSON files beside them, by name."""

    sidecars: Sidecars = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was chosen when it was opened
    wrapped: tuple[str, ...] = ()  # what was around the tensors


def read_record(kind: type[T], content: object, *, where: str) -> T:
    """The fields of a sidecar that a record has, with their types checked; others are ignored."""
    given = content if isinstance(content, Mapping) else {}
    names = [known.name for known in fields(kind) if known.name in given]  # type: ignore[arg-type]
    return validate(kind, {name: given[name] for name in names}, where=where)


@dataclass(frozen=True)
class AllowList:
    """The architectures of a library that a dialect reads; `classes` is how the names of its
    classes begin, where its config.json names them too."""

    library: str
    allows: Callable[[str], bool]
    classes: str = ""


def architecture_of(foreign: Foreign) -> tuple[str, str] | None:
    """The library that wrote the config.json beside a file, and the architecture it names."""
    config = foreign.sidecars.get("config.json", {})
    for library, key in (("timm", "architecture"), ("transformers", "model_type")):
        if isinstance(config.get(key), str):
            return library, config[key]
    return None


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Rows that translate every tensor, and the little that no tensor shows.

    decoder        rows of the decoder that masked pre-training has beside the model
    values         what placeholders of the rows run over: theirs, or (theirs, ours)
    constants      config fields that every file of the dialect has
    sidecar_facts  config fields that the sidecars specify, given those that tensors show;
                   "notes" may hold sentences on what was assumed
    hints          config fields that rows need while they read, such as heads
    unbound        values of placeholders that only their names have, where a row is written
    accepts        what a file must have beside names, where another dialect has the same names
    architectures  those that a config.json of its library may name
    doubts         why a file without a config.json may be something else
    supports       what it can express beyond the plain model of its family
    """

    name: str
    about: str
    family: str = "vit"
    rows: tuple[Row, ...]
    decoder: tuple[Row, ...] = ()
    values: Values = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    sidecar_facts: Callable[[Foreign, Facts], Facts] = lambda *_: {}
    hints: Callable[[Foreign, Request], Facts] = lambda *_: {}
    preprocessing: Callable[[Foreign, Any], Preprocessing]
    resize: ResizeMethod
    resize_registers: ResizeMethod | None = None  # of models with registers, where it is another
    supports: Mapping[str, Any] = field(default_factory=dict)
    square: bool = False  # its own code knows square grids only
    # what it cannot express together, though each alone: "has no ..."
    why_unsupported: Callable[[Any], str | None] = lambda _: None
    unbound: Callable[[Any, Mapping[str, int]], Mapping[str, int | str]] = lambda *_: {}
    suffix: str = ".safetensors"
    wrapped: str | None = None  # the entry of a .pth that holds the tensors
    sidecars: Callable[[Passport, Any], dict[str, dict[str, Any]]] = lambda *_: {}
    labels: Callable[[Foreign], tuple[str, ...] | None] = lambda _: None
    multi_label: Callable[[Foreign], bool] = lambda _: False
    licence: Callable[[Foreign], str | None] = lambda _: None
    architectures: AllowList | None = None
    accepts: Callable[[Foreign], bool] = lambda _: True
    doubts: Callable[[Foreign], str | None] = lambda _: None

    @cached_property
    def table(self) -> Table:
        """The rows, compiled when they are first wanted."""
        return Table(self.rows, self.values)

    def claims(self, foreign: Foreign) -> bool:
        """Whether its rows use every tensor of a file."""
        return (
            bool(foreign.tensors) and self.table.uses_all(foreign.tensors) and self.accepts(foreign)
        )

    def refuses(self, foreign: Foreign) -> bool:
        """Whether it knows a tensor of the file as one of a model that we do not compute."""
        rows = [row for row in self.table.rows if row.row.refuses]
        return any(
            row.theirs[0].match(name) is not None for row in rows for name in foreign.tensors
        )

    def covers(self, foreign: Foreign) -> float:
        """The share of a file's tensors that its rows use."""
        return sum(map(self.table.uses, foreign.tensors)) / max(len(foreign.tensors), 1)

    def reason_unsupported(self, config: Config) -> str | None:
        """Why a model cannot be written in this dialect, or None."""
        if family_of(config) != self.family:
            return f"the {self.name} dialect supports no {family_of(config)}"
        plain = {field.name: field.default for field in fields(config)}
        free = {*FREE, *fields_for(type(config), Purpose.INPUT, Purpose.RUNTIME)}
        for name in (name for name in plain if name not in free):
            value, allowed = getattr(config, name), self.supports.get(name, (plain[name],))
            if allowed is not ANY and value not in allowed:
                return f"the {self.name} dialect does not support {name}={value!r}"
        if why := self.refuse_rectangles(getattr(config, "patch_size", None)):
            return why
        if self.square and isinstance(config, ViTConfig) and config.grid[0] != config.grid[1]:
            rows, columns = config.grid
            return (
                f"the {self.name} dialect supports square grids only, this model's is "
                f"{rows}x{columns}"
            )
        if why := self.why_unsupported(config):
            return f"the {self.name} dialect {why}"
        return None

    def refuse_rectangles(self, patch: Any) -> str | None:
        """Why patches of this size cannot be read or written, or None."""
        if not isinstance(patch, tuple) or "patch_size" in self.supports:
            return None
        return (
            f"the {self.name} dialect supports square patches only, this model's are "
            f"{format_sides(patch)}"
        )

    def resize_method(self, config: Config) -> ResizeMethod:
        """How its own code would fit the positions of such a model to another grid."""
        return (self.resize_registers if getattr(config, "registers", 0) else None) or self.resize


def both_versions(dialect: Dialect) -> tuple[Dialect, Dialect]:
    """The dialect in the names of transformers 5, and in the classic ones of version 4: each reads
    both, and writes its own."""
    named = Table([row for row in dialect.rows if row.version == "v4"], dialect.values)

    def is_classic(foreign: Foreign) -> bool:
        return any(map(named.uses, foreign.tensors))

    new = replace(dialect, accepts=lambda f: dialect.accepts(f) and not is_classic(f))
    classic = replace(
        dialect,
        name=f"{dialect.name}-v4",
        about=dialect.about.replace("names of version 5", "classic names"),
        rows=classic_first(dialect.rows),
        decoder=classic_first(dialect.decoder),
        accepts=lambda f: dialect.accepts(f) and is_classic(f),
    )
    return new, classic


def classic_first(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.version != "v4"))


def plain_blocks(config: ViTConfig) -> str | None:
    """The `why_unsupported` of a dialect without gated MLPs, and where every token has a
    position."""
    if config.activation == "swiglu":
        return "has no gated MLP"
    if config.slots != config.prefix:
        return "has a position for every token, and here a prefix token has none"
    return None
