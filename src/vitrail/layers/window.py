"""Attention within windows: a grid cut into windows and joined again, shifted or not.

Nothing here makes a view of more than five axes, which Core ML would refuse.
"""

from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.layout import TokenLayout, WindowPolicy
from vitrail.layers.computed import Computed

Grid = tuple[int, int]

APART = -100.0  # added where two cells of a window are no neighbours, as all published code does


def lay_windows(
    patches: Grid,
    *,
    merged: int,
    patch_size: int,
    size: int,
    shifted: bool,
    window_policy: WindowPolicy,
) -> TokenLayout:
    """Windows of `size` cells a side on a grid of patches that was merged so many times, which they
    may not divide, or not fit.

    Where they divide it and fit, all agree. Elsewhere published code differs, and weights belong
    to the code they were trained with:

    paper        a window no longer than the shorter side, and no shift where it is that long
    timm         no longer than each side, and no shift along a side that is no longer; the grid is
                 padded after it was rolled
    torchvision  always of its size, and no shift along a side that is no longer
    hf           transformers' Swin V2: no longer than the rows, and no shift where it is that long

    Merging rounds the sides of a grid up; timm and hf measure it as if it rounded down.

    >>> layout = lay_windows(
    ...     (14, 28), merged=1, patch_size=4, size=7, shifted=True, window_policy="timm"
    ... )
    >>> layout.grid, layout.window, layout.shift
    ((7, 14), (7, 7), (0, 3))
    """
    cells = 2**merged
    grid = (-(-patches[0] // cells), -(-patches[1] // cells))
    rounds_down = window_policy in ("timm", "hf")
    rows, columns = (max(side // cells, 1) for side in patches) if rounds_down else grid
    longer = (rows > size, columns > size)
    match window_policy:
        case "paper":
            window, longer = (min(rows, columns, size),) * 2, (all(longer),) * 2
        case "hf":
            window, longer = (min(rows, size),) * 2, longer[:1] * 2
        case "timm":
            window = (min(rows, size), min(columns, size))
        case "torchvision":
            window = (size, size)
    up, left = (size // 2 if shifted and side else 0 for side in longer)
    return TokenLayout(
        grid=grid,
        stride=patch_size * cells,
        window=window,
        shift=(up, left),
        rolled_first=window_policy == "timm",
    )


def window_partition(
    x: Float[Tensor, "B rows columns D"], layout: TokenLayout
) -> Float[Tensor, "B W n D"]:
    """The windows of a grid in reading order, each with its cells in reading order."""
    (rows, columns), (tall, broad), (high, wide) = layout.grid, layout.padded, window_of(layout)
    up, left = layout.shift
    if layout.rolled_first and (up or left):
        x = x.roll((-up, -left), dims=(1, 2))
    if (tall, broad) != (rows, columns):
        x = F.pad(x, (0, 0, 0, broad - columns, 0, tall - rows))
    if not layout.rolled_first and (up or left):
        x = x.roll((-up, -left), dims=(1, 2))
    batch, width = x.shape[0], x.shape[3]
    # the cells of one row of a window stay together, so four axes are enough
    x = x.reshape(batch * (tall // high), high, broad // wide, wide * width).transpose(1, 2)
    return x.reshape(batch, tall // high * (broad // wide), high * wide, width)


def window_reverse(
    windows: Float[Tensor, "B W n D"], layout: TokenLayout
) -> Float[Tensor, "B r c D"]:
    """The grid that `window_partition` made windows of."""
    (rows, columns), (tall, broad), (high, wide) = layout.grid, layout.padded, window_of(layout)
    up, left = layout.shift
    batch, width = windows.shape[0], windows.shape[3]
    x = windows.reshape(batch * (tall // high), broad // wide, high, wide * width).transpose(1, 2)
    x = x.reshape(batch, tall, broad, width)
    if not layout.rolled_first and (up or left):
        x = x.roll((up, left), dims=(1, 2))
    if (tall, broad) != (rows, columns):
        x = x[:, :rows, :columns]
    if layout.rolled_first and (up or left):
        x = x.roll((up, left), dims=(1, 2))
    return x


def window_of(layout: TokenLayout) -> Grid:
    assert layout.window is not None, "a layout without windows"
    return layout.window


def cells_of(layout: TokenLayout) -> Int[Tensor, "W n"]:
    """Where in the grid, counted in reading order, each token of each window lies; -1 for the empty
    cells of padding."""
    rows, columns = layout.grid
    numbers = torch.arange(1, rows * columns + 1, device="cpu").view(1, rows, columns, 1)
    return window_partition(numbers, layout)[0, :, :, 0] - 1


def regions_of(layout: TokenLayout) -> Int[Tensor, "W n"]:
    """Which cells were neighbours before the grid was rolled: along each side there are the whole
    windows, the rest of the last one, and what came round from the other end."""
    sides = []
    for length, high, shift in zip(layout.padded, window_of(layout), layout.shift, strict=True):
        place = torch.arange(length, device="cpu")
        last, came_round = place >= length - high, place >= length - shift
        sides.append(last.long() + came_round.long() if shift else torch.zeros_like(place))
    numbers = sides[0][:, None] * 3 + sides[1]
    flat = TokenLayout(grid=layout.padded, stride=layout.stride, window=layout.window)
    return window_partition(numbers[None, :, :, None], flat)[0, :, :, 0]


class ShiftMask(nn.Module):
    """A bias for every window: in shifted windows, cells that the roll brought together are kept
    apart (arXiv:2103.14030, 3.2)."""

    def __init__(self, layout: TokenLayout) -> None:
        super().__init__()
        self.regions = Computed(partial(regions_of, layout)) if any(layout.shift) else None

    def forward(self, bias: Float[Tensor, "1 h n n"]) -> Float[Tensor, "#W h n n"]:
        if self.regions is None:
            return bias
        region = self.regions()
        apart = region[:, None, :, None] != region[:, None, None, :]
        return torch.where(apart, bias + APART, bias)


def merge_neighbours(x: Float[Tensor, "B rows columns D"]) -> Float[Tensor, "B r c fourD"]:
    """Every two by two cells as one of four times the width, column by column; a side that is odd
    gets one empty cell more."""
    if x.shape[1] % 2 or x.shape[2] % 2:
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
    batch, rows, columns, width = x.shape
    x = x.reshape(batch * (rows // 2), 2, columns // 2, 2, width).permute(0, 2, 3, 1, 4)
    return x.reshape(batch, rows // 2, columns // 2, 4 * width)


def split_heads(x: Float[Tensor, "B W n D"], heads: int) -> Float[Tensor, "B W h n d"]:
    return rearrange(x, "B W n (h d) -> B W h n d", h=heads)


def join_heads(x: Float[Tensor, "B W h n d"]) -> Float[Tensor, "B W n D"]:
    return rearrange(x, "B W h n d -> B W n (h d)")
