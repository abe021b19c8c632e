"""Swin in its authors' repository, in timm and in torchvision, and what Swin V2 has of it.

timm took over the authors' names but for two: `head.fc`, and merging, which begins a stage there
and ended the one before (`downsample`). Files of its early versions are the authors' in all.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.core.layout import WindowPolicy
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitrail.models.catalogue import FAMILIES
from vitrail.models.config import Config
from vitrail.models.swin import SwinConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects import timm_config
from vitrail.weights.dialects.preparation import bicubic
from vitrail.weights.dialects.timm_architectures import is_swin, refuse_other_layers
from vitrail.weights.rows import Facts, Row, drop, same, supply, within

OURS = "stages.{s}.blocks.{b}."
NORMS = (same("norm1.{p}", f"{OURS}norm1.{{p}}"), same("norm2.{p}", f"{OURS}norm2.{{p}}"))
ATTENTION = (
    same("attn.qkv.{p}", f"{OURS}attention.qkv.{{p}}"),
    same("attn.proj.{p}", f"{OURS}attention.out.{{p}}"),
    same("attn.relative_position_bias_table", f"{OURS}attention.bias.table"),
)
MLP = (same("mlp.fc1.{p}", f"{OURS}mlp.fc1.{{p}}"), same("mlp.fc2.{p}", f"{OURS}mlp.fc2.{{p}}"))
TORCHVISION_MLP = (
    same("mlp.0.{p}", f"{OURS}mlp.fc1.{{p}}"),
    same("mlp.3.{p}", f"{OURS}mlp.fc2.{{p}}"),
)
MERGE = (
    same("norm.{p}", "stages.{s}.merge.norm.{p}"),
    same("reduction.weight", "stages.{s}.merge.reduction.weight"),
)
COMPUTED = "follows from the size of window and image, and is computed"
MASKED = "stands for hidden patches in pre-training alone"
PAINTED = "rebuilds hidden pixels in pre-training alone"
# buffers that older versions keep in their files
BUFFERS = tuple(
    drop(f"*.{name}", why=COMPUTED)
    for name in ("attn_mask", "relative_position_index", "relative_coords_table")
)
SUPPORTS = {"depths": ANY, "window_size": ANY, "mlp_ratio": ANY, "window_policy": ANY}
EPS = 1e-5


def encoder_rows(attention: tuple[Row, ...], merge: str) -> tuple[Row, ...]:
    """The authors' names, which timm has too; `merge` is the stage that merging belongs to."""
    return (
        same("patch_embed.proj.{p}", "patches.projection.{p}"),
        same("patch_embed.norm.{p}", "embed_norm.{p}"),
        *within("layers.{s}.blocks.{b}.", (*NORMS, *attention, *MLP)),
        *within(f"{merge}.downsample.", MERGE),
        same("norm.{p}", "norm.{p}"),
    )


def timm_rows(attention: tuple[Row, ...]) -> tuple[Row, ...]:
    head = same("head.fc.{p}", "head.classes.{p}")
    return (*encoder_rows(attention, "layers.{s}"), head, *BUFFERS)


def microsoft_rows(attention: tuple[Row, ...]) -> tuple[Row, ...]:
    """SimMIM's pre-training has everything inside `encoder`."""
    return (
        *within("{root}", encoder_rows(attention, "layers.{s-1}")),
        same("head.{p}", "head.classes.{p}"),
        *BUFFERS,
        drop("encoder.mask_token", why=MASKED),
        drop("decoder.*", why=PAINTED),
    )


def torchvision_rows(attention: tuple[Row, ...]) -> tuple[Row, ...]:
    return (
        same("features.0.0.{p}", "patches.projection.{p}"),
        same("features.0.2.{p}", "embed_norm.{p}"),
        *within("features.{2*s+1}.{b}.", (*NORMS, *attention, *TORCHVISION_MLP)),
        *within("features.{2*s}.", MERGE),
        same("norm.{p}", "norm.{p}"),
        same("head.{p}", "head.classes.{p}"),
        # its models hold the index of their tables, and do not load a file without it
        supply(
            "features.{2*s+1}.{b}.attn.relative_position_index",
            lambda config: flat_index(config.window_size),
            why=COMPUTED,
            like=f"{OURS}norm1.weight",
        ),
    )


def flat_index(window: int) -> Int[Tensor, "nn"]:
    """For every pair of cells in a window, query by query, the row of a table of offsets."""
    row = torch.arange(window).repeat_interleave(window)
    column = torch.arange(window).repeat(window)
    down, across = (place[:, None] - place + window - 1 for place in (row, column))
    return (down * (2 * window - 1) + across).flatten()


def has(name: str) -> Callable[[Foreign], bool]:
    """Whether a file has a tensor whose name ends so: the versions differ in it."""
    return lambda foreign: any(key.endswith(name) for key in foreign.tensors)


def ends_stages(foreign: Foreign) -> bool:
    """Whether the names are the authors', not timm's."""
    return any(
        name.removeprefix("encoder.") in ("layers.0.downsample.reduction.weight", "head.weight")
        for name in foreign.tensors
    )


