"""timm: ViT, DeiT with and without distillation, DeiT III, hybrids, registers, CLIP's norms."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vitrail.core.errors import UserError
from vitrail.core.passport import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    INCEPTION,
    Preprocessing,
)
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign, architecture_of
from vitrail.weights.dialects import timm_architectures as architectures
from vitrail.weights.dialects.timm_architectures import EPS, EPS_CLIP
from vitrail.weights.dialects.timm_config import (
    ACTIVATIONS,
    SHAPE,
    arguments_by_name,
    config_arguments,
    evaluated,
    in_common,
    section,
)
from vitrail.weights.rows import Facts, drop, same, supply, within

BLOCK = (
    same("blocks.{i}.norm{n}.{p}", "blocks.{i}.norm{n}.{p}"),
    same("blocks.{i}.attn.qkv.{p}", "blocks.{i}.attention.qkv.{p}"),
    same("blocks.{i}.attn.proj.{p}", "blocks.{i}.attention.out.{p}"),
)
SCALES = (same("blocks.{i}.ls{n}.gamma", "blocks.{i}.scale{n}.factor"),)
MLP = (same("blocks.{i}.mlp.fc{n}.{p}", "blocks.{i}.mlp.fc{n}.{p}"),)
STEM = (
    same("patch_embed.backbone.{root}conv.weight", "stem.root.conv.weight"),
    same("patch_embed.backbone.{root}norm.{p}", "stem.root.norm.{p}"),
    *within(
        "patch_embed.backbone.stages.{s}.blocks.{u}.",
        (
            same("conv{c}.weight", "stem.stages.{s}.{u}.conv{c}.weight"),
            same("norm{c}.{p}", "stem.stages.{s}.{u}.norm{c}.{p}"),
            same("downsample.conv.weight", "stem.stages.{s}.{u}.shortcut.0.weight"),
            same("downsample.norm.{p}", "stem.stages.{s}.{u}.shortcut.1.{p}"),
        ),
    ),
)
# All but the head, which others put on top of timm's models too.
TRUNK = (
    same("cls_token", "cls"),
    same("dist_token", "distillation"),
    same("reg_token", "registers"),
    same("pos_embed", "positions.table"),
    same("patch_embed.proj.{p}", "patches.projection.{p}"),
    *STEM,
    same("norm_pre.{p}", "embed_norm.{p}"),
    *(*BLOCK, *SCALES, *MLP),
    # to the class token it is the same whether the norm comes before pooling or after
    same("fc_norm.{p}", "norm.{p}", final_norm="pooled", pool="mean"),
    same("norm.{p}", "norm.{p}"),
)
HEAD = (
    same("head.{p}", "head.classes.{p}"),
    same("head_dist.{p}", "head_distilled.classes.{p}"),
    supply(
        "head.bias",
        lambda config: torch.zeros(config.num_classes),
        why="timm's head always has a bias",
        like="head.classes.weight",
        head_bias=False,  # as CLIP's projection
    ),
    drop("pre_logits.*", why="timm's own model has no hidden head layer and does not read it"),
)
# Without stages the stem is the whole backbone.
VALUES = {"root": ("stem.", "")}


def unbound(config: ViTConfig, bound: Mapping[str, int]) -> dict[str, str]:
    return {"root": "stem." if config.stem and config.stem.blocks else ""}


def sidecar_facts(foreign: Foreign, facts: Facts) -> Facts:
    """What timm's kind of model has, and what its config.json adds."""
    found = model_facts(facts)
    if architecture_of(foreign) is None:
        return found | {"notes": assumptions(facts | found)} | config_arguments(foreign)
    refuse_arguments(foreign)
    return found | named_facts(foreign, facts) | config_arguments(foreign)


def model_facts(facts: Facts) -> Facts:
    """What timm's own models of this kind have."""
    # most files with a norm before the blocks are CLIP's, where eps is torch's own
    found: Facts = {"norm_eps": EPS_CLIP if facts["embed_norm"] else EPS}
    if facts["stem"]:
        found["stem"] = replace(facts["stem"], standardize="timm", norm_eps=1e-5)
    return found


def named_facts(foreign: Foreign, facts: Facts) -> Facts:
    """What the architecture's name specifies; a gate is in the tensors."""
    named = architectures.vit_facts(str(foreign.sidecars["config.json"].get("architecture"))) or {}
    return {
        k: v for k, v in named.items() if (k, facts.get("activation")) != ("activation", "swiglu")
    }


def refuse_arguments(foreign: Foreign) -> None:
    """An argument that no tensor shows and that we do not know may change what is computed."""
    arguments = section(foreign, "model_args")
    act = arguments.get("act_layer")
    strange = [k for k, v in arguments.items() if k not in architectures.ARGUMENTS and v]
    strange += ["act_layer"] if act is not None and act not in ACTIVATIONS else []
    if strange:
        raise UserError(
            f"{foreign.source}: config.json specifies {strange[0]}={arguments[strange[0]]!r}, "
            "which Vitrail does not compute"
        )


