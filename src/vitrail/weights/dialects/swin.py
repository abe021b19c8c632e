"""Swin in its authors' repository, in timm and in torchvision.

timm took over the authors' names but for two: `head.fc`, and merging, which begins a stage there
and ended the one before (`downsample`). Files of its early versions are the authors' in all.
"""

import math
from functools import partial
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing
from vitrail.models.swin import ALIASES, VARIANTS, SwinConfig
from vitrail.weights.dialects import swin_names as names
from vitrail.weights.dialects import timm
from vitrail.weights.dialects.swin_names import Spelling
from vitrail.weights.dialects.timm_architectures import is_swin
from vitrail.weights.old_dialect import AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Row, drop, same, supply

TABLE = "{b}.attention.bias.table"
BLOCK = (
    same("{b}.norm1.{p}", "{b}.norm1.{p}"),
    same("{b}.attn.qkv.{p}", "{b}.attention.qkv.{p}"),
    same("{b}.attn.proj.{p}", "{b}.attention.out.{p}"),
    same("{b}.attn.relative_position_bias_table", TABLE),
    same("{b}.norm2.{p}", "{b}.norm2.{p}"),
)
MLP = (
    same("{b}.mlp.fc1.{p}", "{b}.mlp.fc1.{p}"),
    same("{b}.mlp.fc2.{p}", "{b}.mlp.fc2.{p}"),
)
BUFFERS = names.drop_computed("relative_position_index", "attn_mask")
SIMMIM = (
    drop("encoder.mask_token", why=names.MASKED),
    drop("decoder.*", why="rebuilds hidden pixels in pre-training alone"),
)

TIMM_NAMES = Spelling(
    patches="patch_embed.proj",
    embed_norm="patch_embed.norm",
    block=lambda stage, block: f"layers.{stage}.blocks.{block}",
    merge=lambda stage: f"layers.{stage}.downsample",
    norm="norm",
    head="head.fc",
    within=BLOCK + MLP,
    telling=TABLE,
    unread=BUFFERS,
)
MICROSOFT_NAMES = Spelling(
    patches="patch_embed.proj",
    embed_norm="patch_embed.norm",
    block=lambda stage, block: f"layers.{stage}.blocks.{block}",
    merge=lambda stage: f"layers.{stage - 1}.downsample",
    norm="norm",
    head="head",
    within=BLOCK + MLP,
    telling=TABLE,
    roots=("", "encoder."),  # SimMIM's pre-training
    unread=BUFFERS + SIMMIM,
)
TORCHVISION_NAMES = Spelling(
    patches="features.0.0",
    embed_norm="features.0.2",
    block=lambda stage, block: f"features.{2 * stage + 1}.{block}",
    merge=lambda stage: f"features.{2 * stage}",
    norm="norm",
    head="head",
    within=(
        *BLOCK,
        same("{b}.mlp.0.{p}", "{b}.mlp.fc1.{p}"),
        same("{b}.mlp.3.{p}", "{b}.mlp.fc2.{p}"),
    ),
    telling=TABLE,
)

# How torchvision prepares what it publishes, at 224 pixels, by width and depth of the third stage.
COVERED = {(96, 6): 232, (96, 18): 246, (128, 18): 238}


def infer(spelling: Spelling, foreign: Foreign) -> Facts:
    """A table has a row for each of (2w-1)² offsets. Where a stage has smaller windows than the
    first, its whole grid is one."""
    facts = names.infer(spelling, foreign)
    tables = spelling.shapes(foreign, TABLE, 2)
    facts["heads"] = tuple(table[1] for table in tables)
    windows = [window_of(table[0]) for table in tables]
    known = [window for window in windows if window is not None]
    if windows[0] is None or max(known) > windows[0]:
        raise UserError(
            f"{foreign.source}: its tables have {', '.join(str(table[0]) for table in tables)} "
            "rows, and only square windows, of one size in all stages, are read"
        )
    facts["window_size"] = windows[0]
    for stage, window in enumerate(windows):
        if window is not None and window < windows[0]:
            side = window * 2**stage * facts["patch_size"]
            facts["image_size"] = (side, side)
            facts["notes"] = [f"windows of {window} in stage {stage + 1}: {side} pixels a side"]
            break
    return facts


def window_of(rows: int) -> int | None:
    """
    >>> window_of(169)
    7
    """
    side = math.isqrt(rows)
    return (side + 1) // 2 if side % 2 and side**2 == rows else None