def timm_facts(family: str, foreign: Foreign, _: Facts) -> Facts:
    """What timm's config.json adds: its entry point, which is a published model, and the arguments
    it was made with; the config that comes of it checks their types."""
    refuse_other_layers(foreign)
    config = foreign.sidecars.get("config.json", {})
    variants, aliases = FAMILIES[family].variants, FAMILIES[family].aliases
    published = variants.get(aliases.get(str(config.get("architecture")), ""))
    facts: Facts = {}
    if published is not None:
        names = ("image_size", "window_size", "pretrained_windows")
        values = vars(published.config)
        facts |= {name: values[name] for name in names if name in values}
    facts |= timm_config.image_size(foreign)
    window = timm_config.section(foreign, "model_args").get("window_size")
    if window is not None:
        same_sides = isinstance(window, list) and len(window) == 2 and window[0] == window[1]
        facts["window_size"] = window[0] if same_sides else window
    return facts


def timm_swin_facts(foreign: Foreign, facts: Facts) -> Facts:
    """Tables show the windows, whatever config.json specifies."""
    return timm_facts("swin", foreign, facts) | {"window_size": facts["window_size"]}


def mask_facts(foreign: Foreign, facts: Facts) -> Facts:
    """The authors' files hold the mask of each shifted block, one for each window."""
    name = "layers.0.blocks.1.attn_mask"
    masks = [foreign.tensors[r + name] for r in ("", "encoder.") if r + name in foreign.tensors]
    count = masks[0].shape[0] if masks and masks[0].ndim == 3 else 0
    side, pixels = math.isqrt(count), facts["window_size"] * facts["patch_size"]
    return {"image_size": (side * pixels,) * 2} if side and side**2 == count else {}


def other_windows(policy: WindowPolicy, config: SwinConfig) -> str | None:
    """A `why_unsupported`: weights mean the same to a code base if it cuts every grid as they were
    trained to see it."""
    for stage, depth in enumerate(config.depths):
        last = min(depth - 1, 1)  # the second block is the first that shifts
        ours = config.layout(stage, last)
        theirs = replace(config, window_policy=policy).layout(stage, last)
        order = ours.padded == ours.grid or not any(ours.shift)
        if (ours.window, ours.shift) != (theirs.window, theirs.shift) or not (
            order or ours.rolled_first == theirs.rolled_first
        ):
            rows, columns = ours.grid
            return (
                f"cuts the grid of stage {stage + 1}, {rows}x{columns}, into other windows than "
                f'these weights were trained with (window_policy="{config.window_policy}")'
            )
    return None


def timm_arguments(config: SwinConfig) -> dict[str, Any]:
    same_names = ("depths", "window_size", "mlp_ratio")
    shape = {k: v for k, v in timm_config.SHAPE.items() if hasattr(config, v)}
    names = shape | dict(zip(same_names, same_names, strict=True))
    return timm_config.arguments_by_name(names, config) | {"global_pool": "avg"}


def timm_preprocessing(foreign: Foreign, config: Config) -> Preprocessing:
    crop = 1.0 if max(config.image_size) >= 384 else 0.9
    return timm_config.evaluated(foreign, config, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop=crop)


def authors_preprocessing(_: Foreign, config: Config) -> Preprocessing:
    """The centre of a larger image; from 384 pixels on the whole image, squeezed."""
    height, width = config.image_size
    if max(height, width) >= 384:
        return bicubic(config, None)
    return replace(bicubic(config, 1.0), resize=(int(256 / 224 * height), int(256 / 224 * width)))


def torchvision_preprocessing(
    side: int, sizes: dict[tuple[int, int], int], _: Foreign, config: SwinConfig
) -> Preprocessing:
    """As published for weights of this shape, by width and depth of the third stage; in proportion
    at another size."""
    usual = next(iter(sizes.values()))
    return bicubic(config, sizes.get((config.dim, max(config.depths)), usual) / side)


TIMM_SWIN = Dialect(
    name="timm-swin",
    about="pytorch-image-models: Swin",
    family="swin",
    rows=timm_rows(ATTENTION),
    accepts=lambda foreign: (
        has(".attn.relative_position_bias_table")(foreign) and not ends_stages(foreign)
    ),
    constants={"window_policy": "timm", "norm_eps": EPS},
    sidecar_facts=timm_swin_facts,
    preprocessing=timm_preprocessing,
    supports=SUPPORTS,
    why_unsupported=partial(other_windows, "timm"),
    **timm_config.in_common(lambda _: "swin_tiny_patch4_window7_224", timm_arguments, is_swin),
)
SWIN = Dialect(
    name="swin",
    about="microsoft/Swin-Transformer: Swin, and encoders of its SimMIM",
    family="swin",
    rows=microsoft_rows(ATTENTION),
    values={"root": ("", "encoder.")},
    accepts=ends_stages,
    constants={"norm_eps": EPS},
    sidecar_facts=mask_facts,
    preprocessing=authors_preprocessing,
    resize="paper",
    supports=SUPPORTS,
    why_unsupported=partial(other_windows, "paper"),
    suffix=".pth",
    wrapped="model",
)
TORCHVISION_SWIN = Dialect(
    name="torchvision-swin",
    about="torchvision.models: swin_t and its variants",
    family="swin",
    rows=torchvision_rows(ATTENTION),
    accepts=has(".attn.relative_position_bias_table"),
    constants={"window_policy": "torchvision", "norm_eps": EPS},
    preprocessing=partial(
        torchvision_preprocessing, 224, {(96, 6): 232, (96, 18): 246, (128, 18): 238}
    ),
    resize="torchvision",
    supports=SUPPORTS,
    why_unsupported=partial(other_windows, "torchvision"),
)
