"""deit, dino, dinov2 and mae of facebookresearch: timm's names but for some of each one's own.

What a file holds decides: `gamma_1` is DeiT III's; `decoder_` is MAE's, and so are positions that
were never learned; `mask_token`, `mlp.w12`, `register_tokens` and blocks in chunks are DINOv2's;
`backbone.` before every name is left by training DINO. A file with none of these is timm's by its
names: it is read as such unless a person names the dialect.
"""

import re
from collections.abc import Callable
from functools import lru_cache

import torch

from vitrail.core.errors import UserError
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialects import timm
from vitrail.weights.old_dialect import ANY, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Row, drop, expand, same, supply

WITHIN = "backbone."  # before every name of the encoder in a training run's file
TOKENS = [
    same("{at}cls_token", "cls"),
    same("{at}pos_embed", "positions.table"),
    same("{at}patch_embed.proj.{p}", "patches.projection.{p}"),
]
BLOCK = [
    same("{at}blocks.{i}.norm{n}.{p}", "blocks.{i}.norm{n}.{p}"),
    same("{at}blocks.{i}.attn.qkv.{p}", "blocks.{i}.attention.qkv.{p}"),
    same("{at}blocks.{i}.attn.proj.{p}", "blocks.{i}.attention.out.{p}"),
]
MLP = [same("{at}blocks.{i}.mlp.fc{n}.{p}", "blocks.{i}.mlp.fc{n}.{p}")]
GATED = [
    same("{at}blocks.{i}.mlp.w12.{p}", "blocks.{i}.mlp.fc1.{p}"),
    same("{at}blocks.{i}.mlp.w3.{p}", "blocks.{i}.mlp.fc2.{p}"),
]
NORM = [same("{at}norm.{p}", "norm.{p}")]
HEAD = [same("{at}head.{p}", "head.classes.{p}")]
AXES = {"p": ("weight", "bias"), "n": (1, 2)}

MASKED = "stands for hidden patches in pre-training alone"
PROJECTED = "projects features for the self-supervised loss, and is no classifier"
PLAIN = (
    "read as DeiT III: RoPE-ViT with absolute positions has the same tensors, and rotates its "
    "queries and keys besides"
)
REBUILT = "the decoder rebuilds hidden pixels in pre-training alone: pretrain --from keeps it"


def deit_rows(config: ViTConfig) -> list[Row]:
    own = [
        same("dist_token", "distillation"),
        same("blocks.{i}.gamma_{n}", "blocks.{i}.scale{n}.factor"),
        same("head_dist.{p}", "head_distilled.classes.{p}"),
    ]
    table = [*TOKENS, *BLOCK, *MLP, *NORM, *HEAD, *own]
    return expand(table, at=[""], i=range(config.depth), **AXES)


def dino_rows(config: ViTConfig) -> list[Row]:
    table = [*TOKENS, *BLOCK, *MLP, *NORM, *HEAD]
    return [
        *expand(table, at=["", WITHIN], i=range(config.depth), **AXES),
        drop("head.*", why=PROJECTED),
    ]


def dinov2_rows(config: ViTConfig) -> list[Row]:
    mlp = GATED if config.activation == "swiglu" else MLP
    scale = same("{at}blocks.{i}.ls{n}.gamma", "blocks.{i}.scale{n}.factor")
    table = [*TOKENS, same("{at}register_tokens", "registers"), *BLOCK, scale, *mlp, *NORM]
    return [
        *expand(table, at=["", WITHIN], i=[*range(config.depth), *chunks(config.depth)], **AXES),
        # its own code starts the mask token at zero, and does not load a file without one
        supply("mask_token", lambda: torch.zeros(1, config.dim), why=MASKED),
        drop("backbone.mask_token", why=MASKED),
        drop("dino_head.*", why=PROJECTED),
        drop("ibot_head.*", why=PROJECTED),
    ]


