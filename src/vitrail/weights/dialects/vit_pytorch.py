"""vit-pytorch (lucidrains): `transformer.layers.0.0.to_qkv.weight`, as it is now and as it was.

until 2021-03   blocks inside a Residual, patches from patch_to_embedding   refused, see below
until 2023-02   PreNorm around each part, LayerNorm in the head             vit_pytorch-old
until 2023-08   the same, with LayerNorms around the patch projection       vit_pytorch-old
until 2025-11   norms inside the parts and after the last, 3-D tables       vit_pytorch-old
since           2-D tables, and no class token where the mean is pooled     vit_pytorch
"""

import math
from functools import partial

import torch

from vitrail.core.errors import UserError
from vitrail.core.layout import simplify_sides
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign, plain_blocks
from vitrail.weights.dialects.preparation import prepared
from vitrail.weights.families.family import Request, pair
from vitrail.weights.rows import (
    FLAT_TABLE,
    Facts,
    axes,
    drop,
    fill,
    refuse,
    reshape,
    same,
    supply,
    within,
)

# Flattened, their patches have the channels innermost, ours outermost.
SIZES = {"c": "channels", "p": "patch_size.0", "q": "patch_size.1"}
MODULE = "vit_pytorch module"  # stands for a sidecar where a model is in memory
KERNEL, PIXELS = axes("d (p q c)", "d c p q", **SIZES), axes("(p q c)", "(c p q)", **SIZES)
PATCHES = within(
    "to_patch_embedding.",
    (
        reshape("2.weight", "patches.projection.weight", KERNEL, patch_norm=True),
        same("2.bias", "patches.projection.bias", patch_norm=True),
        reshape("1.{p}", "patches.pixel_norm.{p}", PIXELS, patch_norm=True),
        same("3.{p}", "patches.norm.{p}", patch_norm=True),
        reshape("1.weight", "patches.projection.weight", KERNEL, patch_norm=False),
        same("1.bias", "patches.projection.bias", patch_norm=False),
    ),
)
ONE_HEAD = "vit-pytorch projects nothing where the only head is as wide as the model"
LONE_HEAD = (  # first, so that the identity is not written
    fill(
        "blocks.{i}.attention.out.weight",
        "blocks.{i}.attention.qkv.weight",
        lambda qkv: torch.eye(len(qkv) // 3),
        why=ONE_HEAD,
        heads=1,
    ),
    fill(
        "blocks.{i}.attention.out.bias",
        "blocks.{i}.attention.qkv.weight",
        lambda qkv: torch.zeros(len(qkv) // 3),
        why=ONE_HEAD,
        heads=1,
    ),
)
LAYERS = (
    *within(
        "transformer.layers.{i}.",
        (
            same("0.norm.{p}", "blocks.{i}.norm1.{p}", final_norm="tokens"),
            same("0.to_qkv.weight", "blocks.{i}.attention.qkv.weight", final_norm="tokens"),
            same("0.to_out.0.{p}", "blocks.{i}.attention.out.{p}", final_norm="tokens"),
            same("1.net.0.{p}", "blocks.{i}.norm2.{p}", final_norm="tokens"),
            same("1.net.1.{p}", "blocks.{i}.mlp.fc1.{p}", final_norm="tokens"),
            same("1.net.4.{p}", "blocks.{i}.mlp.fc2.{p}", final_norm="tokens"),
        ),
    ),
    same("transformer.norm.{p}", "norm.{p}", final_norm="tokens"),
    same("mlp_head.{p}", "head.classes.{p}", final_norm="tokens"),
)
# The norm moved from the head to the transformer on the day that PreNorm went.
OLD_LAYERS = (
    *within(
        "transformer.layers.{i}.",
        (
            same("0.norm.{p}", "blocks.{i}.norm1.{p}", final_norm="pooled"),
            same("0.fn.to_qkv.weight", "blocks.{i}.attention.qkv.weight", final_norm="pooled"),
            same("0.fn.to_out.0.{p}", "blocks.{i}.attention.out.{p}", final_norm="pooled"),
            same("1.norm.{p}", "blocks.{i}.norm2.{p}", final_norm="pooled"),
            same("1.fn.net.0.{p}", "blocks.{i}.mlp.fc1.{p}", final_norm="pooled"),
            same("1.fn.net.3.{p}", "blocks.{i}.mlp.fc2.{p}", final_norm="pooled"),
        ),
    ),
    same("mlp_head.0.{p}", "norm.{p}", final_norm="pooled"),
    same("mlp_head.1.{p}", "head.classes.{p}", final_norm="pooled"),
)
TOO_OLD = (
    "vit-pytorch before April 2021 scaled attention in two ways that its files do not show, "
    "so they are not read"
)
EMPTY = "it is empty"
ROWS = (
    *LONE_HEAD,
    *PATCHES,
    reshape("cls_token", "cls", FLAT_TABLE, class_token=True),
    supply("cls_token", lambda config: torch.empty(0, config.dim), why=EMPTY, class_token=False),
    reshape("pos_embedding", "positions.table", FLAT_TABLE),
    *LAYERS,
)
OLD_ROWS = (
    *LONE_HEAD,
    *PATCHES,
    same("cls_token", "cls", class_token=True),
    drop("cls_token", why=EMPTY),  # for a day in 2025 without rows where the mean is pooled
    same("pos_embedding", "positions.table"),
    *LAYERS,
    *OLD_LAYERS,
    *(
        refuse(name, why=TOO_OLD)
        for name in ("transformer.layers.*.fn.fn.*", "patch_to_embedding*")
    ),
)
PREPARED = "images squeezed into the image size, values in [-1, 1]: vit-pytorch does not specify it"
POOLED = 'the class token is pooled: for a model made with pool="mean" give pool="all"'


def hints(foreign: Foreign, request: Request) -> Facts:
    """Whether patches are normed, how large they are, and whether there is a class token."""
    tokens, table = foreign.shape("cls_token"), foreign.shape("pos_embedding")
    if len(tokens) < 2 or len(table) < 2:
        raise UserError(
            f"{foreign.source}: cls_token and pos_embedding must have 2 axes or more, got {tokens} "
            f"and {table}"
        )
    normed = len(foreign.shape("to_patch_embedding.1.weight")) == 1
    pixels = foreign.shape(f"to_patch_embedding.{2 if normed else 1}.weight", 2)[1]
    later = "transformer.layers.0.0.fn.to_qkv.weight" not in foreign.tensors
    named = request.named
    module = module_facts(foreign)
    return {
        **(patch_of_module(module) or patch_of(pixels, request)),
        "patch_norm": normed,
        "class_token": tokens[-2] > 0,
        "final_norm": "tokens" if later else "pooled",
        # 0: unknown, so that nothing is filled in
        "heads": (
            request.overrides.get("heads") or module.get("heads") or (named.heads if named else 0)
        ),
    }


def module_facts(foreign: Foreign) -> Facts:
    """What a module in memory holds beside its tensors; nothing of a file."""
    return dict(foreign.sidecars.get(MODULE, {}))


def patch_of_module(module: Facts) -> Facts | None:
    if "patch_size" not in module:
        return None
    sides = simplify_sides(pair(module["patch_size"], "patch_size"))
    return {"channels": module["channels"], "patch_size": sides, "notes": []}


def patch_of(pixels: int, request: Request) -> Facts:
    """Channels and sides of a patch, where a file holds flattened patches: values, no shape."""
    named, patch = request.named, request.overrides.get("patch_size")
    area = math.prod(named.patch_sides) if named else None
    given = (pixels // area if area else None, request.overrides.get("channels"))
    for channels in (*given, 3, 1):
        if not isinstance(channels, int) or channels < 1 or pixels % channels:
            continue
        side = math.isqrt(pixels // channels)
        if side * side * channels == pixels:
            note = f"patches of {side}x{side} pixels and {channels} channels"
            notes = [] if channels in given else [note]
            return {"channels": channels, "patch_size": side, "notes": notes}
    if patch is not None:
        height, width = pair(patch, "patch_size")
        if height > 0 and width > 0 and pixels % (height * width) == 0:
            found = pixels // (height * width)
            return {"channels": found, "patch_size": (height, width), "notes": []}
    raise UserError(
        f"{request.source}: {pixels} values do not make a square patch of 3 channels or 1: give "
        "channels=N, or patch_size=(height, width)"
    )


def sidecar_facts(foreign: Foreign, facts: Facts) -> Facts:
    return {"notes": [PREPARED], **dropout_of(module_facts(foreign))}


def old_facts(foreign: Foreign, facts: Facts) -> Facts:
    headless = facts["final_norm"] == "pooled" and "mlp_head.0.weight" not in foreign.tensors
    found: Facts = {"final_norm": "none"} if headless else {}
    module = module_facts(foreign)
    if not module:
        return found | {"notes": [PREPARED, POOLED]}
    pool = "all" if module["pool"] == "mean" else "cls"  # its mean has the class token in it
    return found | {"pool": pool, "notes": [PREPARED], **dropout_of(module)}


def dropout_of(module: Facts) -> Facts:
    """Both rates, where a module has them; equal ones are one."""
    rate, embed = module.get("dropout"), module.get("emb_dropout")
    found: Facts = {} if rate is None else {"dropout": rate}
    return found if embed in (None, rate) else found | {"embed_dropout": embed}


def has_axes(axes: int, foreign: Foreign) -> bool:
    """Tables lost an axis in 2025."""
    return "pos_embedding" in foreign.tensors and foreign.tensors["pos_embedding"].ndim == axes


def why_unsupported(config: ViTConfig) -> str | None:
    if config.class_token == (config.pool == "mean"):
        return 'has a class token with pool="cls" and none with pool="mean"'
    return plain_blocks(config)


def why_not_old(config: ViTConfig) -> str | None:
    if config.final_norm == "tokens" and not config.patch_norm:
        return "norms patches wherever it norms the last tokens"
    return plain_blocks(config)


CONSTANTS = {"norm_eps": 1e-5, "square": True}
VIT_PYTORCH = Dialect(
    name="vit_pytorch",
    about="vit-pytorch since November 2025",
    rows=ROWS,
    constants=CONSTANTS,
    hints=hints,
    sidecar_facts=sidecar_facts,
    accepts=partial(has_axes, 2),
    preprocessing=lambda _, config: prepared(config),
    resize="paper",
    supports={
        "dim_head": ANY,
        "patch_size": ANY,
        "pool": ("cls", "mean"),
        "class_token": ANY,
        "patch_norm": (True,),
        "qkv_bias": ("none",),
    },
    why_unsupported=why_unsupported,
)

VIT_PYTORCH_OLD = Dialect(
    name="vit_pytorch-old",
    about="vit-pytorch from April 2021 to November 2025",
    rows=OLD_ROWS,
    constants=CONSTANTS,
    hints=hints,
    sidecar_facts=old_facts,
    accepts=partial(has_axes, 3),
    preprocessing=lambda _, config: prepared(config),
    resize="paper",
    supports={
        "dim_head": ANY,
        "patch_size": ANY,
        "pool": ("cls", "all"),
        "patch_norm": ANY,
        "final_norm": ("tokens", "pooled"),
        "qkv_bias": ("none",),
    },
    why_unsupported=why_not_old,
)
