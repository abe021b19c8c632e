"""CLIP's image towers: `visual.transformer.resblocks.0.attn.in_proj_weight`.

    openai_clip     OpenAI's names and its quick GELU, the text tower left out
    open_clip       the same names; open_clip_config.json specifies the rest, and its GELU is exact
    open_clip-timm  a timm model inside OpenCLIP: `visual.trunk.blocks.0.attn.qkv.weight`

What CLIP projects into the space it shares with texts is our head, without a bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from vitrail.core.errors import UserError
from vitrail.core.passport import CLIP_MEAN, CLIP_STD, Interpolation, Passport, Preprocessing
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign, plain_blocks, read_record
from vitrail.weights.dialects import timm
from vitrail.weights.dialects.preparation import prepared
from vitrail.weights.dialects.timm_architectures import vit_facts
from vitrail.weights.families.family import Request
from vitrail.weights.families.vit import published_heads
from vitrail.weights.patterns import Table
from vitrail.weights.rows import (
    FLAT_TABLE,
    FLAT_TOKEN,
    TRANSPOSED,
    Facts,
    drop,
    refuse,
    reshape,
    same,
    within,
)

VALUES = {"v": ("visual.", "")}
CONFIG = "open_clip_config.json"
NO_ATTENTION_POOL = (
    "it pools by attention (attn_pool), which is not read: only towers that pool "
    "their class token or the mean of their patches are"
)
TOWER = within(
    "{v}",
    (
        reshape("class_embedding", "cls", FLAT_TOKEN),
        reshape("positional_embedding", "positions.table", FLAT_TABLE),
        same("conv1.weight", "patches.projection.weight"),
        same("ln_pre.{p}", "embed_norm.{p}"),
        *within(
            "transformer.resblocks.{i}.",
            (
                same("ln_{n}.{p}", "blocks.{i}.norm{n}.{p}"),
                same("attn.in_proj_{p}", "blocks.{i}.attention.qkv.{p}"),
                same("attn.out_proj.{p}", "blocks.{i}.attention.out.{p}"),
                same("ls_{n}.gamma", "blocks.{i}.scale{n}.factor"),
                same("mlp.c_fc.{p}", "blocks.{i}.mlp.fc1.{p}"),
                same("mlp.c_proj.{p}", "blocks.{i}.mlp.fc2.{p}"),
            ),
        ),
        same("ln_post.{p}", "norm.{p}"),
        reshape("proj", "head.classes.weight", TRANSPOSED),
        refuse("attn_pool*", why=NO_ATTENTION_POOL),
    ),
)
TEXT = tuple(
    drop(pattern, why="it belongs to the text tower or to training, not to the image tower")
    for pattern in (
        "transformer.*", "token_embedding.weight", "positional_embedding", "ln_final.*", "text.*",
        "text_projection", "text_projection.*", "text_model.*", "logit_scale", "logit_bias",
        "attn_mask", "input_resolution", "context_length", "vocab_size",
    )
)  # fmt: skip
TRUNK = (
    same("visual.head.proj.{p}", "head.classes.{p}"),
    *within("visual.trunk.", timm.TRUNK),
    *TEXT,
    refuse("visual.trunk.attn_pool*", why=NO_ATTENTION_POOL),
    refuse(
        "visual.head.mlp.*",
        why="it projects with two layers (timm_proj mlp), which is not read: only one linear "
        "layer is",
    ),
)


def prefix(foreign: Foreign) -> str | None:
    """What stands before the names of the image tower; None where there is none."""
    names = ("class_embedding", "conv1.weight", "transformer.resblocks.0.ln_1.weight")
    found = (v for v in VALUES["v"] if all(v + name in foreign.tensors for name in names))
    return next(found, None)


def hints(foreign: Foreign, request: Request) -> Facts:
    """The text tower has the names of an image tower without a prefix."""
    v = prefix(foreign) or ""
    strange = [] if v else [name for name in foreign.tensors if not ALONE.uses(name)]
    if strange:  # it would pass for one of the text tower
        raise UserError(f"{foreign.source}: no row reads {strange[0]}: is it another model?")
    return {"{v}": v}


ALONE = Table(TOWER, {"v": ("",)})


def is_openai(foreign: Foreign) -> bool:
    return prefix(foreign) is not None and not is_open(foreign)


def is_open(foreign: Foreign) -> bool:
    """Its config lies beside it, or it is what OpenAI's code cannot make."""
    v = prefix(foreign)
    if v is None:
        return False
    first = f"{v}transformer.resblocks.0"
    dim = foreign.shape(f"{v}conv1.weight", 4)[0]
    depth = foreign.count(v + "transformer.resblocks.{}.ln_1.weight")
    facts = {"dim": dim, "depth": depth, "mlp_dim": foreign.shape(f"{first}.mlp.c_fc.weight", 2)[0]}
    other = published_heads(facts, dim) not in (None, dim // 64)  # H/14, g/14, bigG/14
    strange = f"{v}ln_pre.weight" not in foreign.tensors or f"{first}.ls_1.gamma" in foreign.tensors
    return CONFIG in foreign.sidecars or strange or other


def openai_facts(foreign: Foreign, facts: Facts) -> Facts:
    heads = {} if facts["dim"] % 64 else {"heads": facts["dim"] // 64}  # so OpenAI's code divides
    note = "quick GELU, as OpenAI computes: for weights of OpenCLIP name the dialect open_clip"
    return heads | {"activation": "quick_gelu", "final_norm": "pooled", "notes": [note]}


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Vision:
    """The fields of OpenCLIP's vision_cfg that no tensor shows, with its defaults."""

    head_width: int = 64
    image_size: int | tuple[int, int] = 224
    ls_init_value: float | None = None
    pool_type: Literal["tok", "avg"] = "tok"
    final_ln_after_pool: bool = False
    act_kwargs: dict[str, str] | None = None
    norm_kwargs: dict[str, float] | None = None
    timm_pool: Literal["avg", "token", "map", ""] = "avg"
    timm_model_name: str | None = None

    def __post_init__(self) -> None:
        if self.head_width < 1:
            raise UserError(f"head_width must be at least 1, got {self.head_width}")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """OpenCLIP's preprocess_cfg, with its defaults."""

    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    interpolation: Interpolation = "bicubic"
    resize_mode: Literal["shortest", "longest", "squash"] = "shortest"


def read_place(foreign: Foreign, kind: type[T], *path: str) -> T:
    """The record at a place in open_clip_config.json; null stands for the default."""
    value: Any = foreign.sidecars.get(CONFIG, {})
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    items = value.items() if isinstance(value, Mapping) else ()
    given = {name: found for name, found in items if found is not None}
    return read_record(kind, given, where=f"{foreign.source}: {CONFIG}")


def open_facts(foreign: Foreign, facts: Facts) -> Facts:
    if CONFIG not in foreign.sidecars:
        note = f"exact GELU, class token pooled, heads unknown: there is no {CONFIG}"
        return {"notes": [note]}
    vision = read_place(foreign, Vision, "model_cfg", "vision_cfg")
    size = vision.image_size
    found: Facts = {
        "heads": facts["dim"] // vision.head_width,
        "image_size": (size, size) if isinstance(size, int) else size,
        "pool": {"tok": "cls", "avg": "mean"}[vision.pool_type],
        "final_norm": "pooled" if vision.final_ln_after_pool else "tokens",
        "norm_eps": (vision.norm_kwargs or {}).get("eps", 1e-5),
        "notes": notes(foreign),
    }
    if facts["layer_scale"] is not None:
        found["layer_scale"] = vision.ls_init_value or facts["layer_scale"]
    if (vision.act_kwargs or {}).get("approximate") == "tanh":
        found["activation"] = "gelu_tanh"
    model = foreign.sidecars[CONFIG].get("model_cfg")
    if isinstance(model, Mapping) and model.get("quick_gelu") is True:
        found["activation"] = "quick_gelu"
    return found


def notes(foreign: Foreign) -> list[str]:
    if read_place(foreign, Prepared, "preprocess_cfg").resize_mode != "longest":
        return []
    return ["images cropped to the image size, where OpenCLIP's config pads them"]


def trunk_facts(foreign: Foreign, facts: Facts) -> Facts:
    found = timm.model_facts(facts)
    if CONFIG not in foreign.sidecars:
        note = f"{facts['pool']} pooled, as timm's own model does: there is no {CONFIG}"
        return found | {"notes": [note]}
    vision = read_place(foreign, Vision, "model_cfg", "vision_cfg")
    if vision.timm_model_name is not None:
        named = vit_facts(vision.timm_model_name)
        if named is None:
            raise UserError(
                f"{foreign.source}: {CONFIG} names timm's architecture {vision.timm_model_name!r}, "
                "which Vitrail does not compute: use open_clip for it"
            )
        gated = facts.get("activation") == "swiglu"
        found |= {"heads": named["heads"]} if gated else named
    pool = {"avg": "mean", "token": "cls"}.get(vision.timm_pool, facts["pool"])
    return found | {"pool": pool, "notes": notes(foreign)}


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """The shorter side to the model's, then the centre, if OpenCLIP's config specifies no other."""
    given = read_place(foreign, Prepared, "preprocess_cfg")
    return prepared(
        config,
        resize=None if given.resize_mode == "squash" else config.image_size,
        interpolation=given.interpolation,
        mean=given.mean,
        std=given.std,
    )


def sidecars(passport: Passport, config: ViTConfig) -> dict[str, dict[str, Any]]:
    """The image half of an open_clip_config.json, with OpenCLIP's defaults left out."""
    height, width = config.image_size
    ratio = config.mlp_dim / config.dim
    vision: dict[str, Any] = {
        "image_size": height if height == width else [height, width],
        "layers": config.depth,
        "width": config.dim,
        "head_width": config.dim // config.heads,
        # OpenCLIP floors the product
        "mlp_ratio": ratio if config.dim * ratio >= config.mlp_dim else ratio + 0.5 / config.dim,
        "patch_size": config.patch_size,
    }
    if config.layer_scale is not None:
        vision["ls_init_value"] = config.layer_scale
    if config.pool == "mean":
        vision["pool_type"] = "avg"
    if config.final_norm == "pooled":
        vision["final_ln_after_pool"] = True
    if not config.embed_norm:
        vision["no_ln_pre"] = True
    if config.norm_eps != 1e-5:
        vision["norm_kwargs"] = {"eps": config.norm_eps}
    if config.activation == "gelu_tanh":
        vision["act_kwargs"] = {"approximate": "tanh"}
    return written(passport, config, vision)


def trunk_sidecars(passport: Passport, config: ViTConfig) -> dict[str, dict[str, Any]]:
    """What is known of it; OpenCLIP also wants timm's name for the trunk, which is unknown here."""
    vision = {
        "image_size": list(config.image_size),
        "timm_pool": "avg" if config.pool == "mean" else "token",
        "timm_proj": "linear" if config.num_classes else "none",
        "timm_proj_bias": config.head_bias,
    }
    return written(passport, config, vision)


def written(
    passport: Passport, config: ViTConfig, vision: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    before = passport.preprocessing
    model = {
        "embed_dim": config.num_classes,
        "quick_gelu": config.activation == "quick_gelu",
        "vision_cfg": vision,
    }
    preparation = {
        "mean": list(before.mean),
        "std": list(before.std),
        "interpolation": before.interpolation,
        "resize_mode": "shortest" if before.resize else "squash",
    }
    return {CONFIG: {"model_cfg": model, "preprocess_cfg": preparation}}


def why_unsupported(config: ViTConfig) -> str | None:
    if config.num_classes and config.head_bias:
        return "projects without a bias, this head has one"
    return plain_blocks(config)


def why_not_openai(config: ViTConfig) -> str | None:
    if config.dim != 64 * config.heads or config.mlp_dim != 4 * config.dim:
        return "has heads of width 64 and MLPs four times as wide as the model, and nothing else"
    return why_unsupported(config)


# Pooling the class token, it is the same to norm it before or after.
SUPPORTS: dict[str, Any] = {
    "head_bias": ANY,
    "patch_bias": (False,),
    "embed_norm": (True,),
    "final_norm": ("tokens", "pooled"),
}

CONSTANTS = {"norm_eps": 1e-5, "head_bias": False, "square": True}
OPENAI_CLIP = Dialect(
    name="openai_clip",
    about="OpenAI's CLIP: the image tower, with quick GELU",
    rows=TOWER + TEXT,
    values=VALUES,
    constants=CONSTANTS,
    hints=hints,
    sidecar_facts=openai_facts,
    accepts=is_openai,
    preprocessing=preprocessing,
    resize="timm",
    supports=SUPPORTS,
    square=True,
    why_unsupported=why_not_openai,
)

OPEN_CLIP = Dialect(
    name="open_clip",
    about="OpenCLIP: the image tower, if it is a ViT of its own",
    rows=TOWER + TEXT,
    values=VALUES,
    constants=CONSTANTS,
    hints=hints,
    sidecar_facts=open_facts,
    accepts=is_open,
    preprocessing=preprocessing,
    resize="timm",
    supports=SUPPORTS | {"embed_norm": ANY, "pool": ("cls", "mean"), "layer_scale": ANY},
    why_unsupported=why_unsupported,
    sidecars=sidecars,
)

OPEN_CLIP_TIMM = Dialect(
    name="open_clip-timm",
    about="OpenCLIP: the image tower, if it is a ViT of timm",
    rows=TRUNK,
    values=timm.VALUES,
    constants={"square": True},
    sidecar_facts=trunk_facts,
    unbound=timm.unbound,
    preprocessing=preprocessing,
    resize="timm",
    supports=timm.TIMM.supports,
    why_unsupported=timm.TIMM.why_unsupported,
    sidecars=trunk_sidecars,
)
