"""MobileViT V2 as timm, transformers and apple/ml-cvnets write it."""

from dataclasses import replace
from functools import partial

from vitrail.models.mobilevitv2 import MobileViTV2Config
from vitrail.weights.dialect import AllowList
from vitrail.weights.dialects import mobilevit
from vitrail.weights.dialects import transformers_config as files
from vitrail.weights.dialects.mobilevit import (
    BLUE_FIRST,
    CVNETS_NORM,
    CVNETS_PARTS,
    HF_LAYER,
    HF_PARTS,
    TIMM_LOOSE,
    TIMM_PARTS,
    blocks,
    conv_norms,
    hf_rows,
)
from vitrail.weights.dialects.timm_architectures import is_row_of
from vitrail.weights.rows import same

TIMM_ROWS = (
    *conv_norms(TIMM_PARTS, "conv", "bn"),
    *TIMM_LOOSE,
    *blocks(
        "stages.{t}.1.transformer.{i}.attn", attention_qkv="qkv_proj", attention_out="out_proj"
    ),
)
CVNETS_ROWS = (
    *conv_norms(
        CVNETS_PARTS | {"layer_{t}.1.local_rep.0": "stages.{t}.1.local"}, "block.conv", "block.norm"
    ),
    same("layer_{t}.1.local_rep.1.block.conv.weight", "stages.{t}.1.embed.weight"),
    *blocks(
        "layer_{t}.1.global_rep.{i}",
        norm1="pre_norm_attn.0",
        attention_qkv="pre_norm_attn.1.qkv_proj.block.conv",
        attention_out="pre_norm_attn.1.out_proj.block.conv",
        norm2="pre_norm_ffn.0",
        mlp_fc1="pre_norm_ffn.1.block.conv",
        mlp_fc2="pre_norm_ffn.3.block.conv",
    ),
    CVNETS_NORM,
    same("classifier.1.{p}", "head.classes.{p}"),
)
HF_ROWS = hf_rows(
    HF_PARTS,
    *blocks(
        HF_LAYER,
        attention_qkv="attention.qkv_proj.convolution",
        attention_out="attention.out_proj.convolution",
        mlp_fc1="ffn.conv1.convolution",
        mlp_fc2="ffn.conv2.convolution",
    ),
)
# arXiv:2206.02680 was trained on what Pillow reads; transformers feeds it blue first all the same.
RED_FIRST = replace(BLUE_FIRST, interpolation="bicubic", channel_order="rgb")


def base_dims(config: MobileViTV2Config) -> list[int]:
    return [round(dim * 512 / config.widths[-1]) for dim in config.dims]


def other_widths(config: MobileViTV2Config) -> str | None:
    """transformers computes all widths from one factor."""
    factor = config.widths[-1] / 512
    stem = divisible(max(16, min(64, 32 * factor)), least=16)
    first = divisible(64 * factor, by=16)
    others = tuple(divisible(width * factor) for width in (128, 256, 384, 512))
    dims = tuple(divisible(base * factor) for base in base_dims(config))
    if (stem, (first, *others), dims) != (config.stem, config.widths, config.dims):
        return f"scales all widths by one factor, and none gives {config.stem}, {config.widths}"
    hidden = [int(config.mlp_ratio) * dim // 16 * 16 for dim in config.dims]
    if hidden != [int(config.mlp_ratio * dim) for dim in config.dims]:
        return f"has an MLP a whole number of times as wide, not {config.mlp_ratio:g}"
    return None


def divisible(value: float, by: int = 8, least: int | None = None) -> int:
    """The nearest multiple that is not a tenth too small, as transformers computes widths."""
    nearest = max(by if least is None else least, int(value + by / 2) // by * by)
    return nearest + by if nearest < 0.9 * value else nearest


TIMM = replace(
    mobilevit.TIMM,
    name="timm-mobilevitv2",
    about="pytorch-image-models: MobileViT V2",
    family="mobilevitv2",
    rows=TIMM_ROWS,
    preprocessing=partial(
        mobilevit.evaluated, lambda config: 0.888 if max(config.image_size) < 384 else 1.0
    ),
    architectures=AllowList("timm", is_row_of("mobilevitv2")),
)
KIND = replace(
    mobilevit.KIND,
    model_type="mobilevitv2",
    classes="MobileViTV2",
    fields=files.COMMON
    | {
        "expand_ratio": "expand",
        "n_attn_blocks": "depths",
        "classifier_dropout_prob": "dropout",
    },
    reads=("image_size", "patch_size", "layer_norm_eps", "expand_ratio"),
    extras=lambda config: {
        "hidden_act": "silu",
        "width_multiplier": config.widths[-1] / 512,
        "base_attn_unit_dims": base_dims(config),
        "ffn_multiplier": int(config.mlp_ratio),
        "attn_dropout": 0.0,
        "ffn_dropout": 0.0,
    },
)
TRANSFORMERS = mobilevit.hf_dialect(
    KIND,
    HF_ROWS,
    about="MobileViT V2, the same names in versions 4 and 5",
    why_unsupported=other_widths,
)
CVNETS = replace(
    mobilevit.CVNETS,
    name="cvnets-mobilevitv2",
    about="apple/ml-cvnets: MobileViT V2, the paper's code, which reads red first",
    family="mobilevitv2",
    rows=CVNETS_ROWS,
    preprocessing=partial(mobilevit.prepared, RED_FIRST),
)
