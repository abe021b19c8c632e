"""Fitting a BEiT: its relative bias to another grid, and from pre-training to fine-tuning."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.beit import CLASS_RELATIONS, BeitConfig, count_relations
from vitrail.weights.offsets import Along, Grid, far_lines, far_spline, linear, resize_offsets
from vitrail.weights.resize import resize_patches
from vitrail.weights.rows import Tensors

METHODS: dict[ResizeMethod, Along] = {"paper": far_spline, "timm": far_lines, "hf": linear}


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
                "each block of this BEiT has a relative bias of its own, and none is shared: leave "
                'relative_bias="block"'
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

    >>> resize_relations(torch.zeros(732, 12), (14, 14), (24, 24), method="paper").shape
    torch.Size([2212, 12])
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise UserError(f"a relative bias is not resized by {method!r}: use one of {known}")
    if table.shape[0] != count_relations(old):
        raise UserError(f"{table.shape[0]} relations are not those of a grid of {old[0]}x{old[1]}")
    return table if old == new else _resize(table, old, new, METHODS[method])


def turn_table(table: Float[Tensor, "M h"], grid: Grid) -> Float[Tensor, "M h"]:
    """What transformers reads a table of this grid as: it takes the distances down for those
    across, and stretches the two into each other. On a square grid that changes nothing."""
    return _resize(table, grid[::-1], grid, linear)


def _resize(table: Tensor, old: Grid, new: Grid, along: Along) -> Tensor:
    distances, relations = table[:-CLASS_RELATIONS], table[-CLASS_RELATIONS:]
    return torch.cat([resize_offsets(distances, old, new, along), relations])
