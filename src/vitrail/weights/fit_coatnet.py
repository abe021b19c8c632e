"""Fitting a CoAtNet: the biases of its attention to the grids of another image size."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.coatnet import CoAtNetConfig
from vitrail.weights import fit_beit
from vitrail.weights.rows import Tensors

Grid = tuple[int, int]

# One side of a table as a matrix from old offsets to new ones. The paper (A.1) interpolates
# linearly and stretches all offsets alike; timm stretches far ones more, as BEiT does.
METHODS: dict[ResizeMethod, Callable[[int, int], Tensor]] = {
    "paper": fit_beit.METHODS["hf"],
    "timm": fit_beit.METHODS["timm"],
}


def fit_coatnet(
    state: Tensors, old: CoAtNetConfig, new: CoAtNetConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """The tables of every stage that has any; biases that are computed need nothing."""
    state, done = dict(state), []
    for stage, (before, after) in enumerate(zip(old.layouts, new.layouts, strict=True)):
        names = [f"stages.{stage}.{i}.attention.bias.table" for i in range(old.depths[stage])]
        tables = [name for name in names if name in state]
        if not tables or before.grid == after.grid:
            continue
        for name in tables:
            state[name] = resize_offsets(state[name], before.grid, after.grid, method=method)
        sizes = "{}x{} to {}x{}".format(*before.grid, *after.grid)
        done.append(f"relative bias of stage {stage + 1} resized from {sizes} ({method})")
    return state, done


def resize_offsets(
    table: Float[Tensor, "M h"], old: Grid, new: Grid, *, method: ResizeMethod
) -> Float[Tensor, "m h"]:
    """A table of offsets for another grid.

    >>> resize_offsets(torch.zeros(729, 12), (14, 14), (24, 24), method="timm").shape
    torch.Size([2209, 12])
    """
    if method not in METHODS:
        known = " or ".join(METHODS)
        raise UserError(f"offsets of attention are not resized by {method!r}: use {known}")
    (tall, broad), along = fit_beit.sides(old), METHODS[method]
    down, across = (
        along(before, after)
        for before, after in zip((tall, broad), fit_beit.sides(new), strict=True)
    )
    grid = table.double().unflatten(0, (tall, broad))
    resized = torch.einsum("ya,xb,abh->yxh", down, across, grid)
    return resized.flatten(0, 1).to(table.dtype)
