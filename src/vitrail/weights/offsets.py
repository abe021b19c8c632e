"""Tables of relative bias for another grid: one row for each offset, down and across, of two cells.

Each axis is resized by itself, and linearly: a way to do it is a matrix from old offsets to new
ones, of which a grid of n cells a side has 2n - 1.
"""

from collections.abc import Callable
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Grid = tuple[int, int]
Along = Callable[[int, int], Float[Tensor, "new old"]]


def resize_offsets(
    table: Float[Tensor, "M h"], old: Grid, new: Grid, along: Along
) -> Float[Tensor, "m h"]:
    """The table of a grid of `new` cells.

    >>> resize_offsets(torch.zeros(169, 3), (7, 7), (12, 12), bicubic).shape
    torch.Size([529, 3])
    """
    (tall, broad), (high, wide) = sides(old), sides(new)
    offsets = table.double().unflatten(0, (tall, broad))
    resized = torch.einsum("ya,xb,abh->yxh", along(tall, high), along(broad, wide), offsets)
    return resized.flatten(0, 1).to(table.dtype)


def sides(grid: Grid) -> Grid:
    """How many offsets there are down and across."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def far_spline(old: int, new: int) -> Float[Tensor, "new old"]:
    """Far offsets stretched more than near ones, then a cubic spline through them: what BEiT's
    authors do."""
    from scipy.interpolate import make_interp_spline  # type: ignore[import-untyped]

    places = stretched(old, new)
    if old == 1:
        return torch.ones(new, 1, dtype=torch.float64)
    spline = make_interp_spline(places, np.eye(old), k=min(3, old - 1))
    # beyond the last offset that was learned its bias goes on
    return torch.from_numpy(spline(centred(new).clip(places[0], places[-1])))


def far_lines(old: int, new: int) -> Float[Tensor, "new old"]:
    """The same stretch, then straight lines: timm's way."""
    places = stretched(old, new)
    columns = [np.interp(centred(new), places, column) for column in np.eye(old)]
    return torch.from_numpy(np.stack(columns, axis=1))


def linear(old: int, new: int) -> Float[Tensor, "new old"]:
    """All offsets stretched alike, then straight lines."""
    each = torch.eye(old, dtype=torch.float64)[None]
    return F.interpolate(each, size=new, mode="linear", align_corners=False)[0].mT


def bicubic(old: int, new: int) -> Float[Tensor, "new old"]:
    """All offsets stretched alike, then cubics."""
    each = torch.eye(old, dtype=torch.float64)
    return F.interpolate(each[None, None], size=(new, old), mode="bicubic")[0, 0]


def centred(count: int) -> NDArray[np.float64]:
    """Offsets from the most negative to the most positive."""
    return np.arange(count, dtype=np.float64) - count // 2


def stretched(old: int, new: int) -> NDArray[np.float64]:
    """Where `old` offsets lie among `new` ones: 0, ±1, ±(1 + q), ±(1 + q + q²), …, with the q
    between 1.01 and 1.5 that brings the last as near to the end as can be."""
    low, high, ratio = 1.01, 1.5, 1.0
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if sum(ratio**i for i in range(old // 2)) > new // 2:
            high = ratio
        else:
            low = ratio
    places = list(accumulate(ratio**i for i in range(old // 2)))
    return np.array([*(-place for place in reversed(places)), 0.0, *places])
