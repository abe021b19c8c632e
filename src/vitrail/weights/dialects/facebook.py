"""deit, dino, dinov2 and mae of facebookresearch: timm's names but for some of each one's own.

What a file holds decides: `gamma_1` is DeiT III's; `decoder_` is MAE's, and so are positions that
were never learned; `mask_token`, `mlp.w12`, `register_tokens` and blocks in chunks are DINOv2's;
`backbone.` before every name is left by training DINO. A file with none of these is timm's by its
names: it is read as such unless a person names the dialect.
"""

import torch

from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects import timm
from vitrail.weights.dialects.preparation import below_384, cropped
from vitrail.weights.rows import Facts, drop, refuse, renamed, same, supply, within

TOKENS = (
    same("cls_token", "cls"),
    same("pos_embed", "positions.table"),
    same("patch_embed.proj.{p}", "patches.projection.{p}"),
)
BLOCK, MLP = timm.BLOCK, timm.MLP
GATED = (
    same("blocks.{i}.mlp.w12.{p}", "blocks.{i}.mlp.fc1.{p}", activation="swiglu"),
    same("blocks.{i}.mlp.w3.{p}", "blocks.{i}.mlp.fc2.{p}", activation="swiglu"),
)
NORM = (same("norm.{p}", "norm.{p}"),)
HEAD = (same("head.{p}", "head.classes.{p}"),)
# Before every name of the encoder in a training run's file.
VALUES = {"at": ("", "backbone.")}

MASKED = "stands for hidden patches in pre-training alone"
PROJECTED = "projects features for the self-supervised loss, and is no classifier"
PLAIN = (
    "read as DeiT III: RoPE-ViT with absolute positions has the same tensors, and rotates its "
    "queries and keys besides"
)
REBUILT = "the decoder rebuilds hidden pixels in pre-training alone: pretrain keeps it"
ALONE = "a linear head alone: load the file of its backbone, whose name ends in _pretrain.pth"

DEIT_ROWS = (
    *(*TOKENS, *BLOCK, *MLP, *NORM, *HEAD),
    same("dist_token", "distillation"),
    same("blocks.{i}.gamma_{n}", "blocks.{i}.scale{n}.factor"),
    same("head_dist.{p}", "head_distilled.classes.{p}"),
)
DINO_ROWS = (
    *within("{at}", (*TOKENS, *BLOCK, *MLP, *NORM, *HEAD)),
    drop("head.*", why=PROJECTED),
)
DINOV2_BLOCK = (*BLOCK, *GATED, *MLP, *timm.SCALES)
DINOV2_ROWS = (
    *within("{at}", (*TOKENS, *DINOV2_BLOCK, *NORM, same("register_tokens", "registers"))),
    # a model cut into chunks numbers its blocks through
    *within("{at}", renamed("blocks.{i}.", "blocks.{chunk}.{i}.", DINOV2_BLOCK)),
    # its own code starts the mask token at zero, and does not load a file without one
    supply("mask_token", lambda config: torch.zeros(1, config.dim), why=MASKED),
    drop("backbone.mask_token", why=MASKED),
    drop("dino_head.*", why=PROJECTED),
    drop("ibot_head.*", why=PROJECTED),
    # the linear classifiers of DINO and DINOv2 are published in files of their own
    *(refuse(f"{at}{part}", why=ALONE) for at in ("", "linear.") for part in ("weight", "bias")),
)
# What a decoder of masked pre-training has beside its blocks, here and in transformers.
DECODER_PARTS = (
    *NORM,
    same("embed.{p}", "embed.{p}"),
    same("pos_embed", "positions"),
    same("pred.{p}", "pixels.{p}"),
)
MAE_ROWS = (
    *(*TOKENS, *BLOCK, *MLP, *HEAD),
    same("fc_norm.{p}", "norm.{p}", final_norm="pooled", pool="mean"),
    *NORM,
    drop("decoder_*", why=REBUILT),
    drop("mask_token", why=MASKED),
)


