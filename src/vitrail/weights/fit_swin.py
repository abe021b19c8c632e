"""Fitting a Swin to other windows: the tables of the first version, the offsets of the second."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.passport import ResizeMethod
from vitrail.models.catalogue import change
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.weights import fit_beit
from vitrail.weights.resize import resize_patches
from vitrail.weights.rows import Tensors

Grid = tuple[int, int]


def fit_swin(
    state: Tensors, old: SwinConfig, new: SwinConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels, and the tables of every stage whose windows change."""
    state, done = fit_patches(state, old, new, method)
    for stage, (before, after) in changed_windows(old, new).items():
        for block in range(old.depths[stage]):
            name = f"stages.{stage}.blocks.{block}.attention.bias.table"
            state = state | {name: resize_table(state[name], before, after, method=method)}
        sizes = "{}x{} to {}x{}".format(*before, *after)
        done.append(f"relative bias of stage {stage + 1} resized from {sizes} ({method})")
    return state, done


def fit_swinv2(
    state: Tensors, old: SwinV2Config, new: SwinV2Config, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels; a bias that is computed needs nothing but to know what it was trained on."""
    state, done = fit_patches(state, old, new, method)
    for stage, (before, after) in changed_windows(old, new).items():
        sizes = "{}x{} to {}x{}".format(*before, *after)
        reach = "{}x{}".format(*new.reach(stage))
        done.append(
            f"windows of stage {stage + 1} changed from {sizes}, offsets measured against {reach}"
        )
    return state, done


def keep_reach(config: SwinV2Config, changes: dict[str, Any]) -> dict[str, Any]:
    """Windows change, but what offsets are measured against stays as it was in training."""
    cutting = ("image_size", "patch_size", "window_size", "edges")
    new = change(config, {name: changes[name] for name in cutting if name in changes})
    if "pretrained_windows" in changes or not changed_windows(config, new):
        return {}
    stages = range(len(config.depths))
    return {"pretrained_windows": tuple(max(config.reach(stage)) for stage in stages)}


def fit_patches(
    state: Tensors, old: SwinConfig, new: SwinConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    if new.patch_size == old.patch_size:
        return state, []
    kernel = "patches.projection.weight"
    state = state | {kernel: resize_patches(state[kernel], new.patch_size, method=method)}
    return state, [f"patch kernels resized from {old.patch_size} to {new.patch_size} pixels"]


def changed_windows(old: SwinConfig, new: SwinConfig) -> dict[int, tuple[Grid, Grid]]:
    """Windows before and after, of the stages where they differ: another image size changes those
    that a grid has no room for."""
    pairs = {
        stage: (old.layout(stage, 0).window or (1, 1), new.layout(stage, 0).window or (1, 1))
        for stage in range(len(old.depths))
    }
    return {stage: pair for stage, pair in pairs.items() if pair[0] != pair[1]}


def resize_table(
    table: Float[Tensor, "M h"], old: Grid, new: Grid, *, method: ResizeMethod
) -> Float[Tensor, "m h"]:
    """A table of relative bias for other windows.

    timm      far offsets stretched more than near ones, then straight lines, as for its BEiT
    the rest  bicubic, all offsets stretched alike: what the authors' code does

    >>> resize_table(torch.zeros(169, 3), (7, 7), (12, 12), method="paper").shape
    torch.Size([529, 3])
    """
    along = fit_beit.METHODS["timm"] if method == "timm" else bicubic
    sides = [(2 * before - 1, 2 * after - 1) for before, after in zip(old, new, strict=True)]
    # each axis by itself, and linear in the table: two matrices say it all
    down, across = (along(before, after) for before, after in sides)
    offsets = table.double().unflatten(0, (sides[0][0], sides[1][0]))
    resized = torch.einsum("ya,xb,abh->yxh", down, across, offsets)
    return resized.flatten(0, 1).to(table.dtype)


def bicubic(old: int, new: int) -> Float[Tensor, "new old"]:
    """What it does to every single offset."""
    each = torch.eye(old, dtype=torch.float64)
    return F.interpolate(each[None, None], size=(new, old), mode="bicubic")[0, 0]
