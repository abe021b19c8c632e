"""vit-pytorch (lucidrains): `transformer.layers.0.0.to_qkv.weight`, as it is now and as it was.

until 2021-03   blocks inside a Residual, patches from patch_to_embedding   refused, see below
until 2023-02   PreNorm around each part, LayerNorm in the head             vit_pytorch-old
until 2023-08   the same, with LayerNorms around the patch projection       vit_pytorch-old
until 2025-11   norms inside the parts and after the last, 3-D tables       vit_pytorch-old
since           2-D tables, and no class token where the mean is pooled     vit_pytorch
"""

import torch
from einops import rearrange
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import INCEPTION, Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.old_dialect import ANY, Dialect, Facts, Foreign, plain_blocks
from vitrail.weights.old_rows import Op, Row, drop, expand, fill, reshape, same, supply

BLOCK = [
    same("{b}.0.norm.{p}", "{b}.norm1.{p}"),
    same("{b}.0.to_qkv.weight", "{b}.attention.qkv.weight"),
    same("{b}.0.to_out.0.{p}", "{b}.attention.out.{p}"),
    same("{b}.1.net.0.{p}", "{b}.norm2.{p}"),
    same("{b}.1.net.1.{p}", "{b}.mlp.fc1.{p}"),
    same("{b}.1.net.4.{p}", "{b}.mlp.fc2.{p}"),
]
END = [
    same("transformer.norm.{p}", "norm.{p}"),
    same("mlp_head.{p}", "head.classes.{p}"),
]
OLD_BLOCK = [
    same("{b}.0.norm.{p}", "{b}.norm1.{p}"),
    same("{b}.0.fn.to_qkv.weight", "{b}.attention.qkv.weight"),
    same("{b}.0.fn.to_out.0.{p}", "{b}.attention.out.{p}"),
    same("{b}.1.norm.{p}", "{b}.norm2.{p}"),
    same("{b}.1.fn.net.0.{p}", "{b}.mlp.fc1.{p}"),
    same("{b}.1.fn.net.3.{p}", "{b}.mlp.fc2.{p}"),
]
OLD_END = [
    same("mlp_head.0.{p}", "norm.{p}"),
    same("mlp_head.1.{p}", "head.classes.{p}"),
]
PARTS = ("weight", "bias")
FIRST = "transformer.layers.0.0"


def rows(config: ViTConfig) -> list[Row]:
    return patches(config) + tokens(config) + layers(config)


def old_rows(config: ViTConfig) -> list[Row]:
    # for a day in 2025 without rows where the mean is pooled
    cls = same("cls_token", "cls") if config.class_token else drop("cls_token", why="it is empty")
    three_d = [cls, same("pos_embedding", "positions.table")]
    return patches(config) + three_d + layers(config)


def layers(config: ViTConfig) -> list[Row]:
    # the norm moved from the head to the transformer on the day that PreNorm went
    now = config.final_norm == "tokens"
    table = BLOCK + END if now else OLD_BLOCK + OLD_END
    blocks = [(f"transformer.layers.{i}", f"blocks.{i}") for i in range(config.depth)]
    # the identity first, so that it is not written
    return lone_head(config) + expand(table, b=blocks, p=PARTS)


def lone_head(config: ViTConfig) -> list[Row]:
    if config.heads > 1 or config.dim_head not in (None, config.dim):
        return []
    why = "vit-pytorch projects nothing where the only head is as wide as the model"
    outs = [f"blocks.{i}.attention.out" for i in range(config.depth)]
    weights = [fill(f"{out}.weight", lambda shape: torch.eye(shape[0]), why) for out in outs]
    return weights + [fill(f"{out}.bias", torch.zeros, why) for out in outs]


def tokens(config: ViTConfig) -> list[Row]:
    """2-D tables; where there is no class token, they have one of no rows."""
    flat = Op(lambda x: x[None], lambda x: x[0])
    none = supply("cls_token", lambda: torch.empty(0, config.dim), why="it is empty")
    cls = reshape("cls_token", "cls", flat) if config.class_token else none
    return [cls, reshape("pos_embedding", "positions.table", flat)]


def patches(config: ViTConfig) -> list[Row]:
    """Flattened, their patches have the channels innermost, ours outermost."""
    size = {"c": config.channels, "p": config.patch_size, "q": config.patch_size}

    def turned(theirs: str, ours: str) -> Op:
        def read(x: Tensor) -> Tensor:
            return rearrange(x, f"{theirs} -> {ours}", **size)

        def write(x: Tensor) -> Tensor:
            return rearrange(x, f"{ours} -> {theirs}", **size)

        return Op(read, write)

    place = 2 if config.patch_norm else 1
    projection = [
        reshape(
            f"to_patch_embedding.{place}.weight",
            "patches.projection.weight",
            turned("d (p q c)", "d c p q"),
        ),
        same(f"to_patch_embedding.{place}.bias", "patches.projection.bias"),
    ]
    norms = [
        reshape("to_patch_embedding.1.{p}", "patches.pixel_norm.{p}", turned("(p q c)", "(c p q)")),
        same("to_patch_embedding.3.{p}", "patches.norm.{p}"),
    ]
    return projection + (expand(norms, p=PARTS) if config.patch_norm else [])


