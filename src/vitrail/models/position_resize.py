"""Positions for another grid of patches, by the method of whoever published the weights."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.errors import UserError, nearest
from vitrail.core.passport import ResizeMethod

Grid = tuple[int, int]


def resize_positions(
    table: Float[Tensor, "1 M D"],
    old: Grid,
    new: Grid,
    *,
    prefix: int,
    method: ResizeMethod,
) -> Float[Tensor, "1 N D"]:
    """Position embeddings for another grid; the first `prefix` rows belong to no patch and stay.

    paper            bilinear, corners aligned: what scipy's zoom(order=1) does in the paper's code
    timm             bicubic with antialiasing
    hf               bicubic (transformers, BEiT)
    torchvision      bicubic, corners aligned
    dinov2           bicubic by a scale factor with an offset of 0.1, as its weights were evaluated
    dinov2_registers bicubic with antialiasing, as its models with registers were

    >>> table = torch.zeros(1, 197, 768)
    >>> resize_positions(table, (14, 14), (24, 24), prefix=1, method="paper").shape
    torch.Size([1, 577, 768])
    """
    if method not in INTERPOLATE:
        raise UserError(f"unknown method {method!r}, {nearest(method, INTERPOLATE)}")
    if table.shape[1] != prefix + old[0] * old[1]:
        raise UserError(
            f"{table.shape[1]} positions are not {prefix} prefix tokens and a grid of "
            f"{old[0]}x{old[1]}"
        )
    if old == new:
        return table
    # half precision has no interpolation kernel on every device, and would round twice
    exact = table if table.dtype is torch.float64 else table.float()
    grid = exact[:, prefix:].unflatten(1, old).movedim(-1, 1)
    grid = INTERPOLATE[method](grid, old, new).flatten(2).mT
    return torch.cat([table[:, :prefix], grid.to(table.dtype)], dim=1)


def _paper(grid: Tensor, old: Grid, new: Grid) -> Tensor:
    return F.interpolate(grid, size=new, mode="bilinear", align_corners=True)


def _timm(grid: Tensor, old: Grid, new: Grid) -> Tensor:
    return F.interpolate(grid, size=new, mode="bicubic", antialias=True)


def _hf(grid: Tensor, old: Grid, new: Grid) -> Tensor:
    return F.interpolate(grid, size=new, mode="bicubic", align_corners=False)


def _torchvision(grid: Tensor, old: Grid, new: Grid) -> Tensor:
    return F.interpolate(grid, size=new, mode="bicubic", align_corners=True)


def _dinov2(grid: Tensor, old: Grid, new: Grid) -> Tensor:
    factors = ((new[0] + 0.1) / old[0], (new[1] + 0.1) / old[1])
    return F.interpolate(grid, scale_factor=factors, mode="bicubic")


INTERPOLATE: dict[ResizeMethod, Callable[[Tensor, Grid, Grid], Tensor]] = {
    "paper": _paper,
    "timm": _timm,
    "hf": _hf,
    "torchvision": _torchvision,
    "dinov2": _dinov2,
    "dinov2_registers": _timm,
}
