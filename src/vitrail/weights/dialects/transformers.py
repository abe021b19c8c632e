"""Hugging Face transformers: ViT, DeiT, DINOv2 with or without registers, the encoder of ViTMAE.

Each in the names of version 5 (`vit.layers.0.attention.q_proj.weight`) and, with the suffix -v4, in
the classic ones (`vit.encoder.layer.0.attention.attention.query.weight`), which both versions read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing, ResizeMethod
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialects import transformers_names as names
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.old_dialect import ANY, AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Row, expand, reshape


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What sets one of transformers' ViTs apart from the others, in the names of one version."""

    model_type: str
    classes: str  # how the names of its classes begin
    base: str  # what a model with a head calls its encoder
    about: str
    spelling: names.Spelling
    marks: tuple[str, ...] = ()  # names without which it is another kind
    lacks: tuple[str, ...] = ()  # and names that only another kind has
    proof: str | None = None  # a name that settles it where config.json does not
    slots: int = 1  # tokens before the patches that have a position
    distills: bool = False  # the second token is there with or without a head of its own
    scales: bool = False  # LayerScale in every block
    head_pool: str = "cls"
    eps: float = 1e-12
    usual: Preprocessing = files.CROPPED
    resize: ResizeMethod = "hf"
    square: bool = False
    holds: Mapping[str, Any] = field(default_factory=dict)
    clashes: Callable[[ViTConfig], str | None] = lambda _: None
    extras: Callable[[ViTConfig], dict[str, Any]] = lambda _: {}


def rows(kind: Kind, config: ViTConfig) -> list[Row]:
    # a model without a head is its encoder itself, and has no name inside another
    bases = (kind.base, "") if config.num_classes else ("", kind.base)
    gated = config.activation == "swiglu"
    table = [
        *names.TOKENS,
        reshape(
            "{b}embeddings.position_embeddings",
            "positions.table",
            names.slotted(config.slots, kind.slots),
        ),
        *kind.spelling.block,
        *(kind.spelling.gated or [] if gated else kind.spelling.mlp),
        *(names.DISTILLATION if kind.distills else names.REGISTERS),
        *(names.TWO_HEADS if config.distilled else names.HEAD),
    ]
    if config.registers and not kind.distills:
        table.append(names.mask_token(bases[0], config.dim))
    axes = {"b": bases, "i": range(config.depth), "p": names.PARTS}
    return expand([*table, *names.UNREAD], **axes)


def claims(kind: Kind, foreign: Foreign) -> bool:
    told = foreign.sidecars.get("config.json", {}).get("model_type")
    if isinstance(told, str) and told != kind.model_type:
        return False
    if kind.proof is not None and kind.proof not in foreign.tensors and told != kind.model_type:
        return False
    block = [
        next(row.theirs[0] for row in kind.spelling.block if row.ours == (ours,))
        for ours in ("blocks.{i}.norm1.{p}", "blocks.{i}.attention.qkv.{p}")
    ]
    for base in (kind.base, ""):
        has, lacks = (
            [name.format(b=base, i=0, p="weight") in foreign.tensors for name in group]
            for group in ((*block, *kind.marks, "{b}embeddings.cls_token"), kind.lacks)
        )
        if all(has) and not any(lacks):
            return True
    return False


def infer(kind: Kind, foreign: Foreign) -> Facts:
    told = files.read_config(foreign)
    base = kind.base if f"{kind.base}embeddings.cls_token" in foreign.tensors else ""

    def spelled(ours: str, table: list[Row], block: int | str = 0) -> str:
        """Their name for a weight of ours."""
        name = next(row.theirs[0] for row in table if row.ours == (ours,))
        return name.format(b=base, i=block, p="weight")

    kernel = shape(foreign, f"{base}embeddings.patch_embeddings.projection.weight", axes=4)
    query = spelled("blocks.{i}.attention.qkv.{p}", kind.spelling.block)
    last = [
        spelled("blocks.{i}.mlp.fc2.{p}", table)
        for table in (kind.spelling.mlp, kind.spelling.gated or kind.spelling.mlp)
    ]
    gated = last[0] not in foreign.tensors
    facts: Facts = {
        "dim": kernel[0],
        "channels": kernel[1],
        "patch_size": kernel[2],
        "depth": foreign.count(spelled("blocks.{i}.norm1.{p}", kind.spelling.block, "{}")),
        "heads": told.num_attention_heads,
        "inner": shape(foreign, query)[0],
        "mlp_dim": shape(foreign, last[gated])[1],
        "image_size": told.image_size,
        "square": True,
        "table": shape(foreign, f"{base}embeddings.position_embeddings", axes=3)[1],
        "prefix_positions": kind.slots,
        "qkv_bias": "qkv" if query.replace("weight", "bias") in foreign.tensors else "none",
        "patch_bias": f"{base}embeddings.patch_embeddings.projection.bias" in foreign.tensors,
        "activation": "swiglu" if gated else files.read_activation(told, foreign.source),
        "norm_eps": told.layer_norm_eps,
        **infer_head(kind, foreign, told),
    }
    if f"{base}embeddings.register_tokens" in foreign.tensors:
        facts["registers"] = shape(foreign, f"{base}embeddings.register_tokens", axes=3)[1]
    if kind.scales:
        facts["layer_scale"] = 1.0 if told.layerscale_value is None else told.layerscale_value
    if told.layer_norm_eps is None:
        facts["norm_eps"] = kind.eps
        facts["notes"] = [f"LayerNorm eps {kind.eps:g}, which transformers takes when not told"]
    return facts


