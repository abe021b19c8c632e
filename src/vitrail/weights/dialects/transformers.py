"""Hugging Face transformers: ViT, DeiT, DINOv2 with or without registers, the encoder of ViTMAE.

Each in the names of version 5 (`vit.layers.0.attention.q_proj.weight`) and in the classic ones
(`vit.encoder.layer.0.attention.attention.query.weight`), which both versions read. Version 5 holds
new names in memory but still writes the old ones to disk. {b} is what a model with a head calls its
encoder, such as "vit.".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.core.passport import Passport, Preprocessing, ResizeMethod
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, AllowList, Dialect, Foreign, both_versions
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.families.family import Request
from vitrail.weights.rows import (
    Facts,
    Op,
    Row,
    drop,
    fuse,
    in_version,
    reshape,
    same,
    supply,
    within,
)


def attention(*projections: str) -> tuple[Row, ...]:
    *split, out = (f"attention.{projection}.{{p}}" for projection in projections)
    return (
        fuse(split, "blocks.{i}.attention.qkv.{p}"),
        same(out, "blocks.{i}.attention.out.{p}"),
    )


NEW = attention("q_proj", "k_proj", "v_proj", "o_proj")
OLD = attention("attention.query", "attention.key", "attention.value", "output.dense")
MLP = (same("mlp.fc{n}.{p}", "blocks.{i}.mlp.fc{n}.{p}"),)
NORMS = (
    same("layernorm_before.{p}", "blocks.{i}.norm1.{p}"),
    same("layernorm_after.{p}", "blocks.{i}.norm2.{p}"),
)
DENSE = (
    same("intermediate.dense.{p}", "blocks.{i}.mlp.fc1.{p}"),
    same("output.dense.{p}", "blocks.{i}.mlp.fc2.{p}"),
)
LAYER, CLASSIC_LAYER = "{b}layers.{i}.", "{b}encoder.layer.{i}."
VIT_BLOCK = (
    *within(LAYER, (*NORMS, *NEW, *MLP)),
    *in_version("v4", within(CLASSIC_LAYER, (*NORMS, *OLD, *DENSE))),
)
DINO_BLOCK = (
    *within(
        CLASSIC_LAYER,
        (
            same("norm{n}.{p}", "blocks.{i}.norm{n}.{p}"),
            same("layer_scale{n}.lambda1", "blocks.{i}.scale{n}.factor"),
            *NEW,
            fuse(
                ["mlp.gate_proj.{p}", "mlp.up_proj.{p}"],
                "blocks.{i}.mlp.fc1.{p}",
                activation="swiglu",
            ),
            same("mlp.down_proj.{p}", "blocks.{i}.mlp.fc2.{p}", activation="swiglu"),
        ),
    ),
    *in_version(
        "v4",
        within(
            CLASSIC_LAYER,
            (
                *OLD,
                same("mlp.weights_in.{p}", "blocks.{i}.mlp.fc1.{p}", activation="swiglu"),
                same("mlp.weights_out.{p}", "blocks.{i}.mlp.fc2.{p}", activation="swiglu"),
            ),
        ),
    ),
    *within(CLASSIC_LAYER, MLP),
)
UNMASKED = "only masked pre-training reads it"
REGISTERS = (same("{b}embeddings.register_tokens", "registers"),)
# Without a head of its own it is a token that the others may read, which is what a register is.
DISTILLATION = (
    same("{b}embeddings.distillation_token", "distillation", distilled=True),
    same("{b}embeddings.distillation_token", "registers", distilled=False),
    same("cls_classifier.{p}", "head.classes.{p}", distilled=True),
    same("distillation_classifier.{p}", "head_distilled.classes.{p}", distilled=True),
)
# DINOv2 with registers cannot be told to do without one.
MASK = (supply("{b}embeddings.mask_token", lambda config: torch.zeros(1, config.dim), UNMASKED),)
DECODED = "the decoder of masked pre-training is not part of the encoder"
DECODER = (drop("decoder.decoder_*", why=DECODED), drop("decoder.mask_token", why=DECODED))


def slotted(wanted: int) -> Op:
    """A prefix token without a position is one whose position is zero, and theirs all have one."""

    def write(table: Tensor, config: ViTConfig) -> Tensor:
        zeros = table.new_zeros(1, wanted - config.slots, table.shape[2])
        return torch.cat([table[:, : config.slots], zeros, table[:, config.slots :]], dim=1)

    return Op(lambda table, _: table, write)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What sets one of transformers' ViTs apart from the others."""

    model_type: str
    classes: str  # how the names of its classes begin
    base: str  # what a model with a head calls its encoder
    about: str
    block: tuple[Row, ...] = VIT_BLOCK
    own: tuple[Row, ...] = ()  # rows beside those of its blocks
    mark: str = "embeddings.cls_token"  # a name without which it is another kind
    slots: int = 1  # tokens before the patches that have a position
    distills: bool = False  # the second token is there with or without a head of its own
    gated: bool = False
    head_pool: str = "cls"
    eps: float = 1e-12
    usual: Preprocessing = files.CROPPED
    resize: ResizeMethod = "hf"
    square: bool = False
    supports: Mapping[str, Any] = field(default_factory=dict)
    why_unsupported: Callable[[ViTConfig], str | None] = lambda _: None
    extras: Callable[[ViTConfig], dict[str, Any]] = lambda _: {}


