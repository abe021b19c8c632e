"""A dialect: one public way of writing a ViT into a file, as a record of facts and rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing, ResizeMethod
from vitrail.models.catalogue import family_of
from vitrail.models.config import Config
from vitrail.models.vit import ViTConfig
from vitrail.weights.rows import Row, Tensors

Sidecars = Mapping[str, dict[str, Any]]
# Config fields that a file tells. Beside them: "table", the rows of its position table; "inner",
# heads times their width; "pixels", values in a flattened patch; "square", that the grid is square
# unless something says otherwise; "notes", sentences on what its code decides and no file tells.
Facts = dict[str, Any]

ANY = object()

# Fields that any dialect can hold: they are shapes, or leave no trace in a file.
_FREE = {
    "dim", "depth", "heads", "mlp_dim", "patch_size", "image_size", "channels", "num_classes",
    "dropout", "drop_path", "patch_dropout", "norm_eps", "activation", "prefix_positions",
}  # fmt: skip


@dataclass(frozen=True)
class Foreign:
    """A foreign checkpoint as found: flat tensors, and the JSON files that lay beside them, by
    name."""

    source: str
    tensors: Tensors
    sidecars: Sidecars = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was chosen when it was opened

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
    """`claims` tells by the names whether a file speaks this dialect, `infer` reads its config,
    `rows` map the tensors. `holds` lists what it can express beyond the plain ViT. `computes` is
    the allow-list of architectures that a config.json of its library may name, and `doubts` says
    why a file without one that has its names may be something else."""

    name: str
    about: str
    claims: Callable[[Foreign], bool]
    infer: Callable[[Foreign], Facts]
    rows: Callable[[Any], list[Row]]  # of the family's config, as below
    preprocessing: Callable[[Foreign, Any], Preprocessing]
    family: str = "vit"
    resize: ResizeMethod
    resize_registers: ResizeMethod | None = None  # of models with registers, where it is another
    holds: Mapping[str, Any] = field(default_factory=dict)
    square: bool = False  # its own code knows square grids only
    # what it cannot hold together, though it holds each alone: "has no ..."
    clashes: Callable[[Any], str | None] = lambda _: None
    suffix: str = ".safetensors"
    wrapped: str | None = None  # the entry of a .pth that holds the tensors
    sidecars: Callable[[Passport, Any], dict[str, dict[str, Any]]] = lambda *_: {}
    labels: Callable[[Foreign], tuple[str, ...] | None] = lambda _: None
    # whether an image may have several of the labels
    multi_label: Callable[[Foreign], bool] = lambda _: False
    licence: Callable[[Foreign], str | None] = lambda _: None
    computes: AllowList | None = None
    doubts: Callable[[Foreign], str | None] = lambda _: None

    def refuses(self, config: Config) -> str | None:
        """Why a model cannot be written in this dialect, or None."""
        if family_of(config) != self.family:
            return f"the {self.name} dialect holds no {family_of(config)}"
        plain = {field.name: field.default for field in fields(config)}
        for name in (name for name in plain if name not in _FREE):
            value, allowed = getattr(config, name), self.holds.get(name, (plain[name],))
            if allowed is not ANY and value not in allowed:
                return f"the {self.name} dialect cannot hold {name}={value!r}"
        if self.square and isinstance(config, ViTConfig) and config.grid[0] != config.grid[1]:
            return f"the {self.name} dialect knows square grids only, this one is {config.grid}"
        if why := self.clashes(config):
            return f"the {self.name} dialect {why}"
        return None

    def resizes(self, config: Config) -> ResizeMethod:
        """How its own code would fit the positions of such a model to another grid."""
        return (self.resize_registers if getattr(config, "registers", 0) else None) or self.resize


def plain_blocks(config: ViTConfig) -> str | None:
    """The `clashes` of a dialect without gated MLPs, and where every token has a position."""
    if config.activation == "swiglu":
        return "has no gated MLP"
    if config.slots != config.prefix:
        return "has a position for every token, and here a prefix token has none"
    return None