def is_mae(foreign: Foreign) -> bool:
    """By the decoder, or by positions that are sines still: nothing for the class token, and for
    the first patch the sine and cosine of zero, across and down. Published encoders of MAE have no
    other mark; what lies in a directory with a config.json is somebody else's copy."""
    if any(name.startswith("decoder_") for name in foreign.tensors):
        return True
    table = foreign.tensors.get("pos_embed")
    if table is None or foreign.sidecars or table.ndim != 3 or table.shape[2] % 4:
        return False
    start = torch.tensor([0.0, 1.0, 0.0, 1.0]).repeat_interleave(table.shape[2] // 4)
    first = torch.stack([torch.zeros_like(start), start])
    return table.numel() > 0 and torch.equal(table[0, :2].float(), first)


def deit_facts(foreign: Foreign, facts: Facts) -> Facts:
    if facts["layer_scale"] is not None:  # DeiT III: positions for the patches alone
        return {"layer_scale": 1e-6, "prefix_positions": 0, "notes": [PLAIN]}
    return {"prefix_positions": 1 + facts["distilled"]}


by_size = below_384(0.875)


def deit_share(config: ViTConfig) -> float:
    return 1.0 if config.layer_scale is not None else by_size(config)  # DeiT III at every size


def why_not_deit(config: ViTConfig) -> str | None:
    if config.layer_scale is None:
        return why_not_slots(config, config.prefix) or why_not_gated(config)
    if config.distilled:
        return "has no distilled model with LayerScale"
    return why_not_slots(config, 0) or why_not_gated(config)


def why_not_dino(config: ViTConfig) -> str | None:
    return why_not_slots(config, 1) or why_not_gated(config)


def why_not_dinov2(config: ViTConfig) -> str | None:
    if config.num_classes:
        return "has no head: give num_classes=0"
    return why_not_slots(config, 1)


def why_not_mae(config: ViTConfig) -> str | None:
    if (config.pool == "mean") != (config.final_norm == "pooled"):
        return "has its norm after mean pooling, and before the class token is taken"
    return why_not_slots(config, 1) or why_not_gated(config)


def why_not_slots(config: ViTConfig, slots: int) -> str | None:
    if config.slots == slots:
        return None
    return f"has {slots} positions before those of the patches in such a model, not {config.slots}"


def why_not_gated(config: ViTConfig) -> str | None:
    return "has no gated MLP" if config.activation == "swiglu" else None


DEIT = Dialect(
    name="deit",
    about="facebookresearch/deit: DeiT with and without distillation, DeiT III",
    rows=DEIT_ROWS,
    constants={"norm_eps": 1e-6},
    sidecar_facts=deit_facts,
    preprocessing=cropped(deit_share),
    resize="hf",
    supports={"distilled": ANY, "layer_scale": ANY, "qkv_bias": ("qkv", "none")},
    square=True,
    why_unsupported=why_not_deit,
    suffix=".pth",
    wrapped="model",
)
DINO = Dialect(
    name="dino",
    about="facebookresearch/dino: backbones, and whole training runs",
    rows=DINO_ROWS,
    values=VALUES,
    constants={"norm_eps": 1e-6, "prefix_positions": 1},
    preprocessing=cropped(lambda _: 0.875),
    resize="dinov2",
    supports={"qkv_bias": ("qkv", "none")},
    square=True,
    why_unsupported=why_not_dino,
    suffix=".pth",
)
DINOV2 = Dialect(
    name="dinov2",
    about="facebookresearch/dinov2: backbones with and without registers, and whole training runs",
    rows=DINOV2_ROWS,
    values=VALUES,
    # the class token has a slot among the positions, registers have none
    constants={"norm_eps": 1e-6, "prefix_positions": 1},
    preprocessing=cropped(by_size),
    resize="dinov2",
    resize_registers="dinov2_registers",
    supports={"registers": ANY, "layer_scale": ANY, "qkv_bias": ("qkv", "none")},
    square=True,
    why_unsupported=why_not_dinov2,
    suffix=".pth",
)
MAE = Dialect(
    name="mae",
    about="facebookresearch/mae: encoders from pre-training, and fine-tuned classifiers",
    rows=MAE_ROWS,
    decoder=(*within("decoder_", (*BLOCK, *MLP, *DECODER_PARTS)), same("mask_token", "mask")),
    constants={"norm_eps": 1e-6, "prefix_positions": 1},
    accepts=is_mae,
    preprocessing=cropped(by_size),
    resize="hf",
    supports={"pool": ("cls", "mean"), "final_norm": ("tokens", "pooled")},
    square=True,
    why_unsupported=why_not_mae,
    suffix=".pth",
    wrapped="model",
)
