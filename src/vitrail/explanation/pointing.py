"""The pointing game (arXiv:1608.00507): whether the highest cell of a map lies in the box of the
evidence."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.core.layout import TokenLayout
from vitrail.explanation.propagation import pixel_extent


def pointing_game(
    maps: Float[Tensor, "B rows columns"],
    boxes: Int[Tensor, "B 4"],
    size: tuple[int, int],
    *,
    layout: TokenLayout | None = None,
    tolerance: float = 0.0,
) -> Bool[Tensor, "B"]:
    """Whether the centre of the highest cell lies in the box (top, left, bottom, right), or within
    so many pixels of it; `size` is that of the images that the boxes are for, `layout` the map's
    where its cells do not divide the image evenly.

    >>> maps = torch.eye(4).unsqueeze(0)  # four equal cells: the first counts
    >>> pointing_game(maps, torch.tensor([[0, 0, 8, 8]]), (32, 32))
    tensor([True])
    """
    row, column = peak_position(maps, size, layout=layout).unbind(dim=1)
    top, left, bottom, right = boxes.to(row.device, row.dtype).unbind(dim=1)
    return (
        (row >= top - tolerance)
        & (row < bottom + tolerance)
        & (column >= left - tolerance)
        & (column < right + tolerance)
    )


def peak_position(
    maps: Float[Tensor, "B rows columns"],
    size: tuple[int, int],
    *,
    layout: TokenLayout | None = None,
) -> Float[Tensor, "B 2"]:
    """Row and column, in pixels, of the centre of the highest cell, as far as it is in the
    image."""
    columns = maps.shape[2]
    best = maps.flatten(1).nan_to_num(nan=-math.inf).argmax(dim=1)
    reach = pixel_extent((maps.shape[1], columns), size, layout)
    centres = []
    for place, cells, covered, side in zip(
        (best // columns, best % columns), maps.shape[1:], reach, size, strict=True
    ):
        length = covered / cells
        centres.append((place * length + ((place + 1) * length).clamp(max=side)) / 2)
    return torch.stack(centres, dim=1)
