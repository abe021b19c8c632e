"""A module in memory: read by the dialect of its library, or adopted where no dialect has it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.models.config import Purpose, fields_for
from vitrail.models.vit import ViTConfig
from vitrail.weights.adopt.match import match_module
from vitrail.weights.adopt.other_families import NotAViTError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.modules import inside, open_module

# Fields that no tensor of a hand-written model shows, or not without doubt.
ANSWERS = {
    *fields_for(ViTConfig, Purpose.INPUT, Purpose.NUMERICS, Purpose.RUNTIME),
    "patch_size",
    "positions",
}

WHOLE = ": is the file whole?"  # a tensor is missing that the dialect needs


def open_any_module(
    module: nn.Module, *, dialect: str | None, overrides: dict[str, Any]
) -> Checkpoint:
    """What a module holds; one that no dialect reads is matched as a hand-written ViT."""
    try:
        return open_module(module, dialect=dialect, overrides=overrides)
    except UserError as known:
        if dialect is not None:
            raise
        try:
            return adopt_module(inside(module), overrides)
        except NotAViTError:
            raise incomplete(known) from None
        except UserError as own:
            unknown = "in none of the known dialects" in str(known) or WHOLE in str(known)
            raise (own if unknown else known) from None


def incomplete(known: UserError) -> UserError:
    """The error of a file that lacks a tensor, said of a module."""
    if WHOLE not in str(known):
        return known
    missing = str(known).removesuffix(WHOLE)
    return UserError(
        f"{missing}, which other models with these names have: name its dialect, or give a model "
        "that is complete"
    )


def adopt_module(module: nn.Module, overrides: Mapping[str, Any]) -> Checkpoint:
    """A hand-written ViT that computes noise as ours does; `adopt` compares on real images."""
    given = {name: value for name, value in overrides.items() if name in ANSWERS}
    size = given.pop("image_size", None)
    name = f"the {type(module).__name__} that you gave"
    origin = f"{type(module).__module__}.{type(module).__qualname__}"
    try:
        return match_module(module, given, noise, source=name, origin=origin).checkpoint
    except UserError as error:
        if size is None or "give image_size" not in str(error):
            raise
    given["image_size"] = (size, size) if isinstance(size, int) else tuple(size)
    return match_module(module, given, noise, source=name, origin=origin).checkpoint


def noise(channels: int, size: tuple[int, int]) -> Tensor:
    """Two images of noise, the same each time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, channels, *size, generator=generator, dtype=torch.float64)
