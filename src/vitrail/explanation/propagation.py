"""Relevance on its way back to the image: through attention of any layout, from grid to grid."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.layers.window import cells_of

if TYPE_CHECKING:
    from vitrail.explanation.capture import AttentionMap


@dataclass(frozen=True)
class Cells:
    """A number for every token of a layout."""

    prefix: Float[Tensor, "B P"]
    grid: Float[Tensor, "B rows columns"]

    @classmethod
    def of(cls, tokens: Float[Tensor, "B N"], layout: TokenLayout) -> "Cells":
        """From a sequence: prefix tokens, then the grid row by row."""
        patches = tokens[:, layout.prefix :].unflatten(1, layout.grid)
        return cls(tokens[:, : layout.prefix], patches)

    def sequence(self) -> Float[Tensor, "B N"]:
        return torch.cat([self.prefix, self.grid.flatten(1)], dim=1)

    def total(self) -> Float[Tensor, "B"]:
        return self.sequence().sum(dim=1)


def count_tokens(layout: TokenLayout) -> int:
    """Of the whole image, however many attentions share them."""
    rows, columns = layout.grid
    return layout.prefix + rows * columns


def attention_groups(layout: TokenLayout) -> Int[Tensor, "W n"]:
    """The groups within which tokens attend, and the place in the sequence of each one's tokens, in
    the order of their attention; -1 for the empty cells of padding.

    All tokens are one group, or each window is one, or each place of a fold.

    >>> attention_groups(TokenLayout(grid=(2, 4), stride=8, fold=(2, 2))).tolist()
    [[0, 2], [1, 3], [4, 6], [5, 7]]
    """
    if layout.window is None and layout.fold is None:
        return torch.arange(count_tokens(layout), device="cpu")[None]
    assert not layout.prefix, "prefix tokens belong to no window and to no place of a fold"
    if layout.window is not None:
        return cells_of(layout)
    assert layout.fold is not None
    down, across = layout.fold
    numbers = torch.arange(count_tokens(layout), device="cpu").view(layout.grid)
    pattern = "(rows p) (columns q) -> (p q) (rows columns)"
    return rearrange(numbers, pattern, p=down, q=across)


def propagate(weights: Float[Tensor, "B *W #n n"], layout: TokenLayout, relevance: Cells) -> Cells:
    """relevance · weights: what tokens have is handed to those that they looked at.

    Heads are fused already. One row may stand for all, as in separable attention. What goes to
    empty cells has no place in the image and is left out: `normalise_rows` first where the
    sum is to be kept.
    """
    groups = attention_groups(layout).to(weights.device)
    weights = with_groups(weights, layout)
    tokens = F.pad(relevance.sequence().to(weights), (0, 1))  # one more, for -1
    asking: Float[Tensor, "B W n"] = tokens[:, groups]
    if weights.shape[-2] == 1:
        asking = asking.sum(dim=-1, keepdim=True)
    given = (asking[..., None, :] @ weights).flatten(1)
    spread = torch.zeros_like(tokens).index_copy(1, groups.flatten() % tokens.shape[1], given)
    return Cells.of(spread[:, :-1], layout)


def with_groups(
    weights: Float[Tensor, "B *W #n n"], layout: TokenLayout
) -> Float[Tensor, "B W #n n"]:
    """The same with an axis for groups, whether or not there are several; checked."""
    check_weights(weights, layout)
    return weights if weights.ndim == 4 else weights[:, None]


def check_weights(weights: Tensor, layout: TokenLayout) -> None:
    if weights.shape[-1] != layout.tokens:
        height, width = (a * b for a, b in zip(layout.grid, layout.strides, strict=True))
        raise UserError(
            f"an attention met {weights.shape[-1]} tokens, but its layout, for images of about "
            f"{height}x{width}, has {layout.tokens}: "
            "load the model with the image_size of these images"
        )
    if weights.shape[-2] not in (layout.tokens, 1 if layout.separable else layout.tokens):
        raise UserError(
            f"an attention map must have a row for each of {layout.tokens} queries, got "
            f"{weights.shape[-2]}: capture it without a reduce that drops queries"
        )


def valid_keys(layout: TokenLayout) -> Bool[Tensor, "W 1 n"]:
    """Which keys are cells of the image, and not of padding."""
    return attention_groups(layout)[:, None] >= 0


def normalise_rows(
    weights: Float[Tensor, "B *W #n n"], layout: TokenLayout
) -> Float[Tensor, "B *W #n n"]:
    """Rows that sum to one over the cells that there are; rows of nothing stay so."""
    if layout.window is not None and layout.padded != layout.grid:
        weights = weights * valid_keys(layout).to(weights.device)
    total = weights.sum(dim=-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1)


def with_residual(
    weights: Float[Tensor, "B *W #n n"], layout: TokenLayout, share: float = 0.5
) -> Float[Tensor, "B *W n n"]:
    """(1 - share) · weights + share · identity, rows normalised (arXiv:2005.00928, section 3): a
    token is also what it was before."""
    own = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    return normalise_rows(torch.lerp(weights, own, share), layout)


def global_attention(one: "AttentionMap") -> Float[Tensor, "B h N N"]:
    """One matrix over all tokens of the image: zero where two never meet.

    Rows sum to less than one where a window has empty cells, which were looked at too.
    """
    groups = attention_groups(one.layout).to(one.weights.device)
    weights = one.grouped()
    batch, _, heads = weights.shape[:3]
    weights = weights.expand(-1, -1, -1, groups.shape[1], -1).movedim(1, 2)
    side = count_tokens(one.layout) + 1
    matrix = weights.new_zeros(batch, heads, side, side)
    matrix[:, :, groups[:, :, None], groups[:, None, :]] = weights
    return matrix[:, :, :-1, :-1]


def regrid(relevance: Cells, old: TokenLayout, new: TokenLayout) -> Cells:
    """From one stage's grid to another's; sums are kept.

    A cell shares its relevance out by area among the cells that lie where it does. Prefix tokens go
    over as they are.

    >>> coarse, fine = TokenLayout(grid=(1, 2), stride=8), TokenLayout(grid=(2, 3), stride=4)
    >>> regrid(Cells.of(torch.tensor([[1.0, 1.0]]), coarse), coarse, fine).grid
    tensor([[[0.2500, 0.2500, 0.5000],
             [0.2500, 0.2500, 0.5000]]])
    """
    assert old.prefix in (0, new.prefix), "prefix tokens that would have nowhere to go"
    prefix = relevance.prefix
    if old.prefix != new.prefix:
        prefix = prefix.new_zeros(len(prefix), new.prefix)
    if old.grid == new.grid:
        return Cells(prefix, relevance.grid)
    down, across = (overlap_shares(old, new, side).to(relevance.grid) for side in (0, 1))
    return Cells(prefix, down.mT @ relevance.grid @ across)


def overlap_shares(old: TokenLayout, new: TokenLayout, side: int) -> Float[Tensor, "m n"]:
    """How much of each old cell along a side goes to each new one.

    Cells are as long as their stride, and the last may reach beyond the image. A map that was
    folded may have been stretched instead, so that its cells divide the image evenly.
    """
    count, counts = old.grid[side], new.grid[side]
    by_pixels = old.strides[side], new.strides[side]
    step, steps = (counts, count) if old.fold or new.fold else by_pixels
    ours = torch.arange(count + 1, device="cpu") * step
    theirs = torch.arange(counts + 1, device="cpu") * steps
    ends = torch.minimum(ours[1:, None], theirs[1:])
    common = (ends - torch.maximum(ours[:-1, None], theirs[:-1])).clamp(min=0).double()
    assert (common.sum(dim=1) > 0).all(), "grids that do not lie on the same image"
    return common / common.sum(dim=1, keepdim=True)


def sum_over_cells(
    pixels: Float[Tensor, "B H W"], layout: TokenLayout
) -> Float[Tensor, "B rows columns"]:
    """The other way: numbers of pixels, summed over the cells that they lie in."""
    fine = TokenLayout(grid=(pixels.shape[1], pixels.shape[2]), stride=1)
    return regrid(Cells(pixels.new_zeros(len(pixels), 0), pixels), fine, layout).grid


def on_pixels(
    heat: Float[Tensor, "B rows columns"],
    size: tuple[int, int],
    *,
    layout: TokenLayout | None = None,
    mode: Literal["bilinear", "nearest"] = "bilinear",
) -> Float[Tensor, "B H W"]:
    """A map as large as the image: bilinear to look at, nearest to count with.

    `layout` is the map's. Its cells are as large as their stride, and the last ones may reach
    beyond the image; those of a fold, or of a map without a layout, divide the image evenly.

    >>> layout = TokenLayout(grid=(1, 3), stride=4)
    >>> on_pixels(torch.tensor([[[1.0, 2.0, 3.0]]]), (1, 9), layout=layout, mode="nearest")
    tensor([[[1., 1., 1., 1., 2., 2., 2., 2., 3.]]])
    """
    rows, columns = heat.shape[1:]
    height, width = pixel_extent((rows, columns), size, layout)
    if mode == "bilinear":
        large = F.interpolate(heat[:, None], (height, width), mode=mode, align_corners=False)
    else:  # exact: the cell under the middle of a pixel, not under its corner
        large = F.interpolate(heat[:, None], (height, width), mode="nearest-exact")
    return large[:, 0, : size[0], : size[1]]


def pixel_extent(
    grid: tuple[int, int], size: tuple[int, int], layout: TokenLayout | None
) -> tuple[int, int]:
    """Height and width in pixels of a grid of cells that lies on an image, its empty edge too."""
    if layout is None or layout.fold is not None:
        return size
    height, width = (
        max(side, cells * step) if side > (cells - 1) * step else side
        for side, cells, step in zip(size, grid, layout.strides, strict=True)
    )
    return height, width
