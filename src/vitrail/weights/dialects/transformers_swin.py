"""Swin, in the names of version 5 and in the classic ones, and Swin V2,
whose names both versions share."""

from dataclasses import replace
from functools import partial

from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.weights.dialect import Dialect, Foreign, both_versions
from vitrail.weights.dialects import swin, swinv2
from vitrail.weights.dialects import transformers_config as files
from vitrail.weights.dialects.swin import OURS
from vitrail.weights.dialects.transformers_config import Kind
from vitrail.weights.dialects.transformers_processor import SQUEEZED
from vitrail.weights.rows import FLAT_TABLE, Facts, Row, drop, fuse, in_version, same, within

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


KIND = Kind(
    model_type="swin",
    classes="Swin",
    fields=files.COMMON
    | {
        "embed_dim": "dim",
        "hidden_size": "features",
        "depths": "depths",
        "num_heads": "heads",
        "window_size": "window_size",
        "mlp_ratio": "mlp_ratio",
        "drop_path_rate": "drop_path",
    },
    reads=("image_size",),
    # as the processors of the weights that Microsoft published there
    usual=replace(SQUEEZED, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD),
    extras=lambda config: {
        "num_layers": len(config.depths),
        "qkv_bias": True,
        "hidden_act": "gelu",
        "use_absolute_embeddings": False,
        "encoder_stride": config.patch_size * 2 ** (len(config.depths) - 1),
        **(swinv2.written_windows(config) if isinstance(config, SwinV2Config) else {}),
    },
)
KIND_V2 = replace(
    KIND,
    model_type="swinv2",
    classes="Swinv2",
    fields={**KIND.fields, "pretrained_window_sizes": "pretrained_windows"},
    reads=("image_size", "window_size", "pretrained_window_sizes"),
)


def sidecar_facts(kind: Kind, foreign: Foreign, facts: Facts) -> Facts:
    files.require(
        foreign, "hidden_act", ("gelu", "gelu_python"), "Swin is read with the exact GELU alone"
    )
    why = f"some norms of transformers' Swin have {EPS} whatever config.json specifies"
    files.require(foreign, "layer_norm_eps", (EPS,), why)
    found = kind.facts(foreign)
    windows = found.pop("pretrained_windows", ())[: len(facts["depths"])]
    if "window_size" in found:
        found["pretrained_windows"] = swinv2.pretrained(windows)
    return found


def why_unsupported(config: SwinConfig) -> str | None:
    """Its Swin V2 adds the mask of shifted windows twice, which changes nothing that a softmax of
    such logits shows."""
    if config.norm_eps != EPS:
        return f"has eps {EPS} in some norms, whatever the others have"
    if isinstance(config, SwinV2Config):
        return swinv2.oblong_reference(config) or swin.other_windows("hf", config)
    whole = (config.window_size,) * 2
    if any(config.layout(i, 0).window != whole for i in range(len(config.depths))):
        return "has tables for windows of one size, and here a grid is smaller than a window"
    return swin.other_windows("paper", config)


TRANSFORMERS_SWIN = both_versions(
    Dialect(
        **KIND.in_common,
        about="Swin, names of version 5",
        family="swin",
        rows=rows((*NEW, *in_version("v4", CLASSIC))),
        accepts=swin.has("relative_position_bias_table"),
        constants={"norm_eps": EPS},
        sidecar_facts=partial(sidecar_facts, KIND),
        supports=swin.SUPPORTS,
        why_unsupported=why_unsupported,
    )
)
TRANSFORMERS_SWINV2 = Dialect(
    **KIND_V2.in_common,
    about="Swin V2, in the names of versions 4 and 5",
    family="swinv2",
    rows=rows(V2),
    accepts=swin.has(".logit_scale"),
    constants={"norm_eps": EPS, "window_policy": "hf"},
    sidecar_facts=partial(sidecar_facts, KIND_V2),
    supports=swinv2.SUPPORTS,
    why_unsupported=why_unsupported,
)