def timm_infer(foreign: Foreign) -> Facts:
    facts = infer(TIMM_NAMES, foreign) | {"window_policy": "timm"}
    told = names.told_by_timm(foreign, published)
    told.pop("window_size", None)  # the tables tell
    return facts | told | ({"notes": []} if "image_size" in told else {})


def published(architecture: str) -> SwinConfig | None:
    row = VARIANTS.get(ALIASES.get(architecture, ""))
    return row.config if row else None


def microsoft_infer(foreign: Foreign) -> Facts:
    facts = infer(MICROSOFT_NAMES, foreign)
    return facts | sides_of_masks(foreign, facts["window_size"] * facts["patch_size"])


def sides_of_masks(foreign: Foreign, pixels: int) -> Facts:
    """The authors' files hold the mask of each shifted block, one for each window of so many
    pixels."""
    name = "layers.0.blocks.1.attn_mask"
    masks = [foreign.tensors[r + name] for r in ("", "encoder.") if r + name in foreign.tensors]
    count = masks[0].shape[0] if masks and masks[0].ndim == 3 else 0
    side = math.isqrt(count)
    return {"image_size": (side * pixels,) * 2} if side and side**2 == count else {}


def torchvision_infer(foreign: Foreign) -> Facts:
    return infer(TORCHVISION_NAMES, foreign) | {"window_policy": "torchvision"}


def torchvision_rows(config: SwinConfig) -> list[Row]:
    """Its models hold the index of their tables, and do not load a file without it."""
    index = [
        supply(
            f"{TORCHVISION_NAMES.block(stage, block)}.attn.relative_position_index",
            partial(names.flat_index, config.window_size),
            why=names.COMPUTED,
        )
        for stage, depth in enumerate(config.depths)
        for block in range(depth)
    ]
    return [*names.rows(TORCHVISION_NAMES, config), *index]


def torchvision_preprocessing(foreign: Foreign, config: SwinConfig) -> Preprocessing:
    """As published for weights of this shape, in proportion at another size."""
    cover = COVERED.get((config.dim, max(config.depths)), 232)
    height, width = config.image_size
    return names.covered(config, (round(height * cover / 224), round(width * cover / 224)))


def is_timm(spelling: Spelling, foreign: Foreign) -> bool:
    return spelling.root(foreign) == "" and not ends_stages(foreign)


def ends_stages(foreign: Foreign) -> bool:
    """What tells the authors' names from timm's."""
    return any(
        name.removeprefix("encoder.") in ("layers.0.downsample.reduction.weight", "head.weight")
        for name in foreign.tensors
    )


def timm_sidecars(passport: Passport, config: SwinConfig) -> dict[str, dict[str, Any]]:
    return names.timm_sidecars(passport, config, "swin_tiny_patch4_window7_224", {})


TIMM_SWIN = Dialect(
    name="timm-swin",
    about="pytorch-image-models: Swin",
    family="swin",
    claims=partial(is_timm, TIMM_NAMES),
    infer=timm_infer,
    rows=partial(names.rows, TIMM_NAMES),
    preprocessing=names.timm_preprocessing,
    resize="timm",
    holds=names.HOLDS,
    clashes=partial(names.same_windows, window_policy="timm"),
    sidecars=timm_sidecars,
    labels=partial(timm.labels, head="head.fc"),
    licence=timm.licence,
    computes=AllowList("timm", is_swin),
)
SWIN = Dialect(
    name="swin",
    about="microsoft/Swin-Transformer: Swin, and encoders of its SimMIM",
    family="swin",
    claims=lambda foreign: MICROSOFT_NAMES.root(foreign) is not None and ends_stages(foreign),
    infer=microsoft_infer,
    rows=partial(names.rows, MICROSOFT_NAMES),
    preprocessing=names.authors_preprocessing,
    resize="paper",
    holds=names.HOLDS,
    clashes=partial(names.same_windows, window_policy="paper"),
    suffix=".pth",
    wrapped="model",
)
TORCHVISION_SWIN = Dialect(
    name="torchvision-swin",
    about="torchvision.models: swin_t and its sisters",
    family="swin",
    claims=lambda foreign: TORCHVISION_NAMES.root(foreign) is not None,
    infer=torchvision_infer,
    rows=torchvision_rows,
    preprocessing=torchvision_preprocessing,
    resize="torchvision",
    holds=names.HOLDS,
    clashes=partial(names.same_windows, window_policy="torchvision"),
)