def chunks(depth: int) -> list[tuple[str, int]]:
    """Every name of block i in a model cut into equal chunks, where it is blocks.<chunk>.i."""
    names = {(i // size, i) for i in range(depth) for size in range(1, depth + 1)}
    return [(f"{chunk}.{i}", i) for chunk, i in sorted(names)]


def mae_rows(config: ViTConfig) -> list[Row]:
    norm = [same("fc_norm.{p}", "norm.{p}")] if config.final_norm == "pooled" else NORM
    table = [*TOKENS, *BLOCK, *MLP, *norm, *HEAD]
    return [
        *expand(table, at=[""], i=range(config.depth), **AXES),
        drop("decoder_*", why=REBUILT),
        drop("mask_token", why=MASKED),
    ]


# Their names for what timm calls otherwise; in this order.
AS_TIMM = (
    (r"^backbone\.", ""),
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),
    (r"^register_tokens$", "reg_token"),
    (r"\.gamma_(\d)$", r".ls\1.gamma"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
)


def as_timm(foreign: Foreign) -> Foreign:
    """The encoder under timm's names, by which its shape is read."""
    inside = any(name.startswith(WITHIN) for name in foreign.tensors)
    tensors = {}
    for name, tensor in foreign.tensors.items():
        if inside and not name.startswith(WITHIN):
            continue
        tensors[timms_name(name)] = tensor
    return Foreign(foreign.source, tensors)


@lru_cache(maxsize=4096)  # every file is held against four dialects, and most have the same names
def timms_name(name: str) -> str:
    for theirs, plain in AS_TIMM:
        name = re.sub(theirs, plain, name)
    return name


def kind(foreign: Foreign) -> str | None:
    """Whose names these are, by what only one of the four has; None for everybody else's."""
    names, encoder = foreign.tensors.keys(), as_timm(foreign).tensors.keys()
    if lone_head(foreign):
        return "dinov2"
    needed = {"blocks.0.attn.qkv.weight", "patch_embed.proj.weight", "cls_token", "pos_embed"}
    beit = {"blocks.0.attn.q_bias", "blocks.0.attn.relative_position_bias_table"}
    if needed - encoder or beit & encoder:
        return None
    own = re.compile(r"(backbone\.)?(mask_token$|register_tokens$|blocks\.\d+\.(\d+\.|mlp\.w12\.))")
    if any(name.startswith("decoder_") for name in names):
        return "mae"
    if any(own.match(name) for name in names):
        return "dinov2"
    if any(name.startswith(WITHIN) for name in names):
        return "dino"
    if "blocks.0.gamma_1" in names:
        return "deit"
    return "mae" if unlearned(foreign) else None


def unlearned(foreign: Foreign) -> bool:
    """Whether positions are sines still: nothing for the class token, and for the first patch the
    sine and cosine of zero, across and down. Published encoders of MAE have no other mark; what
    lies in a directory with a config.json is somebody else's copy."""
    table = foreign.tensors.get("pos_embed")
    if table is None or foreign.sidecars or table.ndim != 3 or table.shape[2] % 4:
        return False
    start = torch.tensor([0.0, 1.0, 0.0, 1.0]).repeat_interleave(table.shape[2] // 4)
    first = torch.stack([torch.zeros_like(start), start])
    return table.numel() > 0 and torch.equal(table[0, :2].float(), first)


def lone_head(foreign: Foreign) -> bool:
    """The linear classifiers of DINO and DINOv2 are published in files of their own."""
    heads = ({"weight", "bias"}, {"linear.weight", "linear.bias"})
    return any(foreign.tensors.keys() == head for head in heads)


def claims(name: str) -> Callable[[Foreign], bool]:
    return lambda foreign: kind(foreign) == name


def deit_infer(foreign: Foreign) -> Facts:
    facts = timm.infer(as_timm(foreign))
    if "blocks.0.gamma_1" in foreign.tensors:  # DeiT III: positions for the patches alone
        return facts | {"layer_scale": 1e-6, "prefix_positions": 0, "notes": [PLAIN]}
    return facts | {"prefix_positions": 1 + facts["distilled"], "notes": []}


def infer(foreign: Foreign) -> Facts:
    """DINO, DINOv2 and MAE: the class token has a slot among the positions, registers have none."""
    if lone_head(foreign):
        raise UserError(
            f"{foreign.source}: a linear head alone: load the file of its backbone, "
            "whose name ends in _pretrain.pth"
        )
    return timm.infer(as_timm(foreign)) | {"prefix_positions": 1, "notes": []}


def cropped(
    share_of: Callable[[ViTConfig], float],
) -> Callable[[Foreign, ViTConfig], Preprocessing]:
    """Bicubic, then the centre, which is a share of the side."""

    def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
        (height, width), share = config.image_size, share_of(config)
        grey = (0.5,) * config.channels
        return Preprocessing(
            size=config.image_size,
            resize=(int(height / share), int(width / share)),
            interpolation="bicubic",
            mean=IMAGENET_MEAN if config.channels == 3 else grey,
            std=IMAGENET_STD if config.channels == 3 else grey,
        )

    return preprocessing


def by_size(config: ViTConfig) -> float:
    return 0.875 if max(config.image_size) < 384 else 1.0


def deit_share(config: ViTConfig) -> float:
    return 1.0 if config.layer_scale is not None else by_size(config)  # DeiT III at every size


def deit_clashes(config: ViTConfig) -> str | None:
    if config.layer_scale is None:
        return slots_clash(config, config.prefix) or gate_clash(config)
    if config.distilled:
        return "has no distilled model with LayerScale"
    return slots_clash(config, 0) or gate_clash(config)


def dino_clashes(config: ViTConfig) -> str | None:
    return slots_clash(config, 1) or gate_clash(config)


def dinov2_clashes(config: ViTConfig) -> str | None:
    if config.num_classes:
        return "has no head: give num_classes=0"
    return slots_clash(config, 1)


def mae_clashes(config: ViTConfig) -> str | None:
    if (config.pool == "mean") != (config.final_norm == "pooled"):
        return "has its norm after mean pooling, and before the class token is taken"
    return slots_clash(config, 1) or gate_clash(config)


def slots_clash(config: ViTConfig, slots: int) -> str | None:
    if config.slots == slots:
        return None
    return f"has {slots} positions before those of the patches in such a model, not {config.slots}"


def gate_clash(config: ViTConfig) -> str | None:
    return "has no gated MLP" if config.activation == "swiglu" else None


DEIT = Dialect(
    name="deit",
    about="facebookresearch/deit: DeiT with and without distillation, DeiT III",
    claims=claims("deit"),
    infer=deit_infer,
    rows=deit_rows,
    preprocessing=cropped(deit_share),
    resize="hf",
    holds={"distilled": ANY, "layer_scale": ANY, "qkv_bias": ("qkv", "none")},
    square=True,
    clashes=deit_clashes,
    suffix=".pth",
    wrapped="model",
)
DINO = Dialect(
    name="dino",
    about="facebookresearch/dino: backbones, and whole training runs",
    claims=claims("dino"),
    infer=infer,
    rows=dino_rows,
    preprocessing=cropped(lambda _: 0.875),
    resize="dinov2",
    holds={"qkv_bias": ("qkv", "none")},
    square=True,
    clashes=dino_clashes,
    suffix=".pth",
)
DINOV2 = Dialect(
    name="dinov2",
    about="facebookresearch/dinov2: backbones with and without registers, and whole training runs",
    claims=claims("dinov2"),
    infer=infer,
    rows=dinov2_rows,
    preprocessing=cropped(by_size),
    resize="dinov2",
    resize_registers="dinov2_registers",
    holds={"registers": ANY, "layer_scale": ANY, "qkv_bias": ("qkv", "none")},
    square=True,
    clashes=dinov2_clashes,
    suffix=".pth",
)
MAE = Dialect(
    name="mae",
    about="facebookresearch/mae: encoders from pre-training, and fine-tuned classifiers",
    claims=claims("mae"),
    infer=infer,
    rows=mae_rows,
    preprocessing=cropped(by_size),
    resize="hf",
    holds={"pool": ("cls", "mean"), "final_norm": ("tokens", "pooled")},
    square=True,
    clashes=mae_clashes,
    suffix=".pth",
    wrapped="model",
)