def claims(foreign: Foreign) -> bool:
    return speaks(foreign) and foreign.tensors["pos_embedding"].ndim == 2


def claims_old(foreign: Foreign) -> bool:
    return speaks(foreign) and foreign.tensors["pos_embedding"].ndim == 3


def speaks(foreign: Foreign) -> bool:
    kinds = ("to_qkv", "fn.to_qkv", "fn.fn.to_qkv")
    attention = any(f"{FIRST}.{kind}.weight" in foreign.tensors for kind in kinds)
    return attention and "pos_embedding" in foreign.tensors


def infer(foreign: Foreign) -> Facts:
    tensors, shape = foreign.tensors, foreign.shape
    if f"{FIRST}.fn.fn.to_qkv.weight" in tensors:
        raise UserError(
            f"{foreign.source}: vit-pytorch before April 2021 scaled attention in two ways "
            "that its files do not tell apart, so they are not read"
        )
    old = f"{FIRST}.fn.to_qkv.weight" in tensors
    wrap, fc1 = ("fn.", "1.fn.net.0.weight") if old else ("", "1.net.1.weight")
    normed = len(shape("to_patch_embedding.1.weight")) == 1
    head = "mlp_head.1.weight" if old else "mlp_head.weight"
    tokens, table = shape("cls_token"), shape("pos_embedding")
    if len(tokens) < 2 or len(table) < 2:
        raise UserError(f"{foreign.source}: its tokens are {tokens}, its positions {table}")
    class_token = tokens[-2] > 0
    facts: Facts = {
        "dim": table[-1],
        "depth": foreign.count("transformer.layers.{}.0.norm.weight"),
        "mlp_dim": shape(f"transformer.layers.0.{fc1}", 2)[0],
        "inner": shape(f"{FIRST}.{wrap}to_qkv.weight", 2)[0] // 3,
        "pixels": shape(f"to_patch_embedding.{2 if normed else 1}.weight", 2)[1],
        "table": table[-2],
        "square": True,
        "class_token": class_token,
        "pool": "cls" if class_token else "mean",
        "patch_norm": normed,
        "final_norm": "tokens"
        if not old
        else "pooled"
        if "mlp_head.0.weight" in tensors
        else "none",
        "qkv_bias": "none",
        "num_classes": shape(head, 2)[0] if head in tensors else 0,
        "norm_eps": 1e-5,
        "notes": [
            "pictures squeezed into the image size, values in [-1, 1]: vit-pytorch says nothing"
        ],
    }
    return facts


def infer_old(foreign: Foreign) -> Facts:
    facts = infer(foreign)
    note = 'the class token is pooled: for a model made with pool="mean" say pool="all"'
    return facts | {"notes": [*facts["notes"], note]}


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    half = INCEPTION[:1] * config.channels
    return Preprocessing(size=config.image_size, mean=half, std=half)


def clashes(config: ViTConfig) -> str | None:
    if config.class_token == (config.pool == "mean"):
        return 'has a class token with pool="cls" and none with pool="mean"'
    return plain_blocks(config)


def old_clashes(config: ViTConfig) -> str | None:
    if config.final_norm == "tokens" and not config.patch_norm:
        return "norms patches wherever it norms the last tokens"
    return plain_blocks(config)


VIT_PYTORCH = Dialect(
    name="vit_pytorch",
    about="vit-pytorch since November 2025",
    claims=claims,
    infer=infer,
    rows=rows,
    preprocessing=preprocessing,
    resize="paper",
    holds={
        "dim_head": ANY,
        "pool": ("cls", "mean"),
        "class_token": ANY,
        "patch_norm": (True,),
        "qkv_bias": ("none",),
    },
    clashes=clashes,
)

VIT_PYTORCH_OLD = Dialect(
    name="vit_pytorch-old",
    about="vit-pytorch from April 2021 to November 2025",
    claims=claims_old,
    infer=infer_old,
    rows=old_rows,
    preprocessing=preprocessing,
    resize="paper",
    holds={
        "dim_head": ANY,
        "pool": ("cls", "all"),
        "patch_norm": ANY,
        "final_norm": ("tokens", "pooled"),
        "qkv_bias": ("none",),
    },
    clashes=old_clashes,
)
