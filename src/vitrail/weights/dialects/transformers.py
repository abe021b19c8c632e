"""ViT, DeiT, DINOv2 with or without registers, the encoder of ViTMAE.

Each in the names of version 5 (`vit.layers.0.attention.q_proj.weight`) and in the classic ones
(`vit.encoder.layer.0.attention.attention.query.weight`), which both versions read. Version 5 holds
new names in memory but still writes the old ones to disk. {root} is what a model with a head calls
its encoder, such as "vit.".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.core.passport import Preprocessing, ResizeMethod
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign, both_versions
from vitrail.weights.dialects import transformers_config as files
from vitrail.weights.dialects.facebook import DECODER_PARTS
from vitrail.weights.dialects.transformers_processor import CROPPED, SQUEEZED
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
LAYER, CLASSIC_LAYER = "{root}layers.{i}.", "{root}encoder.layer.{i}."
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
REGISTERS = (same("{root}embeddings.register_tokens", "registers"),)
# Without a head of its own it is a token that the others may read, which is what a register is.
DISTILLATION = (
    same("{root}embeddings.distillation_token", "distillation", distilled=True),
    same("{root}embeddings.distillation_token", "registers", distilled=False),
    same("cls_classifier.{p}", "head.classes.{p}", distilled=True),
    same("distillation_classifier.{p}", "head_distilled.classes.{p}", distilled=True),
)
# DINOv2 with registers has no option to do without one.
MASK = (supply("{root}embeddings.mask_token", lambda config: torch.zeros(1, config.dim), UNMASKED),)
DECODED = "the decoder of masked pre-training is not part of the encoder"
# Version 5 writes classic names too, but spells the decoder's as if they were the encoder's.
DECODER_ROWS = (
    *within("decoder.decoder_", DECODER_PARTS),
    *within("decoder.decoder_layers.{i}.", (*NORMS, *NEW, *MLP)),
    *in_version("v4", within("decoder.decoder_layers.{i}.", (*NORMS, *OLD, *DENSE))),
    *within("decoder.decoder_encoder.layer.{i}.", (*NORMS, *OLD, *DENSE)),
    same("decoder.mask_token", "mask"),
)
DECODER = (drop("decoder.decoder_*", why=DECODED), drop("decoder.mask_token", why=DECODED))


def slotted(wanted: int) -> Op:
    """A prefix token without a position is one whose position is zero, and theirs all have one."""

    def write(table: Tensor, config: ViTConfig) -> Tensor:
        zeros = table.new_zeros(1, wanted - config.slots, table.shape[2])
        return torch.cat([table[:, : config.slots], zeros, table[:, config.slots :]], dim=1)

    return Op(lambda table, _: table, write)


@dataclass(frozen=True, kw_only=True)
class Kind(files.Kind):
    """What sets one of transformers' ViTs apart from the others."""

    about: str
    fields: Mapping[str, str] = field(default_factory=lambda: WITH_MLP)
    reads: tuple[str, ...] = ("num_attention_heads", "image_size", "hidden_act", "layer_norm_eps")
    usual: Preprocessing = CROPPED
    eps: float | None = 1e-12
    block: tuple[Row, ...] = VIT_BLOCK
    own: tuple[Row, ...] = ()  # rows beside those of its blocks
    decoder: tuple[Row, ...] = ()
    mark: str = "embeddings.cls_token"  # a name without which it is another kind
    slots: int = 1  # tokens before the patches that have a position
    distills: bool = False  # the second token is there with or without a head of its own
    gated: bool = False
    head_pool: str = "cls"
    resize: ResizeMethod = "hf"
    square: bool = False
    supports: Mapping[str, Any] = field(default_factory=dict)
    why_unsupported: Callable[[ViTConfig], str | None] = lambda _: None

    def class_name(self, config: ViTConfig) -> str:
        with_head, without = self.suffixes
        reads = config.num_classes or config.distilled or config.pool != "cls"
        teacher = "WithTeacher" if config.distilled else ""
        return self.classes + (with_head if reads else without) + teacher


def rows(kind: Kind) -> tuple[Row, ...]:
    return (
        same("{root}embeddings.cls_token", "cls"),
        same("{root}embeddings.patch_embeddings.projection.{p}", "patches.projection.{p}"),
        reshape("{root}embeddings.position_embeddings", "positions.table", slotted(kind.slots)),
        *kind.block,
        same("{root}layernorm.{p}", "norm.{p}"),
        *kind.own,
        same("classifier.{p}", "head.classes.{p}", distilled=False),
        drop("{root}pooler.*", why="transformers' classifiers do not read the pooler either"),
        drop("{root}embeddings.mask_token", why=UNMASKED),
        drop("decoder.[0-9]*", why=DECODED),
    )


