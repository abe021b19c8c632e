"""What a family knows about weights: the config in its tensors, and how they are resized."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.layout import format_sides
from vitrail.core.passport import ResizeMethod
from vitrail.core.records import validate
from vitrail.models.catalogue import FAMILIES, variant_of
from vitrail.models.config import Config
from vitrail.weights.resize import resize_patches
from vitrail.weights.rows import Facts, Tensors

Grid = tuple[int, int]
KERNEL = "patches.projection.weight"
# What a person may give where a file does not specify it.
OPEN = {"image_size", "heads", "dim_head"}


@dataclass(frozen=True)
class NamedTensors:
    """Tensors by name, and where they are from, for messages."""

    source: str
    tensors: Tensors

    def shape(self, name: str, axes: int | None = None) -> tuple[int, ...]:
        """The shape of a tensor that has to be there, with so many axes."""
        if name not in self.tensors:
            raise UserError(f"{self.source}: tensor {name} is missing: is the file whole?")
        shape = tuple(self.tensors[name].shape)
        if axes is not None and (len(shape) != axes or 0 in shape):
            raise UserError(
                f"{self.source}: {name} has the shape {shape}, expected {axes} axes, none empty"
            )
        return shape

    def count(self, pattern: str) -> int:
        """How many consecutive indices exist, from 0: the depth for "blocks.{}.norm1.weight"."""
        number = 0
        while pattern.format(number) in self.tensors:
            number += 1
        return number

    def depths(self, pattern: str) -> tuple[int, ...]:
        """How many there are in each stage, for "stages.{}.blocks.{}.norm1.weight"."""
        stages = self.count(pattern.format("{}", 0))
        return tuple(self.count(pattern.replace("{}", str(stage), 1)) for stage in range(stages))

    def classes(self) -> int:
        """The outputs of the head, 0 where there is none."""
        name = "head.classes.weight"
        return self.shape(name, 2)[0] if name in self.tensors else 0


@dataclass(frozen=True)
class Request:
    """What a person gives beside the file: `named` is the config of the model they named, `grid`
    the rows and columns of its positions, `overrides` the fields they set. `square` means that the
    dialect's own code knows square grids only."""

    source: str
    named: Any = None
    grid: Grid | None = None
    overrides: Facts = field(default_factory=dict)
    square: bool = False


Resolve = Callable[[Facts, NamedTensors, Request], tuple[Any, list[str]]]


@dataclass(frozen=True, kw_only=True)
class FamilyWeights:
    """`config_of` reads every field that our tensors show, `resolve_config` completes them to a
    config, with a sentence for each thing that was looked up, `resize_state` gives the tensors for
    another config.

    `kernel` is the tensor that reads the image, `resized` are fields of the family's own that may
    change in trained weights. `fine_tuned` gives what else changes where a pre-trained model gets
    new classes, `follow` what changes with other fields.
    """

    config_of: Callable[[NamedTensors], Facts]
    resolve_config: Resolve
    kernel: Callable[[Any], str]
    resized: frozenset[str] = frozenset()
    resize_state: Callable[[Tensors, Any, Any, ResizeMethod], tuple[Tensors, list[str]]] = (
        lambda state, *_: (state, [])
    )
    fine_tuned: Callable[[Any], Facts] = lambda _: {}
    follow: Callable[[Any, Facts], Facts] = lambda *_: {}


def resize_kernels(
    state: Tensors, old: Any, new: Any, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels of a model that cuts images into patches, for another size of these."""
    if new.patch_size == old.patch_size:
        return state, []
    state = state | {KERNEL: resize_patches(state[KERNEL], new.patch_size, method=method)}
    before, after = format_sides(old.patch_size), format_sides(new.patch_size)
    return state, [f"patch kernels resized from {before} to {after} pixels"]


def resolve_from_variants(family: str) -> Resolve:
    """Resolve what tensors leave open by the published model that has all that they show."""

    def resolve(facts: Facts, tensors: NamedTensors, request: Request) -> tuple[Config, list[str]]:
        facts = dict(facts)
        if sizes := facts.pop("sizes", None):
            facts["image_size"] = one_size(sizes, request)
        notes = []
        variants = [variant.config for variant in FAMILIES[family].variants.values()]
        like = request.named or published(facts, variants)
        if request.named is not None:
            refuse_contradiction(facts, request.named, request.source)
        elif like is not None:
            looked_up = [f.name for f in fields(like) if f.name in OPEN and f.name not in facts]
            listed = ", ".join(f"{name} {getattr(like, name)}" for name in looked_up)
            notes = [f"{listed}, as {variant_of(like)} has"] if listed else []
        values = asdict(like) if like is not None else {}
        answers = {name: v for name, v in request.overrides.items() if name in OPEN and not like}
        if answers.get("image_size") is not None:
            answers["image_size"] = pair(answers["image_size"], "image_size")
        config = FAMILIES[family].config
        return validate(config, {**values, **answers, **facts}, where=request.source), notes

    return resolve


def published(facts: Facts, configs: Iterable[Config]) -> Config | None:
    """The first published model with all these facts."""
    free = {"num_classes", "channels", "image_size", "norm_eps"}
    telling = {name: value for name, value in facts.items() if name not in free}
    for config in configs:
        if all(getattr(config, name) == value for name, value in telling.items()):
            return config
    return None


def refuse_contradiction(facts: Facts, named: Config, where: str) -> None:
    """Refuse a name that the tensors contradict."""
    for name, value in facts.items():
        ours = getattr(named, name)
        if name not in ("num_classes", "channels", "image_size") and ours != value:
            raise UserError(f"{where}: its {name} is {value}, the model you named has {ours}")


def one_size(sizes: dict[Grid, Grid], request: Request) -> Grid:
    """The image size of a file that leaves several open, each with the grid that it makes."""
    grid, requested = request.grid, request.overrides.get("image_size")
    if grid is not None and pair(grid, "grid") in sizes:
        return sizes[pair(grid, "grid")]
    if requested is not None and pair(requested, "image_size") in sizes.values():
        return pair(requested, "image_size")
    grids = " or ".join(f"{rows}x{columns}" for rows, columns in sizes)
    raise UserError(
        f"{request.source}: its attention works on a grid of {grids}: give grid=(rows, columns)"
    )


def pair(value: Any, name: str) -> Grid:
    """A side, or two of them, from a person or a foreign file."""
    sides = [value, value] if isinstance(value, int) else value
    if not isinstance(sides, list | tuple) or [type(side) for side in sides] != [int, int]:
        raise UserError(f"{name} must be a whole number, or two of them, got {value!r}")
    return sides[0], sides[1]


def note_cut_off(given: Any, used: Grid) -> list[str]:
    """Some published models have images of a size that their patches do not divide."""
    given = pair(given, "image_size") if given is not None else used
    if given == used:
        return []
    sides = "{}x{} pixels instead of {}x{}".format(*used, *given)
    return [f"images of {sides}: patches leave the rest out"]
