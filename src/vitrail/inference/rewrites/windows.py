"""Windows of a grid gathered by one index instead of rolled, cut apart and put together again.

A roll is four slices and two joins in the graphs of engines, and cutting is a transpose. As one
index of cells both are a copy of rows (docs/log.md: 3 to 6 % of Swin-T in OpenVINO)."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.rewrites.sharing import replace_modules, with_children
from vitrail.layers.attention import Attend
from vitrail.layers.window import cells_of, window_of
from vitrail.models.model import Model
from vitrail.models.swin import WindowAttention
from vitrail.models.swinv2 import CosineAttention


class GatheredWindows(nn.Module):
    """Attention within windows on a grid whose windows lie one below the other: there cutting it
    into windows moves nothing."""

    order: Tensor
    back: Tensor

    def __init__(self, attention: WindowAttention | CosineAttention) -> None:
        super().__init__()
        layout = attention.attend.layout
        windows, (high, wide) = cells_of(layout), window_of(layout)
        self.grid, self.column = layout.grid, (len(windows) * high, wide)
        below = replace(layout, grid=self.column, shift=(0, 0))
        self.attention = with_children(attention, {"attend": Attend(below)})
        device = attention.out.weight.device
        self.register_buffer("order", windows.flatten().to(device), persistent=False)
        self.register_buffer("back", self.order.argsort(), persistent=False)

    def forward(self, x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B rows columns D"]:
        x = x.flatten(1, 2).index_select(1, self.order).unflatten(1, self.column)
        y = self.attention(x).flatten(1, 2)
        return y.index_select(1, self.back).unflatten(1, self.grid)


def gather_windows(model: Model) -> Model:
    """The model with the windows of its attentions gathered, where they divide the grid."""
    gathered = replace_modules(model, gather)
    assert isinstance(gathered, Model)
    return gathered


@torch.no_grad()
def gather(module: nn.Module) -> nn.Module | None:
    if not isinstance(module, WindowAttention | CosineAttention):
        return None
    layout = module.attend.layout
    if layout.padded != layout.grid or layout.window == layout.grid:
        return None  # empty cells have no index; a single window is the grid
    return GatheredWindows(module)