def rows(kind: Kind) -> tuple[Row, ...]:
    return (
        same("{b}embeddings.cls_token", "cls"),
        same("{b}embeddings.patch_embeddings.projection.{p}", "patches.projection.{p}"),
        reshape("{b}embeddings.position_embeddings", "positions.table", slotted(kind.slots)),
        *kind.block,
        same("{b}layernorm.{p}", "norm.{p}"),
        *kind.own,
        same("classifier.{p}", "head.classes.{p}", distilled=False),
        drop("{b}pooler.*", why="transformers' classifiers do not read the pooler either"),
        drop("{b}embeddings.mask_token", why=UNMASKED),
        drop("decoder.[0-9]*", why=DECODED),
    )


def accepts(kind: Kind, foreign: Foreign) -> bool:
    """By the tensor that marks the kind; its encoder alone may be marked by config.json."""
    named = foreign.sidecars.get("config.json", {}).get("model_type") == kind.model_type
    marks = [f"{base}{kind.mark}" for base in (kind.base, "")]
    return any(mark in foreign.tensors for mark in marks) or (named and kind is VIT_MAE)


def unbound(kind: Kind, config: ViTConfig, bound: Mapping[str, int]) -> dict[str, str]:
    """A model without a head is its encoder itself, and has no name inside another."""
    return {"b": kind.base if config.num_classes else ""}


def hints(kind: Kind, foreign: Foreign, request: Request) -> Facts:
    """Whether a second token has a head of its own; without any head config.json tells."""
    head = head_of(foreign)
    classes = " ".join(files.read_config(foreign).architectures or ())
    second = head == "cls_classifier" if head is not None else "WithTeacher" in classes
    return {"distilled": kind.distills and second}


def sidecar_facts(kind: Kind, foreign: Foreign, facts: Facts) -> Facts:
    told = files.read_config(foreign)
    reads = head_of(foreign) or "ForImageClassification" in " ".join(told.architectures or ())
    found: Facts = {
        "heads": told.num_attention_heads,
        "image_size": told.image_size,
        "square": True,
        "prefix_positions": kind.slots,
        "pool": kind.head_pool if reads else "cls",
        "norm_eps": kind.eps if told.layer_norm_eps is None else told.layer_norm_eps,
    }
    if facts.get("activation") != "swiglu":
        found["activation"] = files.read_activation(told, foreign.source)
    if facts["layer_scale"] is not None:
        found["layer_scale"] = 1.0 if told.layerscale_value is None else told.layerscale_value
    if told.layer_norm_eps is None:
        found["notes"] = [f"LayerNorm eps {kind.eps:g}, which transformers takes when not told"]
    return found


def head_of(foreign: Foreign) -> str | None:
    found = (n for n in ("classifier", "cls_classifier") if f"{n}.weight" in foreign.tensors)
    return next(found, None)


def labels(foreign: Foreign) -> tuple[str, ...] | None:
    head = head_of(foreign)
    classes = foreign.shape(f"{head}.weight", 2)[0] if head else 0
    return files.read_labels(files.read_config(foreign), classes, foreign.source)


def why_unsupported(kind: Kind, config: ViTConfig) -> str | None:
    if config.activation == "swiglu" and not kind.gated:
        return "has no gated MLP"
    if config.slots > kind.slots:
        return f"has positions for {kind.slots} tokens before the patches, not for {config.slots}"
    return kind.why_unsupported(config)


def why_not_deit(config: ViTConfig) -> str | None:
    if config.prefix != 2:
        return f"has two tokens before the patches, not {config.prefix}"
    return None


def why_not_dino(config: ViTConfig) -> str | None:
    if config.layer_scale is None:
        return "has LayerScale in every block, this model none"
    if config.num_classes and config.pool != "cls+mean":
        return f'has a head that reads pool="cls+mean", not {config.pool!r}'
    if mlp_ratio(config) is None:
        return f"computes the MLP's width from a whole ratio, none gives {config.mlp_dim}"
    return None


def why_not_mae(config: ViTConfig) -> str | None:
    return "has no place for a head" if config.num_classes else None


def mlp_ratio(config: ViTConfig) -> int | None:
    """The whole number from which transformers computes the width of DINOv2's MLP, if any."""
    for ratio in range(1, 33):
        hidden = config.dim * ratio
        if config.activation == "swiglu":  # two thirds of it, rounded up to a multiple of 8
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp_dim:
            return ratio
    return None


