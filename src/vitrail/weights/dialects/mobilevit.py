"""MobileViT as timm, transformers and apple/ml-cvnets write it, and what either version needs.

{e} is an early stage, of inverted residuals alone, {t} one with a transformer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vitrail.core.passport import Preprocessing
from vitrail.models.catalogue import variant_of
from vitrail.models.config import Config
from vitrail.models.mobilevit import MobileViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign, Values
from vitrail.weights.dialects import timm_config
from vitrail.weights.dialects import transformers_config as files
from vitrail.weights.dialects.conv_norm import STATISTICS, conv_norm
from vitrail.weights.dialects.timm_architectures import is_row_of, refuse_other_layers
from vitrail.weights.dialects.transformers_config import Kind
from vitrail.weights.dialects.transformers_processor import (
    read_preprocessing,
    write_mobile_preprocessing,
)
from vitrail.weights.rows import Facts, Row, fuse, refuse, same, within

OURS = "stages.{t}.1.blocks.{i}."
STAGES = {"e": ("0", "1"), "t": ("2", "3", "4"), "n": STATISTICS}
CVNETS_STAGES: Values = {
    "e": (("1", "0"), ("2", "1")),
    "t": (("3", "2"), ("4", "3"), ("5", "4")),
    "n": STATISTICS,
}
SUPPORTS = dict.fromkeys(("stem", "widths", "dims", "depths", "last", "expand", "mlp_ratio"), ANY)

# arXiv:2110.02178 was trained on what OpenCV reads: blue first. Values are from 0 to 1.
BLUE_FIRST = Preprocessing(
    size=(256, 256),
    resize=(288, 288),
    crop="floored",
    interpolation="bilinear",
    mean=(0.0,) * 3,
    std=(1.0,) * 3,
    channel_order="bgr",
)


def conv_norms(names: Mapping[str, str], conv: str, norm: str) -> tuple[Row, ...]:
    """Convolutions with a batch norm: ours by theirs, and what their two parts are called."""
    return tuple(
        row
        for theirs, ours in names.items()
        for row in conv_norm(f"{theirs}.{conv}", f"{theirs}.{norm}", ours)
    )


def inverted(at: Mapping[str, str], *three: str) -> dict[str, str]:
    """The convolutions of inverted residuals, ours by theirs: up, in each channel, down."""
    parts = zip(three, ("expand", "filter", "project"), strict=True)
    pairs = [(theirs, ours) for theirs, ours in parts]
    return {f"{t}.{theirs}": f"{o}.{ours}" for t, o in at.items() for theirs, ours in pairs}


def blocks(layer: str, **names: str) -> tuple[Row, ...]:
    """The parts of a transformer's block, ours by name: norm1="norm1", mlp_fc1="mlp.fc1"."""
    ours = {name: name.replace("_", ".") for name in names}
    return tuple(
        same(f"{layer}.{theirs}.{{p}}", f"{OURS}{ours[name]}.{{p}}")
        for name, theirs in names.items()
    )


