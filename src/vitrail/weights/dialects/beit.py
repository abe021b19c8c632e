"""BEiT in timm, and in microsoft/unilm where it comes from: the same names for nearly everything.

What sets a file of the authors apart is what timm does not keep: the index of their relative bias,
and the parts that only pre-training reads. A fine-tuned file of BEiT v2 looks like one of BEiT,
but its images are normalised differently: give dialect="beitv2".
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.core.passport import INCEPTION, Preprocessing
from vitrail.models.beit import BeitConfig, relation_index
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects import timm_architectures as architectures
from vitrail.weights.dialects import timm_config
from vitrail.weights.dialects.preparation import below_384, cropped
from vitrail.weights.rows import FLAT_TABLE, Facts, drop, fuse, same, supply

TABLE, INDEX = "relative_position_bias_table", "relative_position_index"
ROWS = (
    same("cls_token", "cls"),
    same("patch_embed.proj.{p}", "patches.projection.{p}"),
    same(f"rel_pos_bias.{TABLE}", "relative.table"),
    same("blocks.{i}.norm1.{p}", "blocks.{i}.norm1.{p}"),
    same(f"blocks.{{i}}.attn.{TABLE}", "blocks.{i}.relative.table"),
    same("blocks.{i}.attn.qkv.weight", "blocks.{i}.attention.qkv.weight"),
    # queries and values have a bias, in two tensors of theirs and one of ours
    fuse(
        ["blocks.{i}.attn.q_bias", "blocks.{i}.attn.v_bias"],
        "blocks.{i}.attention.qv_bias",
        FLAT_TABLE,
    ),
    same("blocks.{i}.attn.proj.{p}", "blocks.{i}.attention.out.{p}"),
    same("blocks.{i}.gamma_1", "blocks.{i}.scale1.factor"),
    same("blocks.{i}.norm2.{p}", "blocks.{i}.norm2.{p}"),
    same("blocks.{i}.mlp.fc1.{p}", "blocks.{i}.mlp.fc1.{p}"),
    same("blocks.{i}.mlp.fc2.{p}", "blocks.{i}.mlp.fc2.{p}"),
    same("blocks.{i}.gamma_2", "blocks.{i}.scale2.factor"),
    same("fc_norm.{p}", "norm.{p}", pool="mean"),
    same("norm.{p}", "norm.{p}", pool="cls"),
    same("head.{p}", "head.classes.{p}"),
)
COMPUTED = "follows from the grid, and is computed"
MASKED = "stands for hidden patches in pre-training alone"
WORDS = "names the visual words of hidden patches in pre-training alone"
ASSUMED = (
    "pixels brought to [-1, 1], as BEiT v1 has them; BEiT v2 has ImageNet's mean and deviation: "
    "give dialect=beitv2"
)


def authors_index(config: BeitConfig) -> Tensor:
    """Their models hold the index, and do not load a file without it."""
    tokens = 1 + config.grid[0] * config.grid[1]
    return relation_index(config.grid).to(torch.int64).unflatten(0, (tokens, tokens))


MICROSOFT_ROWS = (
    *ROWS,
    supply(f"rel_pos_bias.{INDEX}", authors_index, why=COMPUTED, like="relative.table"),
    supply(
        f"blocks.{{i}}.attn.{INDEX}", authors_index, why=COMPUTED, like="blocks.{i}.relative.table"
    ),
    drop(f"*{INDEX}", why=COMPUTED),
    drop("mask_token", why=MASKED),
    drop("lm_head.*", why=WORDS),
    drop("cls_pt_*", why="teach the class token of BEiT v2 in pre-training alone"),
)


def is_beit(foreign: Foreign) -> bool:
    tables = (f"blocks.0.attn.{TABLE}", f"rel_pos_bias.{TABLE}")
    return any(table in foreign.tensors for table in tables)


def is_microsofts(foreign: Foreign) -> bool:
    kept = any(name.endswith(INDEX) or name == "mask_token" for name in foreign.tensors)
    return is_beit(foreign) and kept and "config.json" not in foreign.sidecars


def is_v2(foreign: Foreign) -> bool:
    return any(name.startswith("cls_pt_") for name in foreign.tensors)


def timm_facts(foreign: Foreign, facts: Facts) -> Facts:
    """What timm's config.json specifies and tensors do not show."""
    found = {
        n: value
        for n, value in timm_config.config_arguments(foreign).items()
        if n not in ("heads", "pool")
    }
    if facts.get("layer_scale", 0) is None:
        found.pop("layer_scale", None)
    return found if "config.json" in foreign.sidecars else found | {"notes": [ASSUMED]}


def timm_preprocessing(foreign: Foreign, config: BeitConfig) -> Preprocessing:
    crop = 1.0 if max(config.image_size) >= 384 else 0.9
    return timm_config.evaluated(foreign, config, mean=INCEPTION, std=INCEPTION, crop=crop)


def timm_arguments(config: BeitConfig) -> dict[str, Any]:
    return timm_config.arguments_by_name(timm_config.SHAPE, config) | {
        "mlp_ratio": (config.mlp_dim + 0.5) / config.dim,  # timm floors the product
        "use_abs_pos_emb": False,
        "use_rel_pos_bias": config.relative_bias == "block",
        "use_shared_rel_pos_bias": config.relative_bias == "shared",
        "global_pool": "avg" if config.pool == "mean" else "token",
    }


def other_gelu(config: BeitConfig) -> str | None:
    exact = config.activation == "gelu"
    return None if exact else f"computes the exact GELU, not {config.activation}"


def why_unsupported(config: BeitConfig) -> str | None:
    if config.grid[0] != config.grid[1]:
        rows, columns = config.grid
        return f"supports square grids only, this model's is {rows}x{columns}"
    return other_gelu(config)


SUPPORTS = {"pool": ANY, "relative_bias": ANY, "layer_scale": ANY}
TIMM_BEIT = Dialect(
    name="timm-beit",
    about="pytorch-image-models: BEiT and BEiT v2",
    family="beit",
    rows=(*ROWS, drop(f"*{INDEX}", why=COMPUTED)),
    accepts=lambda foreign: is_beit(foreign) and not is_microsofts(foreign),
    constants={"norm_eps": 1e-6},
    sidecar_facts=timm_facts,
    preprocessing=timm_preprocessing,
    supports=SUPPORTS,
    why_unsupported=other_gelu,
    **timm_config.in_common(
        lambda _: "beit_base_patch16_224", timm_arguments, architectures.is_beit, head="head"
    ),
)
BEIT = Dialect(
    name="beit",
    about="microsoft/unilm: BEiT, pre-trained encoders and fine-tuned classifiers",
    family="beit",
    rows=MICROSOFT_ROWS,
    accepts=lambda foreign: is_microsofts(foreign) and not is_v2(foreign),
    constants={"norm_eps": 1e-6},
    sidecar_facts=lambda *_: {"notes": [ASSUMED]},
    preprocessing=cropped(below_384(0.875), INCEPTION, INCEPTION),
    resize="paper",
    supports=SUPPORTS,
    square=True,
    why_unsupported=why_unsupported,
    suffix=".pth",
    wrapped="model",
)
BEITV2 = replace(
    BEIT,
    name="beitv2",
    about="microsoft/unilm: BEiT v2, pre-trained encoders and fine-tuned classifiers",
    accepts=lambda foreign: is_microsofts(foreign) and is_v2(foreign),
    sidecar_facts=lambda *_: {},
    preprocessing=cropped(below_384(0.875)),
)
