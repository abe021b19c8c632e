"""Fitting a Swin to other windows: the tables of the first version, the offsets of the second."""

from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.models.catalogue import change
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.weights.offsets import Along, Grid, bicubic, far_lines, resize_offsets
from vitrail.weights.resize import resize_patches
from vitrail.weights.rows import Tensors

METHODS: dict[ResizeMethod, tuple[Along, str]] = {
    "paper": (bicubic, "paper"),
    "timm": (far_lines, "timm"),
    "hf": (bicubic, "paper"),
    "torchvision": (bicubic, "paper"),
}


def fit_swin(
    state: Tensors, old: SwinConfig, new: SwinConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels, and the tables of every stage whose windows change: by cubics, as the authors'
    code does, unless it is timm's way. Neither transformers nor torchvision has one."""
    state, done = fit_patches(state, old, new, method)
    changed = changed_windows(old, new)
    if changed and method not in METHODS:
        known = ", ".join(METHODS)
        raise UserError(f"method must be one of {known} for a relative bias, got {method!r}")
    along, name_of = METHODS.get(method, METHODS["paper"])
    for stage, (before, after) in changed.items():
        for block in range(old.depths[stage]):
            name = f"stages.{stage}.blocks.{block}.attention.bias.table"
            state = state | {name: resize_offsets(state[name], before, after, along)}
        sizes = "{}x{} to {}x{}".format(*before, *after)
        done.append(f"relative bias of stage {stage + 1} resized from {sizes} ({name_of})")
    return state, done


def fit_swinv2(
    state: Tensors, old: SwinV2Config, new: SwinV2Config, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels; a bias that is computed needs nothing but to know what it was trained on."""
    state, done = fit_patches(state, old, new, method)
    for stage, (before, after) in changed_windows(old, new).items():
        sizes = "{}x{} to {}x{}".format(*before, *after)
        reference_window = "{}x{}".format(*new.reference_window(stage))
        done.append(
            f"windows of stage {stage + 1} changed from {sizes}, offsets measured against "
            f"{reference_window}"
        )
    return state, done


def keep_reach(config: SwinV2Config, changes: dict[str, Any]) -> dict[str, Any]:
    """Windows change, but what offsets are measured against stays as it was in training."""
    cutting = ("image_size", "patch_size", "window_size", "window_policy")
    new = change(config, {name: changes[name] for name in cutting if name in changes})
    if "pretrained_windows" in changes or not changed_windows(config, new):
        return {}
    reaches = [config.reference_window(stage) for stage in range(len(config.depths))]
    return {"pretrained_windows": tuple(r[0] if r[0] == r[1] else r for r in reaches)}


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
