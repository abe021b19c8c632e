"""Tokens on their grid, whatever shape a step gives them in, and their principal components."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.core.layout import TokenLayout
from vitrail.explanation.readout import to_tokens

CLIPPED = 0.01  # of the patches at either end may be brighter or darker than the image shows


@dataclass(frozen=True)
class Tokens:
    """What a step says of each prefix token, and of each cell of its grid."""

    prefix: Float[Tensor, "B P D"]
    grid: Float[Tensor, "B rows columns D"]


def tokens_on_grid(x: Tensor, layouts: Iterable[TokenLayout], size: tuple[int, int]) -> Tokens:
    """What a step gives for images of this size, as cells, whatever order its axes have."""
    tokens, layout = to_tokens(x, list(layouts), size)
    patches = tokens[:, layout.prefix :].unflatten(1, layout.grid)
    return Tokens(tokens[:, : layout.prefix], patches)


def pca_colours(
    grid: Float[Tensor, "B rows columns D"],
) -> tuple[Float[Tensor, "B rows columns 3"], Float[Tensor, "B 3"]]:
    """Each image's patches by their first three principal components, as red, green and blue
    between 0 and 1 (as arXiv:2304.07193 shows its features), and the share of the variance that
    each component holds. Patches with like features have like colours; which colour it is means
    nothing, and differs from image to image.
    """
    batch, rows, columns, _ = grid.shape
    tokens = grid.flatten(1, 2).double()
    tokens = tokens - tokens.mean(dim=1, keepdim=True)
    left, strengths, _ = torch.linalg.svd(tokens, full_matrices=False)
    count = min(3, strengths.shape[1])
    scores = (left * strengths[:, None])[..., :count]
    largest = scores.abs().argmax(dim=1, keepdim=True)
    scores = scores * scores.gather(1, largest).sign()
    low = scores.quantile(CLIPPED, dim=1, keepdim=True)
    high = scores.quantile(1 - CLIPPED, dim=1, keepdim=True)
    spread = high - low
    flat = spread <= 1e-9 * strengths[:, None, :1].clamp(min=1e-300)
    levels = ((scores - low) / spread.clamp(min=1e-300)).clamp(0, 1)
    levels = torch.where(flat, 0.5, levels)
    variances = strengths.square()
    shares = variances[:, :count] / variances.sum(dim=1, keepdim=True).clamp(min=1e-300)
    pad = (0, 3 - count)
    levels = torch.nn.functional.pad(levels, pad, value=0.5)
    shares = torch.nn.functional.pad(shares, pad)
    return levels.reshape(batch, rows, columns, 3), shares
