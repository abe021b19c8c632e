"""Fitting a BEiT: its relative bias to another grid, and from pre-training to fine-tuning."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.beit import CLASS_RELATIONS, BeitConfig, count_relations
from vitrail.weights.resize import resize_patches
from vitrail.weights.rows import Tensors

Grid = tuple[int, int]


def fine_tuned(config: BeitConfig) -> dict[str, Any]:
    """New classes for an encoder as pre-training leaves it mean the paper's fine-tuning."""
    pre_trained = config.relative_bias == "shared" and not config.num_classes
    return {"relative_bias": "block", "pool": "mean"} if pre_trained else {}


def fit_beit(
    state: Tensors, old: BeitConfig, new: BeitConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels, relative bias and the norm of a BEiT."""
    state, done = dict(state), []
    if new.patch_size != old.patch_size:
        kernel = "patches.projection.weight"
        state[kernel] = resize_patches(state[kernel], new.patch_size, method=method)
        done.append(f"patch kernels resized from {old.patch_size} to {new.patch_size} pixels")
    if new.grid != old.grid:
        for name in (name for name in state if name.endswith("relative.table")):
            state[name] = resize_relations(state[name], old.grid, new.grid, method=method)
        sizes = f"from {old.grid[0]}x{old.grid[1]} to {new.grid[0]}x{new.grid[1]}"
        done.append(f"relative bias resized {sizes} ({method})")
    if new.relative_bias != old.relative_bias:
        if new.relative_bias == "shared":
            raise UserError(
                "each block of this BEiT has a relative bias of its own: none is shared"
            )
        table = state.pop("relative.table")
        state |= {f"blocks.{i}.relative.table": table.clone() for i in range(new.depth)}
        done.append(f"the relative bias that all blocks shared copied to each of the {new.depth}")
    if new.pool != old.pool:
        # what norms single tokens is no start for what norms their mean; the authors' code agrees
        state["norm.weight"] = torch.ones_like(state["norm.weight"])
        state["norm.bias"] = torch.zeros_like(state["norm.bias"])
        done.append("the norm starts anew, because it norms something else")
    return state, done


def resize_relations(
    table: Float[Tensor, "M h"], old: Grid, new: Grid, *, method: ResizeMethod
) -> Float[Tensor, "m h"]:
    """A table of relative bias for another grid; the relations of the class token stay.

    paper  the old distances are stretched, far ones more than near ones (a geometric progression),
           then a cubic spline through them: what the authors' code does
    timm   the same stretch, then straight lines
    hf     bilinear, all distances stretched alike

    >>> resize_relations(torch.zeros(732, 12), (14, 14), (24, 24), method="paper").shape
    torch.Size([2212, 12])
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise UserError(f"a relative bias is not resized by {method!r}: use one of {known}")
    if table.shape[0] != count_relations(old):
        raise UserError(f"{table.shape[0]} relations are not those of a grid of {old[0]}x{old[1]}")
    if old == new:
        return table
    return stretch_table(table, sides(old), sides(new), METHODS[method])


def sides(grid: Grid) -> Grid:
    """How many distances there are down and across."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def stretch_table(
    table: Tensor, old: Grid, new: Grid, along: Callable[[int, int], Tensor]
) -> Tensor:
    """Each axis by itself, and linear in the table: two matrices say it all."""
    down, across = along(old[0], new[0]), along(old[1], new[1])
    distances = table[:-CLASS_RELATIONS].double().unflatten(0, old)
    resized = torch.einsum("ya,xb,abh->yxh", down, across, distances).flatten(0, 1)
    return torch.cat([resized.to(table.dtype), table[-CLASS_RELATIONS:]])


def turn_table(table: Float[Tensor, "M h"], grid: Grid) -> Float[Tensor, "M h"]:
    """What transformers reads a table of this grid as: it takes the distances down for those
    across, and stretches the two into each other. On a square grid that changes nothing."""
    rows, columns = sides(grid)
    return stretch_table(table, (columns, rows), (rows, columns), _hf)


def _paper(old: int, new: int) -> Float[Tensor, "new old"]:
    from scipy.interpolate import make_interp_spline  # type: ignore[import-untyped]

    places = stretched(old, new)
    if old == 1:
        return torch.ones(new, 1, dtype=torch.float64)
    spline = make_interp_spline(places, np.eye(old), k=min(3, old - 1))
    # beyond the last distance that was learned its bias goes on
    return torch.from_numpy(spline(centred(new).clip(places[0], places[-1])))


def _timm(old: int, new: int) -> Float[Tensor, "new old"]:
    places = stretched(old, new)
    columns = [np.interp(centred(new), places, column) for column in np.eye(old)]
    return torch.from_numpy(np.stack(columns, axis=1))


def _hf(old: int, new: int) -> Float[Tensor, "new old"]:
    each = torch.eye(old, dtype=torch.float64)[None]
    return F.interpolate(each, size=new, mode="linear", align_corners=False)[0].mT


def centred(count: int) -> NDArray[np.float64]:
    """Distances from the most negative to the most positive."""
    return np.arange(count, dtype=np.float64) - count // 2


def stretched(old: int, new: int) -> NDArray[np.float64]:
    """Where `old` distances lie among `new` ones: 0, ±1, ±(1 + q), ±(1 + q + q²), …, with the q
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


METHODS: dict[ResizeMethod, Callable[[int, int], Tensor]] = {
    "paper": _paper,
    "timm": _timm,
    "hf": _hf,
}
