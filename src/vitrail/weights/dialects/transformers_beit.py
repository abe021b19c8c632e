"""Hugging Face transformers' BEiT: classifiers, encoders, and the encoder of masked pre-training.

In the names of version 5 and, with the suffix -v4, in the classic ones, which it still writes to
disk and which both versions read.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vitrail.core.passport import Passport
from vitrail.models.beit import BeitConfig
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.dialects.beit import COMPUTED, INDEX, STACKED, TABLE, UNREAD
from vitrail.weights.dialects.transformers_names import NEW, OLD, PARTS
from vitrail.weights.families.beit import transpose_table
from vitrail.weights.old_dialect import ANY, AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Op, Row, drop, expand, fill, fuse, reshape, same

BASE = "beit."  # what a model with a head calls its encoder
EPS = "LayerNorm eps 1e-12, which transformers takes when not told"
TURNED = "relative bias read as transformers does on a grid that is not square: rows for columns"


@dataclass(frozen=True)
class Spelling:
    """One version's names; a layer's are within {layer}."""

    layer: str
    qkvo: tuple[str, ...]  # within the layer's attention
    mlp: tuple[str, str]
    own: str  # the relative bias of a layer
    shared: str  # or of them all


NEW_NAMES = Spelling(
    layer="{b}layers.{i}",
    qkvo=NEW,
    mlp=("mlp.fc1", "mlp.fc2"),
    own="{b}layers.{i}.relative_position_bias",
    shared="{b}shared_position_bias",
)
OLD_NAMES = Spelling(
    layer="{b}encoder.layer.{i}",
    qkvo=OLD,
    mlp=("intermediate.dense", "output.dense"),
    own="{b}encoder.layer.{i}.attention.attention.relative_position_bias",
    shared="{b}encoder.relative_position_bias",
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """The field of config.json that other models do not have."""

    layer_scale_init_value: float | None = None


def rows(names: Spelling, config: BeitConfig) -> list[Row]:
    # a model without a head is its encoder itself, and has no name inside another
    bases = (BASE, "") if config.num_classes else ("", BASE)
    table = [
        same("{b}embeddings.cls_token", "cls"),
        same("{b}embeddings.patch_embeddings.projection.{p}", "patches.projection.{p}"),
        *relative(names, config),
        *block(names),
        # pre-training's norm stands outside of the encoder, where "" finds it
        same(
            "{b}pooler.layernorm.{p}" if config.pool == "mean" else "{b}layernorm.{p}", "norm.{p}"
        ),
        same("classifier.{p}", "head.classes.{p}"),
        drop("{b}embeddings.mask_token", why=UNREAD[0].why),
        drop("lm_head.*", why=UNREAD[1].why),
        drop(f"*{INDEX}", why=COMPUTED),
    ]
    if config.pool == "mean" and not config.num_classes:
        why = "this encoder pools nothing: the norm of what is pooled is new"
        table += [fill("norm.weight", torch.ones, why), fill("norm.bias", torch.zeros, why)]
    return expand(table, b=bases, i=range(config.depth), p=PARTS)


def relative(names: Spelling, config: BeitConfig) -> list[Row]:
    turned = Op(
        read=lambda table: transpose_table(table, config.grid) if is_oblong(config) else table,
        write=lambda table: table,  # oblong ones are refused before
    )
    return [
        reshape(f"{names.own}.{TABLE}", "blocks.{i}.relative.table", turned),
        reshape(f"{names.shared}.{TABLE}", "relative.table", turned),
    ]


def is_oblong(config: BeitConfig) -> bool:
    return config.grid[0] != config.grid[1]


def block(names: Spelling) -> list[Row]:
    layer, (first, second) = names.layer, names.mlp
    q, k, v, out = (f"{layer}.attention.{name}" for name in names.qkvo)
    weights = [f"{part}.weight" for part in (q, k, v)]
    return [
        same(f"{layer}.layernorm_before.{{p}}", "blocks.{i}.norm1.{p}"),
        fuse(weights, "blocks.{i}.attention.qkv.weight"),
        fuse([f"{q}.bias", f"{v}.bias"], "blocks.{i}.attention.qv_bias", STACKED),
        same(f"{out}.{{p}}", "blocks.{i}.attention.out.{p}"),
        same(f"{layer}.lambda_1", "blocks.{i}.scale1.factor"),
        same(f"{layer}.layernorm_after.{{p}}", "blocks.{i}.norm2.{p}"),
        same(f"{layer}.{first}.{{p}}", "blocks.{i}.mlp.fc1.{p}"),
        same(f"{layer}.{second}.{{p}}", "blocks.{i}.mlp.fc2.{p}"),
        same(f"{layer}.lambda_2", "blocks.{i}.scale2.factor"),
    ]


def claims(names: Spelling, foreign: Foreign) -> bool:
    told = foreign.sidecars.get("config.json", {}).get("model_type")
    if isinstance(told, str) and told != "beit":
        return False
    base = base_of(foreign)
    layer = f"{names.layer}.layernorm_before.weight".format(b=base, i=0)
    tables = [f"{at}.{TABLE}".format(b=base, i=0) for at in (names.own, names.shared)]
    return layer in foreign.tensors and any(table in foreign.tensors for table in tables)


def base_of(foreign: Foreign) -> str:
    return BASE if f"{BASE}embeddings.cls_token" in foreign.tensors else ""


def infer(names: Spelling, foreign: Foreign) -> Facts:
    tensors, base = foreign.tensors, base_of(foreign)
    told, own = files.read_config(foreign), f"{names.own}.{TABLE}".format(b=base, i=0)
    shared = f"{names.shared}.{TABLE}".format(b=base)
    scale = files.read_record(Told, foreign, "config.json").layer_scale_init_value
    first = names.layer.format(b=base, i=0)
    relations, heads = foreign.shape(own if own in tensors else shared, 2)
    kernel = foreign.shape(f"{base}embeddings.patch_embeddings.projection.weight", 4)
    normed = f"{base}layernorm.weight" in tensors or "lm_head.weight" in tensors
    facts: Facts = {
        "dim": kernel[0],
        "channels": kernel[1],
        "patch_size": kernel[2],
        "depth": foreign.count(f"{names.layer}.layernorm_before.weight".format(b=base, i="{}")),
        "heads": heads,
        "mlp_dim": foreign.shape(f"{first}.{names.mlp[0]}.weight", 2)[0],
        "num_classes": classes_of(foreign),
        "pool": "cls" if normed else "mean",
        "relative_bias": "block" if own in tensors else "shared",
        "table": relations,
        "image_size": told.image_size,
        "activation": files.read_activation(told, foreign.source),
        "norm_eps": 1e-12 if told.layer_norm_eps is None else told.layer_norm_eps,
    }
    if f"{first}.lambda_1" not in tensors:
        facts["layer_scale"] = None
    elif scale:
        facts["layer_scale"] = scale
    facts["notes"] = [EPS] if told.layer_norm_eps is None else []
    if isinstance(told.image_size, tuple) and told.image_size[0] != told.image_size[1]:
        facts["notes"] += [TURNED]
    return facts


def classes_of(foreign: Foreign) -> int:
    return foreign.shape("classifier.weight", 2)[0] if "classifier.weight" in foreign.tensors else 0


def labels(foreign: Foreign) -> tuple[str, ...] | None:
    return files.read_labels(files.read_config(foreign), classes_of(foreign), foreign.source)


def clashes(config: BeitConfig) -> str | None:
    if is_oblong(config):
        return f"confuses rows and columns of a relative bias, and this grid is {config.grid}"
    return None


def sidecars(passport: Passport, config: BeitConfig) -> dict[str, dict[str, Any]]:
    """Files from which Auto classes build this very model."""
    kind = "BeitForImageClassification" if config.num_classes else "BeitModel"
    written = {
        "architectures": [kind],
        "model_type": "beit",
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": files.SPELLED[config.activation],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "layer_norm_eps": config.norm_eps,
        "image_size": config.image_size[0],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "use_mask_token": False,
        "use_absolute_position_embeddings": False,
        "use_relative_position_bias": config.relative_bias == "block",
        "use_shared_relative_position_bias": config.relative_bias == "shared",
        "layer_scale_init_value": config.layer_scale or 0.0,
        "use_mean_pooling": config.pool == "mean",
        **files.write_labels(passport, config),
    }
    before = files.write_preprocessing(passport.preprocessing)
    return {"config.json": written, "preprocessor_config.json": before}


def speak(names: Spelling, version: str) -> Dialect:
    spelled = "classic names, which versions 4 and 5 read" if version else "names of version 5"
    return Dialect(
        name=f"transformers-beit{version}",
        about=f"Hugging Face transformers: BEiT, {spelled}",
        family="beit",
        claims=partial(claims, names),
        infer=partial(infer, names),
        rows=partial(rows, names),
        preprocessing=lambda foreign, config: files.read_preprocessing(
            foreign, config, files.PROCESSORS["Beit"]
        ),
        resize="hf",
        holds={"pool": ANY, "relative_bias": ANY, "layer_scale": ANY},
        clashes=clashes,
        sidecars=sidecars,
        labels=labels,
        multi_label=files.read_multi_label,
        computes=AllowList("transformers", {"beit"}.__contains__, "Beit"),
    )


TRANSFORMERS_BEIT = (speak(NEW_NAMES, ""), speak(OLD_NAMES, "-v4"))
