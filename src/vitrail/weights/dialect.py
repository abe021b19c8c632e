"""A dialect: one public way of writing a ViT into a file, as a record of facts and rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing, ResizeMethod
from vitrail.models.vit import ViTConfig
from vitrail.weights.rows import Row, Tensors

Sidecars = Mapping[str, dict[str, Any]]
# Config fields that a file tells; "tokens" is the number of patches its position table holds.
Facts = dict[str, Any]

ANY = object()

# Fields that any dialect can hold: they are shapes, or leave no trace in a file.
_FREE = {
    "dim", "depth", "heads", "mlp_dim", "patch_size", "image_size", "channels", "num_classes",
    "dropout", "drop_path", "norm_eps", "activation", "prefix_positions",
}  # fmt: skip


@dataclass(frozen=True)
class Foreign:
    """A foreign checkpoint as found: flat tensors, and the JSON files that lay beside them, by name."""

    source: str
    tensors: Tensors
    sidecars: Sidecars = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.tensors:
            raise UserError(f"{self.source}: tensor {name} is missing: is the file whole?")
        return tuple(self.tensors[name].shape)

    def count(self, pattern: str) -> int:
        """How many consecutive indices exist, from 0: the depth for "blocks.{}.norm1.weight"."""
        number = 0
        while pattern.format(number) in self.tensors:
            number += 1
        return number


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """`claims` tells by the names whether a file speaks this dialect, `infer` reads its config, `rows` map the
    tensors. `holds` lists what it can express beyond the plain ViT; `assumes` what its own
    code computes with when no sidecar says otherwise."""

    name: str
    about: str
    claims: Callable[[Foreign], bool]
    infer: Callable[[Foreign], Facts]
    rows: Callable[[ViTConfig], list[Row]]
    preprocessing: Callable[[Foreign, ViTConfig], Preprocessing]
    resize: ResizeMethod
    holds: Mapping[str, Any] = field(default_factory=dict)
    assumes: Mapping[str, Any] = field(default_factory=dict)
    square: bool = False  # its own code knows square grids only
    suffix: str = ".safetensors"
    wrapped: str | None = None  # the entry of a .pth that holds the tensors
    sidecars: Callable[[Passport, ViTConfig], dict[str, dict[str, Any]]] = lambda *_: {}
    labels: Callable[[Foreign], tuple[str, ...] | None] = lambda _: None

    def refuses(self, config: ViTConfig) -> str | None:
        """Why a model cannot be written in this dialect, or None."""
        plain = {field.name: field.default for field in fields(ViTConfig)}
        for name in plain.keys() - _FREE:
            value, allowed = getattr(config, name), self.holds.get(name, (plain[name],))
            if allowed is not ANY and value not in allowed:
                return f"the {self.name} dialect cannot hold {name}={value!r}"
        if self.square and config.grid[0] != config.grid[1]:
            return f"the {self.name} dialect knows square grids only, this one is {config.grid}"
        return None

    def cautions(self, config: ViTConfig) -> list[str]:
        """Where the dialect's own code would compute something slightly different from these tensors."""
        return [
            f"{self.name} computes with {name}={value!r}, these weights with {getattr(config, name)!r}"
            for name, value in self.assumes.items()
            if getattr(config, name) != value
        ]
