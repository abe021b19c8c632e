"""MobileViT V2 as timm, transformers and apple/ml-cvnets write it."""

from dataclasses import replace
from functools import partial
from typing import Any

from vitrail.core.passport import Passport
from vitrail.models.mobilevitv2 import INVERTED, MobileViTV2Config
from vitrail.weights.dialects import mobilevit, timm, transformers
from vitrail.weights.dialects import mobilevit_names as names
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.dialects.timm_architectures import is_row_of
from vitrail.weights.old_dialect import ANY, AllowList, Dialect
from vitrail.weights.old_rows import same

TIMM_SPELLING = replace(
    mobilevit.TIMM_SPELLING,
    counts=INVERTED,
    last=None,
    parts={"local": "conv_kxk", "project": "conv_proj"},
    loose=[
        same("{s}.conv_1x1.weight", "{s}.embed.weight"),
        same("{s}.transformer.{i}.norm1.{p}", "{s}.blocks.{i}.norm1.{p}"),
        same("{s}.transformer.{i}.attn.qkv_proj.{p}", "{s}.blocks.{i}.attention.qkv.{p}"),
        same("{s}.transformer.{i}.attn.out_proj.{p}", "{s}.blocks.{i}.attention.out.{p}"),
        same("{s}.transformer.{i}.norm2.{p}", "{s}.blocks.{i}.norm2.{p}"),
        same("{s}.transformer.{i}.mlp.fc1.{p}", "{s}.blocks.{i}.mlp.fc1.{p}"),
        same("{s}.transformer.{i}.mlp.fc2.{p}", "{s}.blocks.{i}.mlp.fc2.{p}"),
        same("{s}.norm.{p}", "{s}.norm.{p}"),
    ],
)
ENCODER = "{s}.global_rep.{i}"
CVNETS_SPELLING = replace(
    mobilevit.CVNETS_SPELLING,
    counts=INVERTED,
    last=None,
    parts={"local": "local_rep.0", "project": "conv_proj"},
    loose=[
        same("{s}.local_rep.1.block.conv.weight", "{s}.embed.weight"),
        same(f"{ENCODER}.pre_norm_attn.0.{{p}}", "{s}.blocks.{i}.norm1.{p}"),
        same(
            f"{ENCODER}.pre_norm_attn.1.qkv_proj.block.conv.{{p}}",
            "{s}.blocks.{i}.attention.qkv.{p}",
        ),
        same(
            f"{ENCODER}.pre_norm_attn.1.out_proj.block.conv.{{p}}",
            "{s}.blocks.{i}.attention.out.{p}",
        ),
        same(f"{ENCODER}.pre_norm_ffn.0.{{p}}", "{s}.blocks.{i}.norm2.{p}"),
        same(f"{ENCODER}.pre_norm_ffn.1.block.conv.{{p}}", "{s}.blocks.{i}.mlp.fc1.{p}"),
        same(f"{ENCODER}.pre_norm_ffn.3.block.conv.{{p}}", "{s}.blocks.{i}.mlp.fc2.{p}"),
        same("{s}.global_rep.{depth}.{p}", "{s}.norm.{p}"),
    ],
    head="classifier.1",
)
LAYER = mobilevit.LAYER
TRANSFORMERS_SPELLING = replace(
    mobilevit.TRANSFORMERS_SPELLING,
    counts=INVERTED,
    last=None,
    parts={"local": "conv_kxk", "project": "conv_projection"},
    loose=[
        same("{a}{s}.conv_1x1.convolution.weight", "{s}.embed.weight"),
        same(f"{LAYER}.layernorm_before.{{p}}", "{s}.blocks.{i}.norm1.{p}"),
        same(f"{LAYER}.attention.qkv_proj.convolution.{{p}}", "{s}.blocks.{i}.attention.qkv.{p}"),
        same(f"{LAYER}.attention.out_proj.convolution.{{p}}", "{s}.blocks.{i}.attention.out.{p}"),
        same(f"{LAYER}.layernorm_after.{{p}}", "{s}.blocks.{i}.norm2.{p}"),
        same(f"{LAYER}.ffn.conv1.convolution.{{p}}", "{s}.blocks.{i}.mlp.fc1.{p}"),
        same(f"{LAYER}.ffn.conv2.convolution.{{p}}", "{s}.blocks.{i}.mlp.fc2.{p}"),
        same("{a}{s}.layernorm.{p}", "{s}.norm.{p}"),
    ],
    prefix="mobilevitv2.",
)
SHAPES = dict.fromkeys(("stem", "widths", "dims", "depths", "expand", "mlp_ratio"), ANY)

