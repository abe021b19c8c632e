"""Swin: its sizes by our names, its windows, and tables of relative bias for other windows.

What it has for windows serves the second version too.
"""

import math
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.core.records import validate
from vitrail.models.catalogue import FAMILIES, variant_of
from vitrail.models.swin import SwinConfig
from vitrail.weights.families.family import (
    KERNEL,
    FamilyWeights,
    NamedTensors,
    Request,
    pair,
    refuse_contradiction,
    resize_kernels,
)
from vitrail.weights.offsets import Along, Grid, bicubic, far_lines, resize_offsets
from vitrail.weights.rows import Facts, Tensors

# No tensor shows them; windows that have to be smaller than others imply an image size.
NOT_IN_TENSORS = ("image_size", "window_policy", "norm_eps", "dropout", "drop_path")
# What makes one model, and what its windows are.
SHAPE = ("dim", "depths", "heads", "patch_size")
WINDOWS = ("window_size", "pretrained_windows")
METHODS: dict[ResizeMethod, tuple[Along, str]] = {
    "paper": (bicubic, "paper"),
    "timm": (far_lines, "timm"),
    "hf": (bicubic, "paper"),
    "torchvision": (bicubic, "paper"),
}


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a Swin show. A table has a row for each of (2w-1)² offsets."""
    facts = stages_of(tensors)
    tables = _tables(tensors)
    windows = [window_side(rows) for rows, _ in tables]
    known = [window for window in windows if window is not None]
    if not windows or windows[0] is None or max(known) > windows[0]:
        raise UserError(
            f"{tensors.source}: its tables have {', '.join(str(rows) for rows, _ in tables)} "
            "rows, and only square windows, of one size in all stages, are read"
        )
    return facts | {"heads": tuple(heads for _, heads in tables), "window_size": windows[0]}


def stages_of(tensors: NamedTensors) -> Facts:
    """What the tensors of either version show, but for heads and windows."""
    dim, channels, patch_size, _ = tensors.shape(KERNEL, 4)
    return {
        "dim": dim,
        "depths": tensors.depths("stages.{}.blocks.{}.norm1.weight"),
        "mlp_ratio": tensors.shape("stages.0.blocks.0.mlp.fc1.weight", 2)[0] / dim,
        "patch_size": patch_size,
        "channels": channels,
        "num_classes": tensors.classes(),
    }


def _tables(tensors: NamedTensors) -> list[tuple[int, ...]]:
    stages = range(tensors.count("stages.{}.blocks.0.norm1.weight"))
    return [tensors.shape(f"stages.{i}.blocks.0.attention.bias.table", 2) for i in stages]


def window_side(rows: int) -> int | None:
    """The window whose offsets a table has, if it is square.

    >>> window_side(169)
    7
    """
    side = math.isqrt(rows)
    return (side + 1) // 2 if side % 2 and side**2 == rows else None


def resolve_config(
    facts: Facts, tensors: NamedTensors, request: Request
) -> tuple[SwinConfig, list[str]]:
    """The config of a Swin's file as it is, and a sentence for each thing that was looked up."""
    size, note = _implied_size(facts, tensors)
    return resolve_windows("swin", facts, request, size, note)


def _implied_size(facts: Facts, tensors: NamedTensors) -> tuple[Grid | None, str]:
    """Where a stage has smaller windows than the first, its whole grid is one."""
    for stage, (rows, _) in enumerate(_tables(tensors)):
        window = window_side(rows)
        if window is not None and window < facts["window_size"]:
            side = window * 2**stage * facts["patch_size"]
            return (side, side), f"windows of {window} in stage {stage + 1}: {side} pixels a side"
    return None, ""


