"""Dialects that are not ported to rows without a config yet; goes with the last of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing, ResizeMethod
from vitrail.models.catalogue import family_of
from vitrail.models.config import Config
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import (
    ANY,
    AllowList,
    Foreign,
    Sidecars,
    architecture_of,
    plain_blocks,
)
from vitrail.weights.old_rows import Row
from vitrail.weights.rows import Facts

__all__ = [
    "ANY", "AllowList", "Dialect", "Facts", "Foreign", "Sidecars", "architecture_of",
    "plain_blocks",
]  # fmt: skip

# Fields that any dialect can hold: they are shapes, or leave no trace in a file.
_FREE = {
    "dim", "depth", "heads", "mlp_dim", "patch_size", "image_size", "channels", "num_classes",
    "dropout", "drop_path", "patch_dropout", "norm_eps", "activation", "prefix_positions",
}  # fmt: skip


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

    @property
    def architectures(self) -> AllowList | None:
        return self.computes

    def reason_unsupported(self, config: Config) -> str | None:
        """Why a model cannot be written in this dialect, or None."""
        if family_of(config) != self.family:
            return f"the {self.name} dialect supports no {family_of(config)}"
        plain = {field.name: field.default for field in fields(config)}
        for name in (name for name in plain if name not in _FREE):
            value, allowed = getattr(config, name), self.holds.get(name, (plain[name],))
            if allowed is not ANY and value not in allowed:
                return f"the {self.name} dialect does not support {name}={value!r}"
        if self.square and isinstance(config, ViTConfig) and config.grid[0] != config.grid[1]:
            return f"the {self.name} dialect supports square grids only, this one is {config.grid}"
        if why := self.clashes(config):
            return f"the {self.name} dialect {why}"
        return None

    def resize_method(self, config: Config) -> ResizeMethod:
        """How its own code would fit the positions of such a model to another grid."""
        return (self.resize_registers if getattr(config, "registers", 0) else None) or self.resize

    def refuses(self, foreign: Foreign) -> bool:
        return False

    def covers(self, foreign: Foreign) -> float:
        try:
            self.infer(foreign)
        except UserError:
            return float(self.claims(foreign))
        return 1.0