# arXiv:2206.02680 was trained on what Pillow reads; transformers feeds it blue first all the same.
RED_FIRST = replace(mobilevit.BLUE_FIRST, interpolation="bicubic", channel_order="rgb")


def sidecars(passport: Passport, config: MobileViTV2Config) -> dict[str, dict[str, Any]]:
    said = mobilevit.written(passport, config, model_type="mobilevitv2", classes="MobileViTV2")
    said |= {
        "width_multiplier": config.widths[-1] / 512,
        "base_attn_unit_dims": base_dims(config),
        "n_attn_blocks": list(config.depths),
        "ffn_multiplier": int(config.mlp_ratio),
        "attn_dropout": 0.0,
        "ffn_dropout": 0.0,
        "classifier_dropout_prob": config.dropout,
    }
    before = files.write_mobile_preprocessing(passport.preprocessing)
    return {"config.json": said, "preprocessor_config.json": before}


def base_dims(config: MobileViTV2Config) -> list[int]:
    return [round(dim * 512 / config.widths[-1]) for dim in config.dims]


def clashes(config: MobileViTV2Config) -> str | None:
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


TIMM = Dialect(
    name="timm-mobilevitv2",
    about="pytorch-image-models: MobileViT V2",
    family="mobilevitv2",
    claims=partial(names.claims, TIMM_SPELLING),
    infer=partial(mobilevit.infer_timm, TIMM_SPELLING),
    rows=partial(mobilevit.rows, TIMM_SPELLING),
    preprocessing=partial(
        mobilevit.evaluated, lambda config: 0.888 if max(config.image_size) < 384 else 1.0
    ),
    resize="timm",
    holds=SHAPES,
    sidecars=mobilevit.sidecars_timm,
    labels=partial(timm.labels, head="head.fc"),
    licence=timm.licence,
    computes=AllowList("timm", is_row_of("mobilevitv2")),
)
TRANSFORMERS = Dialect(
    name="transformers-mobilevitv2",
    about="Hugging Face transformers: MobileViT V2, the same names in versions 4 and 5",
    family="mobilevitv2",
    claims=partial(names.claims, TRANSFORMERS_SPELLING),
    infer=partial(mobilevit.infer_transformers, TRANSFORMERS_SPELLING, "mobilevitv2"),
    rows=partial(mobilevit.rows, TRANSFORMERS_SPELLING),
    preprocessing=partial(mobilevit.read_processor, mobilevit.BLUE_FIRST),
    resize="hf",
    holds=SHAPES | {"patch_size": ANY},
    clashes=clashes,
    sidecars=sidecars,
    labels=transformers.labels,
    multi_label=files.read_multi_label,
    computes=AllowList("transformers", {"mobilevitv2"}.__contains__, "MobileViT"),
)
CVNETS = Dialect(
    name="cvnets-mobilevitv2",
    about="apple/ml-cvnets: MobileViT V2, the paper's code, which reads red first",
    family="mobilevitv2",
    claims=partial(names.claims, CVNETS_SPELLING),
    infer=partial(names.infer, CVNETS_SPELLING),
    rows=partial(mobilevit.rows, CVNETS_SPELLING),
    preprocessing=partial(mobilevit.prepared, RED_FIRST),
    resize="paper",
    holds=SHAPES,
    suffix=".pth",
)
