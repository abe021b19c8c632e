"""CLIP's image towers: `visual.transformer.resblocks.0.attn.in_proj_weight`.

    openai_clip     OpenAI's names and its quick GELU, the text tower left out
    open_clip       the same names; open_clip_config.json tells the rest, and its GELU is exact
    open_clip-timm  a timm model inside OpenCLIP: `visual.trunk.blocks.0.attn.qkv.weight`

What CLIP projects into the space it shares with texts is our head, without a bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from vitrail.core.errors import UserError
from vitrail.core.passport import CLIP_MEAN, CLIP_STD, Interpolation, Passport, Preprocessing
from vitrail.core.records import validate
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialects import timm
from vitrail.weights.dialects.timm_architectures import vit_facts
from vitrail.weights.old_dialect import ANY, Dialect, Facts, Foreign, plain_blocks
from vitrail.weights.old_rows import Op, Row, drop, expand, reshape, same
from vitrail.weights.settle_vit import published_heads

TOKEN = Op(lambda x: x[None, None], lambda x: x[0, 0])
TABLE = Op(lambda x: x[None], lambda x: x[0])
TRANSPOSED = Op(lambda x: x.mT, lambda x: x.mT)

TOWER = [
    reshape("{v}class_embedding", "cls", TOKEN),
    reshape("{v}positional_embedding", "positions.table", TABLE),
    same("{v}conv1.weight", "patches.projection.weight"),
    same("{v}ln_pre.{p}", "embed_norm.{p}"),
    same("{v}{b}.ln_1.{p}", "{b}.norm1.{p}"),
    same("{v}{b}.attn.in_proj_{p}", "{b}.attention.qkv.{p}"),
    same("{v}{b}.attn.out_proj.{p}", "{b}.attention.out.{p}"),
    same("{v}{b}.ls_1.gamma", "{b}.scale1.factor"),
    same("{v}{b}.ln_2.{p}", "{b}.norm2.{p}"),
    same("{v}{b}.mlp.c_fc.{p}", "{b}.mlp.fc1.{p}"),
    same("{v}{b}.mlp.c_proj.{p}", "{b}.mlp.fc2.{p}"),
    same("{v}{b}.ls_2.gamma", "{b}.scale2.factor"),
    same("{v}ln_post.{p}", "norm.{p}"),
    reshape("{v}proj", "head.classes.weight", TRANSPOSED),
]
TEXT = [
    drop(pattern, why="it belongs to the text tower or to training, not to the image tower")
    for pattern in (
        "transformer.*", "token_embedding.weight", "positional_embedding", "ln_final.*", "text.*",
        "text_projection", "text_projection.*", "text_model.*", "logit_scale", "logit_bias",
        "attn_mask", "input_resolution", "context_length", "vocab_size",
    )
]  # fmt: skip
PARTS = ("weight", "bias")
PREFIXES = ("visual.", "")
TRUNK = "visual.trunk."
CONFIG = "open_clip_config.json"
NO_ATTENTION_POOL = (
    "it pools by attention (attn_pool), which is not read: only towers that pool "
    "their class token or the mean of their patches are"
)


def rows(config: ViTConfig) -> list[Row]:
    return tower(config.depth, PREFIXES) + TEXT


def tower(depth: int, prefixes: tuple[str, ...]) -> list[Row]:
    blocks = [(f"transformer.resblocks.{i}", f"blocks.{i}") for i in range(depth)]
    return expand(TOWER, v=prefixes, b=blocks, p=PARTS)


def trunk_rows(config: ViTConfig) -> list[Row]:
    inside = [
        replace(row, theirs=tuple(TRUNK + name for name in row.theirs))
        for row in timm.trunk(config)
    ]
    return expand([same("visual.head.proj.{p}", "head.classes.{p}")], p=PARTS) + inside + TEXT


def prefix(foreign: Foreign) -> str | None:
    """What stands before the names of the image tower; None where there is none."""
    names = ("class_embedding", "conv1.weight", "transformer.resblocks.0.ln_1.weight")
    found = (v for v in PREFIXES if all(v + name in foreign.tensors for name in names))
    return next(found, None)


def claims_openai(foreign: Foreign) -> bool:
    return prefix(foreign) is not None and not claims_open(foreign)


def claims_open(foreign: Foreign) -> bool:
    """Its config lies beside it, or it is what OpenAI's code cannot make."""
    v = prefix(foreign)
    if v is None:
        return False
    facts = shapes(foreign, v)
    other = published_heads(facts) not in (None, facts["dim"] // 64)  # H/14, g/14, bigG/14
    strange = not facts["embed_norm"] or facts["layer_scale"] is not None
    return CONFIG in foreign.sidecars or strange or other


def claims_trunk(foreign: Foreign) -> bool:
    return timm.claims(trunk(foreign))


def shapes(foreign: Foreign, v: str) -> Facts:
    """What the tensors of a tower tell, whoever trained it."""
    tensors, shape = foreign.tensors, foreign.shape
    first = f"{v}transformer.resblocks.0"
    dim, channels, patch_size, _ = shape(f"{v}conv1.weight", 4)
    facts: Facts = {
        "dim": dim,
        "depth": foreign.count(v + "transformer.resblocks.{}.ln_1.weight"),
        "mlp_dim": shape(f"{first}.mlp.c_fc.weight", 2)[0],
        "patch_size": patch_size,
        "channels": channels,
        "table": shape(f"{v}positional_embedding", 2)[0],
        "square": True,
        "num_classes": shape(f"{v}proj", 2)[1] if f"{v}proj" in tensors else 0,
        "head_bias": False,
        "patch_bias": False,
        "embed_norm": f"{v}ln_pre.weight" in tensors,
        "layer_scale": 1e-5 if f"{first}.ls_1.gamma" in tensors else None,
        "norm_eps": 1e-5,
    }
    return facts


def whole(foreign: Foreign) -> Facts:
    """The same, once nothing in the file is known to go beyond them."""
    v = prefix(foreign) or ""
    if any(name.startswith(f"{v}attn_pool") for name in foreign.tensors):
        raise UserError(f"{foreign.source}: {NO_ATTENTION_POOL}")
    facts = shapes(foreign, v)
    if not v:  # else a strange name would pass for one of the text tower, which have no prefix
        known = {name for row in tower(facts["depth"], ("",)) for name in row.theirs}
        if strange := [name for name in foreign.tensors if name not in known]:
            raise UserError(f"{foreign.source}: no row reads {strange[0]}: is it another model?")
    return facts


def infer_openai(foreign: Foreign) -> Facts:
    facts = whole(foreign)
    heads = {} if facts["dim"] % 64 else {"heads": facts["dim"] // 64}  # so OpenAI's code divides
    note = "quick GELU, as OpenAI computes: for weights of OpenCLIP name the dialect open_clip"
    return facts | heads | {"activation": "quick_gelu", "final_norm": "pooled", "notes": [note]}


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Vision:
    """The fields of OpenCLIP's vision_cfg that tensors cannot tell, with its defaults."""

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
            raise UserError(f"head_width is {self.head_width}, but must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """OpenCLIP's preprocess_cfg, with its defaults."""

    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    interpolation: Interpolation = "bicubic"
    resize_mode: Literal["shortest", "longest", "squash"] = "shortest"


def told(foreign: Foreign, kind: type[T], *path: str) -> T:
    """The record at a place in open_clip_config.json; fields that decide nothing here are left."""
    value: Any = foreign.sidecars.get(CONFIG, {})
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    value = {} if not isinstance(value, Mapping) else value
    given = {name: value[name] for name in known if value.get(name) is not None}
    return validate(kind, given, where=f"{foreign.source}: {CONFIG}")


def infer_open(foreign: Foreign) -> Facts:
    facts = whole(foreign) | {"activation": "gelu"}
    if CONFIG not in foreign.sidecars:
        note = f"exact GELU, class token pooled, heads unknown: no {CONFIG} says otherwise"
        return facts | {"notes": [note]}
    said = told(foreign, Vision, "model_cfg", "vision_cfg")
    size = said.image_size
    facts |= {
        "heads": facts["dim"] // said.head_width,
        "image_size": (size, size) if isinstance(size, int) else size,
        "pool": {"tok": "cls", "avg": "mean"}[said.pool_type],
        "final_norm": "pooled" if said.final_ln_after_pool else "tokens",
        "norm_eps": (said.norm_kwargs or {}).get("eps", 1e-5),
        "notes": notes(foreign),
    }
    if facts["layer_scale"] is not None:
        facts["layer_scale"] = said.ls_init_value or facts["layer_scale"]
    if (said.act_kwargs or {}).get("approximate") == "tanh":
        facts["activation"] = "gelu_tanh"
    model = foreign.sidecars[CONFIG].get("model_cfg")
    if isinstance(model, Mapping) and model.get("quick_gelu") is True:
        facts["activation"] = "quick_gelu"
    return facts


def notes(foreign: Foreign) -> list[str]:
    if told(foreign, Prepared, "preprocess_cfg").resize_mode != "longest":
        return []
    return ["pictures cropped to the image size, where OpenCLIP's config says to pad them"]


def trunk(foreign: Foreign) -> Foreign:
    """The timm model inside."""
    inside = {
        name.removeprefix(TRUNK): tensor
        for name, tensor in foreign.tensors.items()
        if name.startswith(TRUNK)
    }
    return Foreign(foreign.source, inside)


def infer_trunk(foreign: Foreign) -> Facts:
    if any(name.startswith(f"{TRUNK}attn_pool") for name in foreign.tensors):
        raise UserError(f"{foreign.source}: {NO_ATTENTION_POOL}")
    if "visual.head.mlp.fc1.weight" in foreign.tensors:
        raise UserError(
            f"{foreign.source}: it projects with two layers (timm_proj mlp), which is not read: "
            "only one linear layer is"
        )
    facts = timm.infer(trunk(foreign))
    facts["square"] = True
    if "visual.head.proj.weight" in foreign.tensors:
        facts["num_classes"] = foreign.shape("visual.head.proj.weight", 2)[0]
        facts["head_bias"] = "visual.head.proj.bias" in foreign.tensors
    if CONFIG not in foreign.sidecars:
        note = f"{facts['pool']} pooled, as timm's own model does: no {CONFIG} says otherwise"
        return facts | {"notes": [note]}
    pooled = {"avg": "mean", "token": "cls"}
    said = told(foreign, Vision, "model_cfg", "vision_cfg")
    if said.timm_model_name is not None:
        named = vit_facts(said.timm_model_name)
        if named is None:
            raise UserError(
                f"{foreign.source}: {CONFIG} names timm's architecture {said.timm_model_name!r}, "
                "which Vitrail does not compute: use open_clip for it"
            )
        facts |= named if facts["activation"] != "swiglu" else {"heads": named["heads"]}
    facts["pool"] = pooled.get(said.timm_pool, facts["pool"])
    return facts | {"notes": notes(foreign)}


def preprocessing(foreign: Foreign, config: ViTConfig) -> Preprocessing:
    """The shorter side to the model's, then the centre, unless OpenCLIP's config says otherwise."""
    said = told(foreign, Prepared, "preprocess_cfg")
    return Preprocessing(
        size=config.image_size,
        resize=None if said.resize_mode == "squash" else config.image_size,
        interpolation=said.interpolation,
        mean=said.mean if config.channels == 3 else (0.5,) * config.channels,
        std=said.std if config.channels == 3 else (0.5,) * config.channels,
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
    """What is known of it; OpenCLIP also wants timm's name for the trunk, which nothing tells."""
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
    prepared = {
        "mean": list(before.mean),
        "std": list(before.std),
        "interpolation": before.interpolation,
        "resize_mode": "shortest" if before.resize else "squash",
    }
    return {CONFIG: {"model_cfg": model, "preprocess_cfg": prepared}}


def clashes(config: ViTConfig) -> str | None:
    if config.num_classes and config.head_bias:
        return "projects without a bias, this head has one"
    return plain_blocks(config)


def clashes_openai(config: ViTConfig) -> str | None:
    if config.dim != 64 * config.heads or config.mlp_dim != 4 * config.dim:
        return "has heads of width 64 and MLPs four times as wide as the model, and nothing else"
    return clashes(config)


# Pooling the class token, it is the same to norm it before or after.
HOLDS: dict[str, Any] = {
    "head_bias": ANY,
    "patch_bias": (False,),
    "embed_norm": (True,),
    "final_norm": ("tokens", "pooled"),
}

OPENAI_CLIP = Dialect(
    name="openai_clip",
    about="OpenAI's CLIP: the image tower, with quick GELU",
    claims=claims_openai,
    infer=infer_openai,
    rows=rows,
    preprocessing=preprocessing,
    resize="timm",
    holds=HOLDS,
    square=True,
    clashes=clashes_openai,
)

OPEN_CLIP = Dialect(
    name="open_clip",
    about="OpenCLIP: the image tower, if it is a ViT of its own",
    claims=claims_open,
    infer=infer_open,
    rows=rows,
    preprocessing=preprocessing,
    resize="timm",
    holds=HOLDS | {"embed_norm": ANY, "pool": ("cls", "mean"), "layer_scale": ANY},
    clashes=clashes,
    sidecars=sidecars,
)

OPEN_CLIP_TIMM = Dialect(
    name="open_clip-timm",
    about="OpenCLIP: the image tower, if it is a ViT of timm",
    claims=claims_trunk,
    infer=infer_trunk,
    rows=trunk_rows,
    preprocessing=preprocessing,
    resize="timm",
    holds=timm.TIMM.holds,
    clashes=timm.TIMM.clashes,
    sidecars=trunk_sidecars,
)