def resolve_windows(
    family: str, facts: Facts, request: Request, size: Grid | None = None, note: str = ""
) -> tuple[Any, list[str]]:
    """The same for either version. A plain file of the second does not contain its windows, and
    the published ones differ in nothing else. `size` is what tables imply for the image."""
    facts, named = dict(facts), request.named
    notes: list[str] = []
    shape = {name: facts[name] for name in (*SHAPE, *WINDOWS) if name in facts}
    if named is not None:
        refuse_contradiction(shape, named, request.source)
    like = named if isinstance(named, SwinConfig) else _find_published(shape, family, request)
    if like is not None:
        looked_up = [name for name in WINDOWS if hasattr(like, name) and name not in facts]
        facts |= {name: getattr(like, name) for name in looked_up}
        if named is None and looked_up:
            notes.append(f"windows of {facts['window_size']}, as {variant_of(like)} has")
    facts = {name: request.overrides[name] for name in WINDOWS if name in request.overrides} | facts
    if request.grid is not None:
        rows, columns = pair(request.grid, "grid")
        facts["image_size"] = (rows * facts["patch_size"], columns * facts["patch_size"])
    elif facts.get("image_size") is None:
        if size is None:
            size, note = _find_size(facts, like, request)
        facts["image_size"] = size
        notes += [note] if note else []
    return validate(FAMILIES[family].config, facts, where=request.source), notes


def _find_published(shape: Facts, family: str, request: Request) -> SwinConfig | None:
    """The published model of this shape; where several have it, the one whose windows the file or
    the person specifies."""
    overrides, where = request.overrides, request.source
    known = {name: overrides[name] for name in WINDOWS if name in overrides} | shape
    found: list[SwinConfig] = [
        variant.config
        for variant in FAMILIES[family].variants.values()
        if all(
            getattr(variant.config, name) == (tuple(value) if isinstance(value, list) else value)
            for name, value in known.items()
        )
    ]
    if len({tuple(getattr(config, name, None) for name in WINDOWS) for config in found}) > 1:
        names = ", ".join(str(variant_of(config)) for config in found)
        raise UserError(
            f"{where}: the file does not specify the size of its windows, and {names} have its "
            "shape: give model=NAME"
        )
    if not found and "window_size" not in known:
        raise UserError(
            f"{where}: the file does not specify the size of its windows: give window_size=N, "
            "or the model's name"
        )
    return found[0] if found else None


def _find_size(facts: Facts, like: SwinConfig | None, request: Request) -> tuple[Grid, str]:
    """Weights of a Swin belong to no image size, but its passport does."""
    if like is not None:
        height, width = like.image_size
        note = f"{height}x{width} pixels, as {variant_of(like)} has"
        return (height, width), note if request.named is None else ""
    if request.overrides.get("image_size") is not None:
        return pair(request.overrides["image_size"], "image_size"), ""
    side = facts["window_size"] * facts["patch_size"] * 2 ** (len(facts["depths"]) - 1)
    return (side, side), f"{side}x{side} pixels, one window in the last stage"


def resize_state(
    state: Tensors, old: SwinConfig, new: SwinConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels, and the tables of every stage whose windows change: by cubics, as the authors'
    code does, unless it is timm's way. Neither transformers nor torchvision has one."""
    state, done = resize_kernels(state, old, new, method)
    changed = changed_windows(old, new)
    if changed and method not in METHODS:
        known = ", ".join(METHODS)
        raise UserError(f"method must be one of {known} for a relative bias, got {method!r}")
    along, method_name = METHODS.get(method, METHODS["paper"])
    for stage, (before, after) in changed.items():
        for block in range(old.depths[stage]):
            name = f"stages.{stage}.blocks.{block}.attention.bias.table"
            state = state | {name: resize_offsets(state[name], before, after, along)}
        sizes = "{}x{} to {}x{}".format(*before, *after)
        done.append(f"relative bias of stage {stage + 1} resized from {sizes} ({method_name})")
    return state, done


def changed_windows(old: SwinConfig, new: SwinConfig) -> dict[int, tuple[Grid, Grid]]:
    """Windows before and after, of the stages where they differ: another image size changes those
    that a grid has no room for."""
    pairs = {
        stage: (old.layout(stage, 0).window or (1, 1), new.layout(stage, 0).window or (1, 1))
        for stage in range(len(old.depths))
    }
    return {stage: pair for stage, pair in pairs.items() if pair[0] != pair[1]}


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_config,
    resize_state=resize_state,
    kernel=lambda _: KERNEL,
    resized=frozenset({"patch_size", "window_size", "window_policy"}),
)
