"""BEiT in timm, and in microsoft/unilm where it comes from: the same names for nearly everything.

What sets a file of the authors apart is what timm does not keep: the index of their relative bias,
and the parts that only pre-training reads. Nothing in a fine-tuned file tells BEiT from BEiT v2,
whose images are normalised otherwise: say dialect="beitv2".
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.core.passport import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    INCEPTION,
    Passport,
    Preprocessing,
)
from vitrail.models.beit import BeitConfig, relation_index
from vitrail.weights.dialects import timm
from vitrail.weights.dialects import timm_architectures as architectures
from vitrail.weights.old_dialect import ANY, AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Op, Row, drop, expand, fuse, same, supply

# Queries and values have a bias, in two tensors of theirs and one of ours.
STACKED = Op(lambda bias: bias[None], lambda bias: bias[0])
OWN, SHARED = "blocks.{i}.attn", "rel_pos_bias"
TABLE, INDEX = "relative_position_bias_table", "relative_position_index"

TOKENS = [
    same("cls_token", "cls"),
    same("patch_embed.proj.{p}", "patches.projection.{p}"),
    same(f"{SHARED}.{TABLE}", "relative.table"),
]
BLOCK = [
    same("blocks.{i}.norm1.{p}", "blocks.{i}.norm1.{p}"),
    same(f"{OWN}.{TABLE}", "blocks.{i}.relative.table"),
    same(f"{OWN}.qkv.weight", "blocks.{i}.attention.qkv.weight"),
    fuse([f"{OWN}.q_bias", f"{OWN}.v_bias"], "blocks.{i}.attention.qv_bias", STACKED),
    same(f"{OWN}.proj.{{p}}", "blocks.{i}.attention.out.{p}"),
    same("blocks.{i}.gamma_1", "blocks.{i}.scale1.factor"),
    same("blocks.{i}.norm2.{p}", "blocks.{i}.norm2.{p}"),
    same("blocks.{i}.mlp.fc1.{p}", "blocks.{i}.mlp.fc1.{p}"),
    same("blocks.{i}.mlp.fc2.{p}", "blocks.{i}.mlp.fc2.{p}"),
    same("blocks.{i}.gamma_2", "blocks.{i}.scale2.factor"),
]
HEAD = [same("{norm}.{p}", "norm.{p}"), same("head.{p}", "head.classes.{p}")]

ASSUMED = (
    "pixels brought to [-1, 1], as BEiT v1 has them; BEiT v2 has ImageNet's mean and deviation: "
    "say dialect=beitv2"
)
COMPUTED = "follows from the grid, and is computed"
UNREAD = [
    drop("mask_token", why="stands for hidden patches in pre-training alone"),
    drop("lm_head.*", why="names the visual words of hidden patches in pre-training alone"),
    drop("cls_pt_*", why="teach the class token of BEiT v2 in pre-training alone"),
]


def named(config: BeitConfig) -> list[Row]:
    """What both call the same."""
    axes = {
        "i": range(config.depth),
        "p": ("weight", "bias"),
        "norm": ["fc_norm" if config.pool == "mean" else "norm"],
    }
    return expand([*TOKENS, *BLOCK, *HEAD], **axes)


def timm_rows(config: BeitConfig) -> list[Row]:
    return [*named(config), drop(f"*{INDEX}", why=COMPUTED)]


def microsoft_rows(config: BeitConfig) -> list[Row]:
    """Their models hold the index, and do not load a file without it."""
    at = SHARED if config.relative_bias == "shared" else OWN
    make = partial(authors_index, config.grid)
    index = supply(f"{at}.{INDEX}", make, why=COMPUTED)
    return [
        *named(config),
        *expand([index], i=range(config.depth)),
        drop(f"*{INDEX}", why=COMPUTED),
        *UNREAD,
    ]


def authors_index(grid: tuple[int, int]) -> Tensor:
    tokens = 1 + grid[0] * grid[1]
    return relation_index(grid).to(torch.int64).unflatten(0, (tokens, tokens))


def is_beit(foreign: Foreign) -> bool:
    tables = (f"blocks.0.attn.{TABLE}", f"{SHARED}.{TABLE}")
    kernel = "patch_embed.proj.weight" in foreign.tensors
    return kernel and any(table in foreign.tensors for table in tables)


def is_microsofts(foreign: Foreign) -> bool:
    kept = any(name.endswith(INDEX) or name == "mask_token" for name in foreign.tensors)
    return is_beit(foreign) and kept and "config.json" not in foreign.sidecars


def is_v2(foreign: Foreign) -> bool:
    return any(name.startswith("cls_pt_") for name in foreign.tensors)


def infer(foreign: Foreign) -> Facts:
    tensors, shape = foreign.tensors, foreign.shape
    own = f"blocks.0.attn.{TABLE}" in tensors
    relations, heads = shape(f"blocks.0.attn.{TABLE}" if own else f"{SHARED}.{TABLE}", 2)
    dim, channels, patch_size, _ = shape("patch_embed.proj.weight", 4)
    facts: Facts = {
        "dim": dim,
        "depth": foreign.count("blocks.{}.norm1.weight"),
        "heads": heads,
        "mlp_dim": shape("blocks.0.mlp.fc1.weight", 2)[0],
        "patch_size": patch_size,
        "channels": channels,
        "num_classes": shape("head.weight", 2)[0] if "head.weight" in tensors else 0,
        "pool": "mean" if "fc_norm.weight" in tensors else "cls",
        "relative_bias": "block" if own else "shared",
        "table": relations,
        "norm_eps": 1e-6,
    }
    return facts if "blocks.0.gamma_1" in tensors else facts | {"layer_scale": None}


def timm_infer(foreign: Foreign) -> Facts:
    """What the tensors tell, and timm's config.json of the rest."""
    facts = timm.told(foreign) | infer(foreign)
    return facts if "config.json" in foreign.sidecars else facts | {"notes": [ASSUMED]}