def sidecars(kind: Kind, passport: Passport, config: ViTConfig) -> dict[str, dict[str, Any]]:
    reads = config.num_classes or config.distilled or config.pool != "cls"
    suffix = "ForImageClassification" if reads else "Model"
    written = files.write_config(
        passport,
        config,
        model_type=kind.model_type,
        architecture=kind.classes + suffix + ("WithTeacher" if config.distilled else ""),
        extras=kind.extras(config),
    )
    before = files.write_preprocessing(passport.preprocessing)
    return {"config.json": written, "preprocessor_config.json": before}


def extras_vit(config: ViTConfig) -> dict[str, Any]:
    return {"intermediate_size": config.mlp_dim, "encoder_stride": config.patch_size}


def extras_mae(config: ViTConfig) -> dict[str, Any]:
    return {"intermediate_size": config.mlp_dim}


def extras_dino(config: ViTConfig) -> dict[str, Any]:
    written = {
        "mlp_ratio": mlp_ratio(config),
        "use_swiglu_ffn": config.activation == "swiglu",
        "layerscale_value": float(config.layer_scale or 1.0),
        "drop_path_rate": 0.0,
    }
    if config.registers:
        return written | {"num_register_tokens": config.registers}
    return written | {"use_mask_token": False}


BLOCKS = {"qkv_bias": ("qkv", "none")}
VIT = Kind(
    model_type="vit",
    classes="ViT",
    base="vit.",
    about="ViT with a class token",
    usual=files.SQUEEZED,
    supports=BLOCKS,
    extras=extras_vit,
)
DEIT = Kind(
    model_type="deit",
    classes="DeiT",
    base="deit.",
    about="DeiT with one head or two",
    own=DISTILLATION,
    mark="embeddings.distillation_token",
    slots=2,
    distills=True,
    supports=BLOCKS | {"distilled": ANY, "registers": (0, 1)},
    why_unsupported=why_not_deit,
    extras=extras_vit,
)
DINOV2 = Kind(
    model_type="dinov2",
    classes="Dinov2",
    base="dinov2.",
    about="DINOv2",
    block=DINO_BLOCK,
    gated=True,
    head_pool="cls+mean",
    eps=1e-6,
    # transformers tells bicubic the size, where DINOv2's own code gave it a scale with an offset
    resize="hf",
    square=True,  # its code takes the root of the number of patches
    supports=BLOCKS | {"layer_scale": ANY, "pool": ("cls", "cls+mean")},
    why_unsupported=why_not_dino,
    extras=extras_dino,
)
DINOV2_WITH_REGISTERS = replace(
    DINOV2,
    model_type="dinov2_with_registers",
    classes="Dinov2WithRegisters",
    base="dinov2_with_registers.",
    about="DINOv2 with registers",
    own=REGISTERS + MASK,
    mark="embeddings.register_tokens",
    resize="dinov2_registers",
    supports={**DINOV2.supports, "registers": range(1, 1 << 16)},
)
VIT_MAE = Kind(
    model_type="vit_mae",
    classes="ViTMAE",
    base="vit.",
    about="the encoder of a masked autoencoder",
    own=DECODER,
    mark="decoder.decoder_embed.weight",  # its encoder is a ViT like any other
    supports=BLOCKS,
    why_unsupported=why_not_mae,
    extras=extras_mae,
)
KINDS = (VIT, DEIT, DINOV2, DINOV2_WITH_REGISTERS, VIT_MAE)


def dialect_of(kind: Kind) -> Dialect:
    return Dialect(
        name=f"transformers-{kind.model_type}",
        about=f"Hugging Face transformers: {kind.about}, names of version 5",
        rows=rows(kind),
        values={"b": (kind.base, "")},
        hints=partial(hints, kind),
        sidecar_facts=partial(sidecar_facts, kind),
        unbound=partial(unbound, kind),
        accepts=partial(accepts, kind),
        preprocessing=lambda foreign, config: files.read_preprocessing(foreign, config, kind.usual),
        resize=kind.resize,
        supports={**kind.supports, "dim_head": ANY},
        square=kind.square,
        why_unsupported=partial(why_unsupported, kind),
        sidecars=partial(sidecars, kind),
        labels=labels,
        multi_label=files.read_multi_label,
        architectures=AllowList("transformers", {kind.model_type}.__contains__, kind.classes),
    )


def written_by_4(dialect: Dialect) -> Dialect:
    """Version 4 derives the width of a head."""
    supports = {name: values for name, values in dialect.supports.items() if name != "dim_head"}
    return replace(dialect, supports=supports)


VERSIONS = tuple(both_versions(dialect_of(kind)) for kind in KINDS)
TRANSFORMERS = (*(new for new, _ in VERSIONS), *(written_by_4(old) for _, old in VERSIONS))