RESIDUALS = {"stages.{e}.{b}": "stages.{e}.{b}", "stages.{t}.0": "stages.{t}.0"}
TIMM_PARTS = {
    "stem": "stem",
    **inverted(RESIDUALS, "conv1_1x1", "conv2_kxk", "conv3_1x1"),
    "stages.{t}.1.conv_kxk": "stages.{t}.1.local",
    "stages.{t}.1.conv_proj": "stages.{t}.1.project",
}
TIMM_LOOSE = (
    same("stages.{t}.1.conv_1x1.weight", "stages.{t}.1.embed.weight"),
    *blocks(
        "stages.{t}.1.transformer.{i}",
        norm1="norm1", norm2="norm2", mlp_fc1="mlp.fc1", mlp_fc2="mlp.fc2",
    ),
    same("stages.{t}.1.norm.{p}", "stages.{t}.1.norm.{p}"),
    same("head.fc.{p}", "head.classes.{p}"),
)  # fmt: skip
TIMM_ROWS = (
    *conv_norms(
        TIMM_PARTS | {"final_conv": "last", "stages.{t}.1.conv_fusion": "stages.{t}.1.fuse"},
        "conv",
        "bn",
    ),
    *TIMM_LOOSE,
    *blocks("stages.{t}.1.transformer.{i}.attn", attention_qkv="qkv", attention_out="proj"),
)
CVNETS_RESIDUALS = {
    "layer_{e}.{b}.block": "stages.{e}.{b}",
    "layer_{t}.0.block": "stages.{t}.0",
}
CVNETS_PARTS = {
    "conv_1": "stem",
    **inverted(CVNETS_RESIDUALS, "exp_1x1", "conv_3x3", "red_1x1"),
    "layer_{t}.1.conv_proj": "stages.{t}.1.project",
}
# the norm after the blocks is numbered as if it were one
CVNETS_NORM = same("layer_{t}.1.global_rep.{depth}.{p}", "stages.{t}.1.norm.{p}")
CVNETS_ROWS = (
    *conv_norms(
        CVNETS_PARTS
        | {
            "conv_1x1_exp": "last",
            "layer_{t}.1.local_rep.conv_3x3": "stages.{t}.1.local",
            "layer_{t}.1.fusion": "stages.{t}.1.fuse",
        },
        "block.conv",
        "block.norm",
    ),
    same("layer_{t}.1.local_rep.conv_1x1.block.conv.weight", "stages.{t}.1.embed.weight"),
    *blocks(
        "layer_{t}.1.global_rep.{i}",
        norm1="pre_norm_mha.0",
        attention_qkv="pre_norm_mha.1.qkv_proj",
        attention_out="pre_norm_mha.1.out_proj",
        norm2="pre_norm_ffn.0",
        mlp_fc1="pre_norm_ffn.1",
        mlp_fc2="pre_norm_ffn.4",
    ),
    CVNETS_NORM,
    same("classifier.fc.{p}", "head.classes.{p}"),
)
HF_RESIDUALS = {
    "encoder.layer.{e}.layer.{b}": "stages.{e}.{b}",
    "encoder.layer.{t}.downsampling_layer": "stages.{t}.0",
}
HF_PARTS = {
    "conv_stem": "stem",
    **inverted(HF_RESIDUALS, "expand_1x1", "conv_3x3", "reduce_1x1"),
    "encoder.layer.{t}.conv_kxk": "stages.{t}.1.local",
    "encoder.layer.{t}.conv_projection": "stages.{t}.1.project",
}
HF_LAYER = "encoder.layer.{t}.transformer.layer.{i}"
HF_LOOSE = (
    same("encoder.layer.{t}.conv_1x1.convolution.weight", "stages.{t}.1.embed.weight"),
    *blocks(HF_LAYER, norm1="layernorm_before", norm2="layernorm_after"),
    same("encoder.layer.{t}.layernorm.{p}", "stages.{t}.1.norm.{p}"),
)
HF_QKV = [f"{HF_LAYER}.attention.attention.{part}.{{p}}" for part in ("query", "key", "value")]


def hf_rows(parts: Mapping[str, str], *more: Row) -> tuple[Row, ...]:
    """A model with a head has its encoder inside {root}; one without is its encoder itself."""
    encoder = (*conv_norms(parts, "convolution", "normalization"), *HF_LOOSE, *more)
    return (
        *within("{root}", encoder),
        same("classifier.{p}", "head.classes.{p}"),
        refuse("segmentation_head.*", why="it marks regions, and only classifiers are read"),
    )


HF_ROWS = hf_rows(
    HF_PARTS | {"conv_1x1_exp": "last", "encoder.layer.{t}.fusion": "stages.{t}.1.fuse"},
    fuse(HF_QKV, f"{OURS}attention.qkv.{{p}}"),
    *blocks(
        HF_LAYER,
        attention_out="attention.output.dense",
        mlp_fc1="intermediate.dense",
        mlp_fc2="output.dense",
    ),
)


def timm_facts(foreign: Foreign, _: Facts) -> Facts:
    refuse_other_layers(foreign)
    pretrained = timm_config.section(foreign, "pretrained_cfg")
    size = pretrained.get("input_size")
    return {"image_size": size[1:]} if isinstance(size, list) and len(size) == 3 else {}