def accepts(kind: Kind, foreign: Foreign) -> bool:
    """By the tensor that marks the kind; the encoder of an autoencoder alone by config.json."""
    named = foreign.sidecars.get(files.CONFIG, {}).get("model_type") == kind.model_type
    marks = [f"{base}{kind.mark}" for base in (kind.base, "")]
    return any(mark in foreign.tensors for mark in marks) or (named and bool(kind.decoder))


def hints(kind: Kind, foreign: Foreign, request: Request) -> Facts:
    """Whether a second token has a head of its own; without any head config.json specifies it."""
    head, classes = files.head_of(foreign), files.architectures_of(foreign)
    second = head == "cls_classifier" if head is not None else "WithTeacher" in classes
    return {"distilled": kind.distills and second}


def sidecar_facts(kind: Kind, foreign: Foreign, facts: Facts) -> Facts:
    classifies = "ForImageClassification" in files.architectures_of(foreign)
    found: Facts = {
        "activation": "gelu",
        "layer_scale": 1.0,
        "square": True,
        "prefix_positions": kind.slots,
        "pool": kind.head_pool if classifies or files.head_of(foreign) else "cls",
        **kind.facts(foreign),
    }
    if facts.get("activation") == "swiglu":
        del found["activation"]
    if facts["layer_scale"] is None:
        del found["layer_scale"]
    return found


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


def extras(config: ViTConfig) -> dict[str, Any]:
    written: dict[str, Any] = {"qkv_bias": config.qkv_bias == "qkv"}
    return written if config.dim_head is None else written | {"head_dim": config.dim_head}


def extras_dino(config: ViTConfig) -> dict[str, Any]:
    return extras(config) | {
        "mlp_ratio": mlp_ratio(config),
        "use_swiglu_ffn": config.activation == "swiglu",
        "layerscale_value": float(config.layer_scale or 1.0),
        "drop_path_rate": 0.0,
        **({} if config.registers else {"use_mask_token": False}),
    }


WITH_MLP: dict[str, str] = files.VIT | {"intermediate_size": "mlp_dim"}
WITH_STRIDE = WITH_MLP | {"encoder_stride": "patch_size"}
BLOCKS = {"qkv_bias": ("qkv", "none")}
VIT = Kind(
    model_type="vit",
    classes="ViT",
    about="ViT with a class token",
    fields=WITH_STRIDE,
    usual=SQUEEZED,
    supports=BLOCKS,
    extras=extras,
)
DEIT = Kind(
    model_type="deit",
    classes="DeiT",
    about="DeiT with one head or two",
    fields=WITH_STRIDE,
    own=DISTILLATION,
    mark="embeddings.distillation_token",
    slots=2,
    distills=True,
    supports=BLOCKS | {"distilled": ANY, "registers": (0, 1)},
    why_unsupported=why_not_deit,
    extras=extras,
)
DINOV2 = Kind(
    model_type="dinov2",
    classes="Dinov2",
    about="DINOv2",
    fields=files.VIT | {"layerscale_value": "layer_scale"},
    reads=(*VIT.reads, "layerscale_value"),
    block=DINO_BLOCK,
    gated=True,
    head_pool="cls+mean",
    eps=1e-6,
    # transformers passes bicubic the size, where DINOv2's own code gave it a scale with an offset
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
    about="DINOv2 with registers",
    fields={**DINOV2.fields, "num_register_tokens": "registers"},
    own=REGISTERS + MASK,
    mark="embeddings.register_tokens",
    resize="dinov2_registers",
    supports={**DINOV2.supports, "registers": range(1, 1 << 16)},
)
VIT_MAE = Kind(
    model_type="vit_mae",
    classes="ViTMAE",
    prefix="vit.",
    about="the encoder of a masked autoencoder",
    own=DECODER,
    decoder=DECODER_ROWS,
    mark="decoder.decoder_embed.weight",  # its encoder is a ViT like any other
    supports=BLOCKS,
    why_unsupported=why_not_mae,
    extras=extras,
)
KINDS = (VIT, DEIT, DINOV2, DINOV2_WITH_REGISTERS, VIT_MAE)


def dialect_of(kind: Kind) -> Dialect:
    return Dialect(
        **kind.in_common
        | {
            "about": f"{kind.about}, names of version 5",
            "rows": rows(kind),
            "decoder": kind.decoder,
            "hints": partial(hints, kind),
            "sidecar_facts": partial(sidecar_facts, kind),
            "accepts": partial(accepts, kind),
            "resize": kind.resize,
            "supports": {**kind.supports, "dim_head": ANY},
            "square": kind.square,
            "why_unsupported": partial(why_unsupported, kind),
        }
    )


def written_by_4(dialect: Dialect) -> Dialect:
    """Version 4 derives the width of a head."""
    supports = {name: values for name, values in dialect.supports.items() if name != "dim_head"}
    return replace(dialect, supports=supports)


VERSIONS = tuple(both_versions(dialect_of(kind)) for kind in KINDS)
TRANSFORMERS = (*(new for new, _ in VERSIONS), *(written_by_4(old) for _, old in VERSIONS))
