"""Hugging Face transformers: Swin, in the names of version 5 and in the classic ones, and Swin V2,
whose names both versions share."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Passport
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.weights.dialect import AllowList, Dialect, Foreign, both_versions
from vitrail.weights.dialects import swin, swinv2
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.dialects.swin import OURS
from vitrail.weights.rows import FLAT_TABLE, Facts, Row, drop, fuse, in_version, same, within

# As the processors of the weights that Microsoft published there do.
USUAL = replace(files.SQUEEZED, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
EPS = swin.EPS  # of the norms that its code does not let config.json decide
NORMS = (
    same("layernorm_before.{p}", f"{OURS}norm1.{{p}}"),
    same("layernorm_after.{p}", f"{OURS}norm2.{{p}}"),
)
CLASSIC_MLP = (
    same("attention.output.dense.{p}", f"{OURS}attention.out.{{p}}"),
    same("intermediate.dense.{p}", f"{OURS}mlp.fc1.{{p}}"),
    same("output.dense.{p}", f"{OURS}mlp.fc2.{{p}}"),
)
QKV = ("query", "key", "value")
CLASSIC = (
    fuse([f"attention.self.{name}.{{p}}" for name in QKV], f"{OURS}attention.qkv.{{p}}"),
    same("attention.self.relative_position_bias_table", f"{OURS}attention.bias.table"),
    *CLASSIC_MLP,
)
NEW = (
    fuse([f"attention.{name}_proj.{{p}}" for name in "qkv"], f"{OURS}attention.qkv.{{p}}"),
    same("attention.o_proj.{p}", f"{OURS}attention.out.{{p}}"),
    same(
        "attention.relative_position_bias.relative_position_bias_table",
        f"{OURS}attention.bias.table",
    ),
    *swin.MLP,
)
BIAS_MLP = "attention.self.continuous_position_bias_mlp"
V2 = (
    same("attention.self.logit_scale", f"{OURS}attention.logit_scale"),
    same(f"{BIAS_MLP}.0.{{p}}", f"{OURS}attention.bias.fc1.{{p}}"),
    same(f"{BIAS_MLP}.2.weight", f"{OURS}attention.bias.fc2.weight"),
    fuse([f"attention.self.{name}.weight" for name in QKV], f"{OURS}attention.qkv.weight"),
    fuse(
        ["attention.self.query.bias", "attention.self.value.bias"],
        f"{OURS}attention.qv_bias",
        FLAT_TABLE,
    ),
    *CLASSIC_MLP,
)


def rows(block: tuple[Row, ...]) -> tuple[Row, ...]:
    """A model with a head has its encoder inside {root}; one without is its encoder itself."""
    encoder = (
        same("embeddings.patch_embeddings.projection.{p}", "patches.projection.{p}"),
        same("embeddings.norm.{p}", "embed_norm.{p}"),
        *within("encoder.layers.{s}.blocks.{b}.", (*NORMS, *block)),
        *within("encoder.layers.{s-1}.downsample.", swin.MERGE),
        same("layernorm.{p}", "norm.{p}"),
        drop("embeddings.mask_token", why=swin.MASKED),
    )
    return (
        *within("{root}", encoder),
        same("classifier.{p}", "head.classes.{p}"),
        *swin.BUFFERS,
        drop("decoder.*", why=swin.PAINTED),
    )


@dataclass(frozen=True, kw_only=True)
class Told(files.Told):
    """The fields of config.json that tensors cannot tell."""

    window_size: int | None = None
    pretrained_window_sizes: tuple[int, ...] | None = None


def sidecar_facts(foreign: Foreign, _: Facts) -> Facts:
    """What config.json adds for either version."""
    told = files.read_record(Told, foreign, "config.json")
    if files.read_activation(told, foreign.source) != "gelu":
        raise UserError(
            f"{foreign.source}: hidden_act is {told.hidden_act!r}, but Swin is read with the "
            "exact GELU alone, 'gelu'"
        )
    if told.layer_norm_eps not in (None, EPS):
        raise UserError(
            f"{foreign.source}: layer_norm_eps is {told.layer_norm_eps}, but transformers has "
            f"{EPS} in some norms of a Swin whatever it says: only {EPS} is read"
        )
    size = told.image_size
    if size is None:
        return {}
    return {"image_size": (size, size) if isinstance(size, int) else size}


def v2_facts(foreign: Foreign, facts: Facts) -> Facts:
    told = files.read_record(Told, foreign, "config.json")
    windows = (told.pretrained_window_sizes or ())[: len(facts["depths"])]
    known = sidecar_facts(foreign, facts)
    if told.window_size is None:
        return known
    windows = swinv2.pretrained(windows)
    return known | {"window_size": told.window_size, "pretrained_windows": windows}


def labels(foreign: Foreign) -> tuple[str, ...] | None:
    head = foreign.tensors.get("classifier.weight")
    classes = len(head) if head is not None and head.ndim else 0
    return files.read_labels(files.read_config(foreign), classes, foreign.source)


def why_unsupported(config: SwinConfig) -> str | None:
    """Its Swin V2 adds the mask of shifted windows twice, which changes nothing that a softmax of
    such logits shows."""
    if config.norm_eps != EPS:
        return f"has eps {EPS} in some norms, whatever those of the blocks have"
    if isinstance(config, SwinV2Config):
        return swinv2.oblong_reference(config) or swin.other_windows("hf", config)
    whole = (config.window_size,) * 2
    if any(config.layout(i, 0).window != whole for i in range(len(config.depths))):
        return "has tables for windows of one size, and here a grid is smaller than a window"
    return swin.other_windows("paper", config)


def sidecars(model_type: str, passport: Passport, config: SwinConfig) -> dict[str, dict[str, Any]]:
    """A config.json from which Auto classes build this very model, and one for its processor."""
    height, width = config.image_size
    kind = "ForImageClassification" if config.num_classes else "Model"
    written: dict[str, Any] = {
        "architectures": [model_type.capitalize() + kind],
        "model_type": model_type,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "embed_dim": config.dim,
        "hidden_size": config.features,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "num_layers": len(config.depths),
        "window_size": config.window_size,
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": True,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": config.drop_path,
        "use_absolute_embeddings": False,
        "initializer_range": 0.02,
        "layer_norm_eps": config.norm_eps,
        "encoder_stride": config.patch_size * 2 ** (len(config.depths) - 1),
        **files.write_labels(passport, config),
        **(swinv2.written_windows(config) if isinstance(config, SwinV2Config) else {}),
    }
    before = files.write_preprocessing(passport.preprocessing)
    return {"config.json": written, "preprocessor_config.json": before}


SWIN = Dialect(
    name="transformers-swin",
    about="Hugging Face transformers: Swin, names of version 5",
    family="swin",
    rows=rows((*NEW, *in_version("v4", CLASSIC))),
    values={"root": ("swin.", "")},
    unbound=lambda config, _: {"root": "swin." if config.num_classes else ""},
    accepts=swin.has("relative_position_bias_table"),
    constants={"norm_eps": EPS},
    sidecar_facts=sidecar_facts,
    preprocessing=lambda foreign, config: files.read_preprocessing(foreign, config, USUAL),
    resize="hf",
    supports=swin.SUPPORTS,
    why_unsupported=why_unsupported,
    sidecars=partial(sidecars, "swin"),
    labels=labels,
    multi_label=files.read_multi_label,
    architectures=AllowList("transformers", {"swin"}.__contains__, "Swin"),
)
TRANSFORMERS_SWIN = both_versions(SWIN)
TRANSFORMERS_SWINV2 = replace(
    SWIN,
    name="transformers-swinv2",
    about="Hugging Face transformers: Swin V2, in the names of versions 4 and 5",
    family="swinv2",
    rows=rows(V2),
    values={"root": ("swinv2.", "")},
    unbound=lambda config, _: {"root": "swinv2." if config.num_classes else ""},
    accepts=swin.has(".logit_scale"),
    constants={"norm_eps": EPS, "window_policy": "hf"},
    sidecar_facts=v2_facts,
    supports=swinv2.SUPPORTS,
    sidecars=partial(sidecars, "swinv2"),
    architectures=AllowList("transformers", {"swinv2"}.__contains__, "Swinv2"),
)