def evaluated(share: Callable[[Config], float], foreign: Foreign, config: Config) -> Preprocessing:
    """As timm does it: red first, for which it turned the stem's kernels round where apple's
    weights had blue first."""
    mean, std = (0.0,) * config.channels, (1.0,) * config.channels
    return timm_config.evaluated(foreign, config, mean=mean, std=std, crop=share(config))


def prepared(usual: Preprocessing, _: Foreign, config: Config) -> Preprocessing:
    """The same at the model's own size, with as much of a margin, and with its channels."""
    margin = (usual.resize or usual.size)[0] - usual.size[0]
    height, width = config.image_size
    return replace(
        usual,
        size=config.image_size,
        resize=(height + margin, width + margin),
        mean=(0.0,) * config.channels,
        std=(1.0,) * config.channels,
    )


KIND = Kind(
    model_type="mobilevit",
    classes="MobileViT",
    fields=files.COMMON
    | {
        "expand_ratio": "expand",
        "hidden_sizes": "dims",
        "num_attention_heads": "heads",
        "mlp_ratio": "mlp_ratio",
        "hidden_dropout_prob": "dropout",
        "classifier_dropout_prob": "dropout",
    },
    reads=(
        "image_size", "patch_size", "layer_norm_eps", "expand_ratio", "num_attention_heads",
        "mlp_ratio",
    ),
    usual=BLUE_FIRST,
    extras=lambda config: {
        "hidden_act": "silu",
        "neck_hidden_sizes": [config.stem, *config.widths, config.last],
        "qkv_bias": True,
    },
    write_preprocessing=write_mobile_preprocessing,
)  # fmt: skip


def hf_facts(kind: Kind, foreign: Foreign, _: Facts) -> Facts:
    files.require(foreign, "hidden_act", ("silu", "swish"), "MobileViT has no other")
    why = "with another its last convolutions leave out pixels, as those of a classifier do not"
    files.require(foreign, "output_stride", (32,), why)
    return kind.facts(foreign)


def hf_dialect(kind: Kind, rows: tuple[Row, ...], **others: Any) -> Dialect:
    """transformers' dialect of either version."""
    common = kind.in_common
    return Dialect(
        **common
        | {
            "family": kind.model_type,
            "rows": rows,
            "values": STAGES | common["values"],
            "constants": {"norm_eps": 1e-5},
            "sidecar_facts": partial(hf_facts, kind),
            "preprocessing": lambda foreign, config: read_preprocessing(
                foreign, config, prepared(BLUE_FIRST, foreign, config)
            ),
            "supports": SUPPORTS | {"patch_size": ANY},
            **others,
        }
    )


def other_depths(config: MobileViTConfig) -> str | None:
    if config.depths != (2, 4, 3):
        return f"has transformers of 2, 4 and 3 blocks, not of {config.depths}"
    return None


TIMM = Dialect(
    name="timm-mobilevit",
    about="pytorch-image-models: MobileViT",
    family="mobilevit",
    rows=TIMM_ROWS,
    values=STAGES,
    constants={"norm_eps": 1e-5},
    sidecar_facts=timm_facts,
    preprocessing=partial(evaluated, lambda _: 0.9),
    supports=SUPPORTS,
    **timm_config.in_common(
        variant_of,
        lambda config: {"global_pool": "avg", "in_chans": config.channels},
        is_row_of("mobilevit"),
    ),
)
TRANSFORMERS = hf_dialect(
    KIND,
    HF_ROWS,
    about="MobileViT, the same names in versions 4 and 5",
    why_unsupported=other_depths,
)
CVNETS = Dialect(
    name="cvnets-mobilevit",
    about="apple/ml-cvnets: MobileViT, the paper's code, which expects BGR",
    family="mobilevit",
    rows=CVNETS_ROWS,
    values=CVNETS_STAGES,
    unbound=lambda config, bound: {"depth": config.depths[bound["t"]]} if "t" in bound else {},
    constants={"norm_eps": 1e-5},
    preprocessing=partial(prepared, BLUE_FIRST),
    resize="paper",
    supports=SUPPORTS,
    suffix=".pth",
)