def infer_head(kind: Kind, foreign: Foreign, told: files.Told) -> Facts:
    """What reads which tokens; without any head the class in config.json still tells that."""
    head = head_of(foreign)
    classes = " ".join(told.architectures or ())
    distilled = kind.distills and (
        head == "cls_classifier" if head is not None else "WithTeacher" in classes
    )
    reads = head is not None or "ForImageClassification" in classes
    return {
        "num_classes": shape(foreign, f"{head}.weight")[0] if head else 0,
        "head_bias": head is None or f"{head}.bias" in foreign.tensors,
        "pool": kind.head_pool if reads else "cls",
        "distilled": distilled,
        "registers": int(kind.distills and not distilled),
    }


def head_of(foreign: Foreign) -> str | None:
    found = (n for n in ("classifier", "cls_classifier") if f"{n}.weight" in foreign.tensors)
    return next(found, None)


def shape(foreign: Foreign, name: str, axes: int = 2) -> tuple[int, ...]:
    found = foreign.shape(name)
    if len(found) != axes or 0 in found:
        raise UserError(
            f"{foreign.source}: {name} has the shape {found}, but must have {axes} axes, none empty"
        )
    return found


def labels(foreign: Foreign) -> tuple[str, ...] | None:
    head = head_of(foreign)
    classes = shape(foreign, f"{head}.weight")[0] if head else 0
    return files.read_labels(files.read_config(foreign), classes, foreign.source)


def clashes(kind: Kind, config: ViTConfig) -> str | None:
    if config.activation == "swiglu" and kind.spelling.gated is None:
        return "has no gated MLP"
    if config.slots > kind.slots:
        return f"has positions for {kind.slots} tokens before the patches, not for {config.slots}"
    return kind.clashes(config)


def clashes_deit(config: ViTConfig) -> str | None:
    if config.prefix != 2:
        return f"has two tokens before the patches, not {config.prefix}"
    return None


def clashes_dino(config: ViTConfig) -> str | None:
    if config.layer_scale is None:
        return "has LayerScale in every block, this model none"
    if config.num_classes and config.pool != "cls+mean":
        return f'has a head that reads pool="cls+mean", not {config.pool!r}'
    if mlp_ratio(config) is None:
        return f"computes the MLP's width from a whole ratio, none gives {config.mlp_dim}"
    return None


def clashes_mae(config: ViTConfig) -> str | None:
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
    spelling=names.VIT_5,
    marks=("{b}embeddings.position_embeddings",),
    lacks=(
        "{b}embeddings.distillation_token",
        "decoder.decoder_embed.weight",
        "{b}layers.0.lambda_1",  # BEiT
        "{b}encoder.layer.0.lambda_1",
    ),
    usual=files.SQUEEZED,
    holds=BLOCKS,
    extras=extras_vit,
)
DEIT = Kind(
    model_type="deit",
    classes="DeiT",
    base="deit.",
    about="DeiT with one head or two",
    spelling=names.VIT_5,
    marks=("{b}embeddings.distillation_token",),
    slots=2,
    distills=True,
    holds=BLOCKS | {"distilled": ANY, "registers": (0, 1)},
    clashes=clashes_deit,
    extras=extras_vit,
)
DINOV2 = Kind(
    model_type="dinov2",
    classes="Dinov2",
    base="dinov2.",
    about="DINOv2",
    spelling=names.DINO_5,
    lacks=("{b}embeddings.register_tokens",),
    scales=True,
    head_pool="cls+mean",
    eps=1e-6,
    # transformers tells bicubic the size, where DINOv2's own code gave it a scale with an offset
    resize="hf",
    square=True,  # its code takes the root of the number of patches
    holds=BLOCKS | {"layer_scale": ANY, "pool": ("cls", "cls+mean")},
    clashes=clashes_dino,
    extras=extras_dino,
)
DINOV2_WITH_REGISTERS = replace(
    DINOV2,
    model_type="dinov2_with_registers",
    classes="Dinov2WithRegisters",
    base="dinov2_with_registers.",
    about="DINOv2 with registers",
    marks=("{b}embeddings.register_tokens",),
    lacks=(),
    resize="dinov2_registers",
    holds={**DINOV2.holds, "registers": range(1, 1 << 16)},
)
VIT_MAE = Kind(
    model_type="vit_mae",
    classes="ViTMAE",
    base="vit.",
    about="the encoder of a masked autoencoder",
    spelling=names.VIT_5,
    proof="decoder.decoder_embed.weight",  # its encoder is a ViT like any other
    marks=("{b}embeddings.position_embeddings",),
    holds=BLOCKS,
    clashes=clashes_mae,
    extras=extras_mae,
)
KINDS = (VIT, DEIT, DINOV2, DINOV2_WITH_REGISTERS, VIT_MAE)


def speak(kind: Kind, version: str) -> Dialect:
    spelled = "classic names, which versions 4 and 5 read" if version else "names of version 5"
    return Dialect(
        name=f"transformers-{kind.model_type}{version}",
        about=f"Hugging Face transformers: {kind.about}, {spelled}",
        claims=partial(claims, kind),
        infer=partial(infer, kind),
        rows=partial(rows, kind),
        preprocessing=lambda foreign, config: files.read_preprocessing(foreign, config, kind.usual),
        resize=kind.resize,
        # version 4 derives the width of a head
        holds=kind.holds if version else {**kind.holds, "dim_head": ANY},
        square=kind.square,
        clashes=partial(clashes, kind),
        sidecars=partial(sidecars, kind),
        labels=labels,
        multi_label=files.read_multi_label,
        computes=AllowList("transformers", {kind.model_type}.__contains__, kind.classes),
    )


def classic(kind: Kind) -> Kind:
    return replace(kind, spelling=names.DINO_4 if kind.scales else names.VIT_4)


TRANSFORMERS = tuple(speak(kind, "") for kind in KINDS) + tuple(
    speak(classic(kind), "-v4") for kind in KINDS
)