def assumptions(facts: Facts) -> list[str]:
    """What timm's own models of this kind have, and others with the same tensors may not."""
    mean = normalisation(facts["embed_norm"], facts["distilled"], facts["layer_scale"])[0]
    found = [
        f"pixels normalised with the mean {mean[0]}, {mean[1]}, {mean[2]} and cropped as timm "
        "does, because no config.json specifies it: for weights of DeiT, DINO or MAE give "
        "dialect=deit, dino or mae"
    ]
    if facts["embed_norm"]:
        found.append(
            "exact GELU, because no config.json specifies it: for OpenAI's CLIP weights and others "
            "trained with quick GELU give activation=quick_gelu"
        )
        found.append(
            f"norm_eps {facts['norm_eps']:g} as in timm's CLIP models, because no "
            f"config.json specifies it: for others give norm_eps={EPS:g}"
        )
    elif not facts["class_token"]:
        found.append(
            "exact GELU, because no config.json specifies it: some of SigLIP's have its tanh form, "
            "activation=gelu_tanh"
        )
    else:
        pooled = "the head reads the class token and " if facts["pool"] == "cls" else ""
        found.append(
            f"{pooled}GELU is exact, because no config.json specifies it: for others give "
            f"{'pool=mean or ' if pooled else ''}activation=quick_gelu"
        )
    return found


def doubts(foreign: Foreign) -> str | None:
    """Without a class token and normed after pooling: timm published only a post-norm model so."""
    if architecture_of(foreign) is not None or "cls_token" in foreign.tensors:
        return None
    if "fc_norm.weight" not in foreign.tensors:
        return None
    return (
        "a plain ViT and the post-norm one of timm (vit_base_patch16_rpn_224) have the same "
        "tensors: put timm's config.json beside it, or if it is a plain one, give dialect=timm"
    )


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """As pretrained_cfg specifies; otherwise as timm evaluates this kind of model."""
    mean, std = normalisation(config.embed_norm, config.distilled, config.layer_scale)
    # DeiT III and DINOv2, the models with LayerScale, are evaluated on the whole short side
    whole = max(config.image_size) >= 384 or config.layer_scale is not None
    return evaluated(foreign, config, mean=mean, std=std, crop=1.0 if whole else 0.9)


def normalisation(
    embed_norm: bool, distilled: bool, layer_scale: float | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of timm's models of a kind."""
    if embed_norm:
        return CLIP_MEAN, CLIP_STD
    if distilled or layer_scale is not None:
        return IMAGENET_MEAN, IMAGENET_STD
    return INCEPTION, INCEPTION


def arguments(config: ViTConfig) -> dict[str, Any]:
    written = arguments_by_name(SHAPE, config) | {
        # timm takes a ratio and floors the product
        "mlp_ratio": (hidden_of(config) + 0.5) / config.dim,
        "qkv_bias": config.qkv_bias == "qkv",
        "class_token": config.class_token,
        "no_embed_class": config.slots == 0,
        "reg_tokens": config.registers,
        "pre_norm": config.embed_norm,
        "final_norm": config.final_norm != "none",
        "fc_norm": config.final_norm == "pooled" and config.pool != "cls",
        "global_pool": "token" if config.pool == "cls" else "avg",
        "pos_embed": "none" if config.positions == "none" else "learn",
    }
    return written if config.activation == "swiglu" else written | {"act_layer": config.activation}


def why_unsupported(config: ViTConfig) -> str | None:
    if config.patch_bias == config.embed_norm:
        return "gives its patches a bias, or a norm after them, and never both or neither"
    if config.distilled and (config.registers or config.slots != 2):
        return "gives a distilled model two prefix tokens with a position each"
    if config.positions == "learned" and config.slots not in (0, config.prefix):
        return "gives all prefix tokens a position or none (prefix_positions=0 folds them in)"
    if config.stem is not None and config.stem.width != 64:
        return f"knows a ResNet of width 64, and this one has {config.stem.width}"
    return None


def hidden_of(config: ViTConfig) -> int:
    """timm counts gate and value of a SwiGLU together."""
    return config.mlp_dim * (2 if config.activation == "swiglu" else 1)


def architecture(config: ViTConfig) -> str | None:
    """The entry point of timm that computes this kind of model, where it has one; arguments do the
    rest."""
    if config.stem is not None:
        return STEMS.get(config.stem.blocks)
    if config.distilled:
        return "deit_base_distilled_patch16_224"
    if config.activation == "swiglu":
        return "vit_giant_patch14_dinov2"
    clip = config.norm_eps == EPS_CLIP  # a name decides eps, arguments the rest
    return "vit_base_patch16_clip_224" if clip else "vit_base_patch16_224"


# timm's hybrids by the blocks of their ResNet
STEMS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_base_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}

TIMM = Dialect(
    name="timm",
    about="pytorch-image-models: ViT, DeiT, DeiT III, hybrids, DINOv2, CLIP towers",
    rows=TRUNK + HEAD,
    values=VALUES,
    sidecar_facts=sidecar_facts,
    unbound=unbound,
    preprocessing=preprocessing,
    supports={
        "dim_head": (None,),
        "patch_size": ANY,
        "pool": ("cls", "mean"),
        "stem": ANY,
        "class_token": ANY,
        "distilled": ANY,
        "registers": ANY,
        "positions": ("learned", "none"),
        "patch_bias": ANY,
        "embed_norm": ANY,
        "final_norm": ANY,
        "qkv_bias": ("qkv", "none"),
        "layer_scale": ANY,
        "head_bias": ANY,
    },
    why_unsupported=why_unsupported,
    doubts=doubts,
    **in_common(architecture, arguments, architectures.is_vit, head="head"),
)