def microsoft_infer(foreign: Foreign) -> Facts:
    return infer(foreign) | {"notes": [ASSUMED]}


def timm_preprocessing(foreign: Foreign, config: BeitConfig) -> Preprocessing:
    crop = 1.0 if max(config.image_size) >= 384 else 0.9
    return timm.evaluated(foreign, config, mean=INCEPTION, std=INCEPTION, crop=crop)


def cropped(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> Callable[[Foreign, BeitConfig], Preprocessing]:
    """As the authors evaluate: bicubic, then the centre."""

    def preprocessing(foreign: Foreign, config: BeitConfig) -> Preprocessing:
        (height, width), grey = config.image_size, (0.5,) * config.channels
        share = 0.875 if max(config.image_size) < 384 else 1.0
        return Preprocessing(
            size=config.image_size,
            resize=(int(height / share), int(width / share)),
            interpolation="bicubic",
            mean=mean if config.channels == 3 else grey,
            std=std if config.channels == 3 else grey,
        )

    return preprocessing


def timm_sidecars(passport: Passport, config: BeitConfig) -> dict[str, dict[str, Any]]:
    """A config.json with which `timm.create_model("local-dir:…", pretrained=True)` builds this
    very model."""
    arguments = {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": (config.mlp_dim + 0.5) / config.dim,  # timm floors the product
        "init_values": config.layer_scale,
        "use_abs_pos_emb": False,
        "use_rel_pos_bias": config.relative_bias == "block",
        "use_shared_rel_pos_bias": config.relative_bias == "shared",
        "global_pool": "avg" if config.pool == "mean" else "token",
    }
    return {"config.json": timm.config_json(passport, config, "beit_base_patch16_224", arguments)}


def exact_gelu(config: BeitConfig) -> str | None:
    return (
        None if config.activation == "gelu" else f"computes the exact GELU, not {config.activation}"
    )


def microsoft_clashes(config: BeitConfig) -> str | None:
    if config.grid[0] != config.grid[1]:
        return f"knows square grids only, this one is {config.grid}"
    return exact_gelu(config)


HOLDS = {"pool": ANY, "relative_bias": ANY, "layer_scale": ANY}
TIMM_BEIT = Dialect(
    name="timm-beit",
    about="pytorch-image-models: BEiT and BEiT v2",
    family="beit",
    claims=lambda foreign: is_beit(foreign) and not is_microsofts(foreign),
    infer=timm_infer,
    rows=timm_rows,
    preprocessing=timm_preprocessing,
    resize="timm",
    holds=HOLDS,
    clashes=exact_gelu,
    sidecars=timm_sidecars,
    labels=timm.labels,
    licence=timm.licence,
    computes=AllowList("timm", architectures.is_beit),
)
BEIT = Dialect(
    name="beit",
    about="microsoft/unilm: BEiT, pre-trained encoders and fine-tuned classifiers",
    family="beit",
    claims=lambda foreign: is_microsofts(foreign) and not is_v2(foreign),
    infer=microsoft_infer,
    rows=microsoft_rows,
    preprocessing=cropped(INCEPTION, INCEPTION),
    resize="paper",
    holds=HOLDS,
    square=True,
    clashes=microsoft_clashes,
    suffix=".pth",
    wrapped="model",
)
BEITV2 = Dialect(
    name="beitv2",
    about="microsoft/unilm: BEiT v2, pre-trained encoders and fine-tuned classifiers",
    family="beit",
    claims=lambda foreign: is_microsofts(foreign) and is_v2(foreign),
    infer=infer,
    rows=microsoft_rows,
    preprocessing=cropped(IMAGENET_MEAN, IMAGENET_STD),
    resize="paper",
    holds=HOLDS,
    square=True,
    clashes=microsoft_clashes,
    suffix=".pth",
    wrapped="model",
)
