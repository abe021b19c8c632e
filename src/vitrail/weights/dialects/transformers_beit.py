"""Hugging Face transformers' BEiT: classifiers, encoders, and the encoder of masked pre-training.

In the names of version 5 and in the classic ones, which it still writes to disk and which both
versions read.
"""

from typing import Any

import torch
from torch import Tensor

from vitrail.models.beit import BeitConfig
from vitrail.weights.dialect import Dialect, Foreign, both_versions
from vitrail.weights.dialects import transformers_config as files
from vitrail.weights.dialects.beit import COMPUTED, INDEX, MASKED, SUPPORTS, TABLE, WORDS
from vitrail.weights.dialects.transformers_config import Kind
from vitrail.weights.dialects.transformers_processor import PROCESSORS
from vitrail.weights.families.beit import find_grid, transpose_table
from vitrail.weights.families.family import Request
from vitrail.weights.rows import (
    FLAT_TABLE,
    Facts,
    Op,
    Row,
    drop,
    fill,
    fuse,
    in_version,
    reshape,
    same,
    within,
)

TURNED = "relative bias read as transformers does on a grid that is not square: rows for columns"
POOLED = "this encoder pools nothing: the norm of what is pooled is new"


def turn(table: Tensor, hints: Any) -> Tensor:
    """Rows for columns, on a grid that is not square; those are refused where it is written."""
    if "image_size" not in hints:
        return table
    height, width = hints["image_size"]
    return transpose_table(table, (height // hints["patch_size"], width // hints["patch_size"]))


TURN = Op(read=turn, write=lambda table, _: table)


def block(layer: str, qkv: tuple[str, ...], out: str, mlp: tuple[str, str]) -> tuple[Row, ...]:
    query, key, value = (f"attention.{name}" for name in qkv)
    ours = "blocks.{i}"
    return within(
        layer,
        (
            same("layernorm_before.{p}", f"{ours}.norm1.{{p}}"),
            fuse([f"{n}.weight" for n in (query, key, value)], f"{ours}.attention.qkv.weight"),
            fuse([f"{query}.bias", f"{value}.bias"], f"{ours}.attention.qv_bias", FLAT_TABLE),
            same(f"attention.{out}.{{p}}", f"{ours}.attention.out.{{p}}"),
            same("lambda_1", f"{ours}.scale1.factor"),
            same("layernorm_after.{p}", f"{ours}.norm2.{{p}}"),
            same(f"{mlp[0]}.{{p}}", f"{ours}.mlp.fc1.{{p}}"),
            same(f"{mlp[1]}.{{p}}", f"{ours}.mlp.fc2.{{p}}"),
            same("lambda_2", f"{ours}.scale2.factor"),
        ),
    )


NEW = (
    reshape(f"layers.{{i}}.relative_position_bias.{TABLE}", "blocks.{i}.relative.table", TURN),
    reshape(f"shared_position_bias.{TABLE}", "relative.table", TURN),
    *block("layers.{i}.", ("q_proj", "k_proj", "v_proj"), "o_proj", ("mlp.fc1", "mlp.fc2")),
)
CLASSIC = (
    reshape(
        f"encoder.layer.{{i}}.attention.attention.relative_position_bias.{TABLE}",
        "blocks.{i}.relative.table",
        TURN,
    ),
    reshape(f"encoder.relative_position_bias.{TABLE}", "relative.table", TURN),
    *block(
        "encoder.layer.{i}.",
        ("attention.query", "attention.key", "attention.value"),
        "output.dense",
        ("intermediate.dense", "output.dense"),
    ),
)
# A model with a head has its encoder inside `beit`; one without is its encoder itself.
ROWS = (
    *within(
        "{root}",
        (
            same("embeddings.cls_token", "cls"),
            same("embeddings.patch_embeddings.projection.{p}", "patches.projection.{p}"),
            *NEW,
            *in_version("v4", CLASSIC),
            same("pooler.layernorm.{p}", "norm.{p}", pool="mean"),
            same("layernorm.{p}", "norm.{p}", pool="cls"),
            drop("embeddings.mask_token", why=MASKED),
        ),
    ),
    same("classifier.{p}", "head.classes.{p}"),
    drop("lm_head.*", why=WORDS),
    drop(f"*{INDEX}", why=COMPUTED),
    fill(
        "norm.weight", "cls", lambda x: torch.ones(x.shape[-1:]), POOLED, pool="mean", num_classes=0
    ),
    fill(
        "norm.bias", "cls", lambda x: torch.zeros(x.shape[-1:]), POOLED, pool="mean", num_classes=0
    ),
)


KIND = Kind(
    model_type="beit",
    classes="Beit",
    fields=files.VIT | {"intermediate_size": "mlp_dim", "layer_scale_init_value": "layer_scale"},
    reads=("image_size", "hidden_act", "layer_norm_eps", "layer_scale_init_value"),
    eps=1e-12,
    usual=PROCESSORS["Beit"],
    extras=lambda config: {
        "drop_path_rate": 0.0,
        "use_mask_token": False,
        "use_absolute_position_embeddings": False,
        "use_relative_position_bias": config.relative_bias == "block",
        "use_shared_relative_position_bias": config.relative_bias == "shared",
        "layer_scale_init_value": config.layer_scale or 0.0,
        "use_mean_pooling": config.pool == "mean",
    },
)


def hints(foreign: Foreign, request: Request) -> Facts:
    """Classes, which decide whether a norm may be missing, and a grid that is not square."""
    facts: Facts = {"num_classes": files.classes_of(foreign)}
    kernel, table = (
        next((tensor for name, tensor in foreign.tensors.items() if name.endswith(ending)), None)
        for ending in ("patch_embeddings.projection.weight", TABLE)
    )
    if kernel is None or table is None or kernel.ndim != 4 or table.ndim != 2 or 0 in kernel.shape:
        return facts
    patch, size = kernel.shape[2], files.read_sidecar(foreign, ["image_size"]).image_size
    rows, columns = find_grid(patch, table.shape[0], size, request)[0]
    if rows != columns:
        facts |= {"image_size": (rows * patch, columns * patch), "patch_size": patch}
    return facts


def sidecar_facts(foreign: Foreign, facts: Facts) -> Facts:
    found = {"activation": "gelu", "notes": [], **KIND.facts(foreign)}
    height, width = found.get("image_size", (0, 0))
    found["notes"] += [TURNED] if height != width else []
    if not found.get("layer_scale") or facts.get("layer_scale", 0) is None:
        found.pop("layer_scale", None)
    return found


def why_unsupported(config: BeitConfig) -> str | None:
    if config.grid[0] != config.grid[1]:
        return f"confuses rows and columns of a relative bias, and this grid is {config.grid}"
    return None


TRANSFORMERS_BEIT = both_versions(
    Dialect(
        **KIND.in_common,
        about="BEiT, names of version 5",
        family="beit",
        rows=ROWS,
        accepts=lambda foreign: any(name.endswith(TABLE) for name in foreign.tensors),
        hints=hints,
        sidecar_facts=sidecar_facts,
        supports=SUPPORTS,
        why_unsupported=why_unsupported,
    )
)
