"""Positions of a ViT, which are constants, added once to what they can be added to."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.merging import MergedViT
from vitrail.inference.rewrites.sharing import with_children
from vitrail.models.model import Model
from vitrail.models.vit import ViT


class PlacedPatches(nn.Module):
    """Embedded patches plus their positions."""

    table: Tensor

    def __init__(self, patches: nn.Module, table: Float[Tensor, "1 N D"]) -> None:
        super().__init__()
        self.patches = patches
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        return self.patches(x) + self.table


@torch.no_grad()
def bake_positions(model: Model) -> Model:
    """A ViT whose prefix tokens hold their positions already and whose patches get them before the
    two are joined: no position is computed, padded or added to constants at a call."""
    if not isinstance(model, ViT) or type(model) not in (ViT, MergedViT):  # others may add more
        return model
    if model.positions is None:
        return model
    prefix = model.config.prefix
    table = model.place(model.positions()).detach()
    patches = PlacedPatches(model.patches, table[:, prefix:])
    placed = with_children(model, {"patches": patches, "positions": None})
    start = 0
    for name in ("cls", "distillation", "registers"):
        tokens = getattr(model, name)
        if tokens is not None:
            own = table[:, start : start + tokens.shape[1]]
            placed._parameters[name] = nn.Parameter(tokens + own, requires_grad=False)
            start += tokens.shape[1]
    return placed
