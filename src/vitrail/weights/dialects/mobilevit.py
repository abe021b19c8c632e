"""MobileViT as timm, transformers and apple/ml-cvnets write it, and what either family needs."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, Preprocessing
from vitrail.models.catalogue import FAMILIES, variant_of
from vitrail.models.config import Config
from vitrail.models.mobilevit import INVERTED, MobileViTConfig
from vitrail.weights.dialects import mobilevit_names as names
from vitrail.weights.dialects import timm, transformers
from vitrail.weights.dialects import transformers_sidecars as files
from vitrail.weights.dialects.timm_architectures import is_row_of, refuse_other_layers
from vitrail.weights.old_dialect import ANY, AllowList, Dialect, Facts, Foreign
from vitrail.weights.old_rows import Row, fuse, same

TIMM_SPELLING = names.Spelling(
    counts=INVERTED,
    conv="{c}.conv",
    norm="{c}.bn",
    stem="stem",
    last="final_conv",
    inverted=lambda stage, number: f"stages.{stage}.{number}",
    three=("conv1_1x1", "conv2_kxk", "conv3_1x1"),
    block=lambda stage: f"stages.{stage}.1",
    parts={"local": "conv_kxk", "project": "conv_proj", "fuse": "conv_fusion"},
    loose=[
        same("{s}.conv_1x1.weight", "{s}.embed.weight"),
        same("{s}.transformer.{i}.norm1.{p}", "{s}.blocks.{i}.norm1.{p}"),
        same("{s}.transformer.{i}.attn.qkv.{p}", "{s}.blocks.{i}.attention.qkv.{p}"),
        same("{s}.transformer.{i}.attn.proj.{p}", "{s}.blocks.{i}.attention.out.{p}"),
        same("{s}.transformer.{i}.norm2.{p}", "{s}.blocks.{i}.norm2.{p}"),
        same("{s}.transformer.{i}.mlp.fc1.{p}", "{s}.blocks.{i}.mlp.fc1.{p}"),
        same("{s}.transformer.{i}.mlp.fc2.{p}", "{s}.blocks.{i}.mlp.fc2.{p}"),
        same("{s}.norm.{p}", "{s}.norm.{p}"),
    ],
    head="head.fc",
)
CVNETS_SPELLING = names.Spelling(
    counts=INVERTED,
    conv="{c}.block.conv",
    norm="{c}.block.norm",
    stem="conv_1",
    last="conv_1x1_exp",
    inverted=lambda stage, number: f"layer_{stage + 1}.{number}.block",
    three=("exp_1x1", "conv_3x3", "red_1x1"),
    block=lambda stage: f"layer_{stage + 1}.1",
    parts={"local": "local_rep.conv_3x3", "project": "conv_proj", "fuse": "fusion"},
    loose=[
        same("{s}.local_rep.conv_1x1.block.conv.weight", "{s}.embed.weight"),
        same("{s}.global_rep.{i}.pre_norm_mha.0.{p}", "{s}.blocks.{i}.norm1.{p}"),
        same("{s}.global_rep.{i}.pre_norm_mha.1.qkv_proj.{p}", "{s}.blocks.{i}.attention.qkv.{p}"),
        same("{s}.global_rep.{i}.pre_norm_mha.1.out_proj.{p}", "{s}.blocks.{i}.attention.out.{p}"),
        same("{s}.global_rep.{i}.pre_norm_ffn.0.{p}", "{s}.blocks.{i}.norm2.{p}"),
        same("{s}.global_rep.{i}.pre_norm_ffn.1.{p}", "{s}.blocks.{i}.mlp.fc1.{p}"),
        same("{s}.global_rep.{i}.pre_norm_ffn.4.{p}", "{s}.blocks.{i}.mlp.fc2.{p}"),
        same("{s}.global_rep.{depth}.{p}", "{s}.norm.{p}"),
    ],
    head="classifier.fc",
)
LAYER = "{a}{s}.transformer.layer.{i}"
TRANSFORMERS_SPELLING = names.Spelling(
    counts=INVERTED,
    conv="{c}.convolution",
    norm="{c}.normalization",
    stem="conv_stem",
    last="conv_1x1_exp",
    inverted=lambda stage, number: (
        f"encoder.layer.{stage}."
        + (f"layer.{number}" if stage < names.TRANSFORMERS else "downsampling_layer")
    ),
    three=("expand_1x1", "conv_3x3", "reduce_1x1"),
    block=lambda stage: f"encoder.layer.{stage}",
    parts={"local": "conv_kxk", "project": "conv_projection", "fuse": "fusion"},
    loose=[
        same("{a}{s}.conv_1x1.convolution.weight", "{s}.embed.weight"),
        same(f"{LAYER}.layernorm_before.{{p}}", "{s}.blocks.{i}.norm1.{p}"),
        fuse(
            [f"{LAYER}.attention.attention.{part}.{{p}}" for part in ("query", "key", "value")],
            "{s}.blocks.{i}.attention.qkv.{p}",
        ),
        same(f"{LAYER}.attention.output.dense.{{p}}", "{s}.blocks.{i}.attention.out.{p}"),
        same(f"{LAYER}.layernorm_after.{{p}}", "{s}.blocks.{i}.norm2.{p}"),
        same(f"{LAYER}.intermediate.dense.{{p}}", "{s}.blocks.{i}.mlp.fc1.{p}"),
        same(f"{LAYER}.output.dense.{{p}}", "{s}.blocks.{i}.mlp.fc2.{p}"),
        same("{a}{s}.layernorm.{p}", "{s}.norm.{p}"),
    ],
    head="classifier",
    prefix="mobilevit.",
)
SHAPES = dict.fromkeys(("stem", "widths", "dims", "depths", "last", "expand", "mlp_ratio"), ANY)

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


@dataclass(frozen=True, kw_only=True)
class Told:
    """The fields of transformers' config.json that tensors do not tell, or not exactly."""

    image_size: int | tuple[int, int] | None = None
    patch_size: int | None = None
    num_attention_heads: int | None = None
    hidden_act: str | None = None
    layer_norm_eps: float | None = None
    expand_ratio: float | None = None
    mlp_ratio: float | None = None
    output_stride: int | None = None


def rows(spelling: names.Spelling, config: Any) -> list[Row]:
    # a model without a head is its encoder itself, and has no name inside another
    before = dict.fromkeys((spelling.prefix, "") if config.num_classes else ("", spelling.prefix))
    return names.rows(spelling, [range(depth) for depth in config.depths], before=list(before))


def infer_timm(spelling: names.Spelling, foreign: Foreign) -> Facts:
    refuse_other_layers(foreign)
    said = timm.as_dict(foreign.sidecars.get("config.json", {}).get("pretrained_cfg"))
    size = said.get("input_size")
    sides = {"image_size": size[1:]} if isinstance(size, list) and len(size) == 3 else {}
    return names.infer(spelling, foreign) | sides


def evaluated(share: Callable[[Config], float], foreign: Foreign, config: Config) -> Preprocessing:
    """As timm does it: red first, for which it turned the stem's kernels round where apple's
    weights had blue first."""
    mean, std = (0.0,) * config.channels, (1.0,) * config.channels
    return timm.evaluated(foreign, config, mean=mean, std=std, crop=share(config))


def sidecars_timm(passport: Passport, config: Config) -> dict[str, dict[str, Any]]:
    arguments = {"global_pool": "avg", "in_chans": config.channels}
    return {"config.json": timm.config_json(passport, config, variant_of(config), arguments)}


def prepared(usual: Preprocessing, foreign: Foreign, config: Config) -> Preprocessing:
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


def infer_transformers(spelling: names.Spelling, family: str, foreign: Foreign) -> Facts:
    told = files.read_record(Told, foreign, "config.json")
    if any(name.startswith("segmentation_head.") for name in foreign.tensors):
        raise UserError(f"{foreign.source}: it marks regions, and only classifiers are read")
    if told.hidden_act not in (None, "silu", "swish"):
        raise UserError(f"{foreign.source}: hidden_act is {told.hidden_act!r}, expected 'silu'")
    if told.output_stride not in (None, 32):
        raise UserError(
            f"{foreign.source}: output_stride is {told.output_stride}, expected 32: its last "
            "convolutions leave out pixels, as those of a classifier do not"
        )
    side = told.image_size
    values = {
        "image_size": (side, side) if isinstance(side, int) else side,
        "patch_size": told.patch_size,
        "heads": told.num_attention_heads,
        "norm_eps": told.layer_norm_eps,
        "expand": told.expand_ratio,
        "mlp_ratio": told.mlp_ratio,
    }
    known = {field.name for field in fields(FAMILIES[family].config)}
    facts = {name: value for name, value in values.items() if value is not None and name in known}
    return names.infer(spelling, foreign) | facts


def read_processor(usual: Preprocessing, foreign: Foreign, config: Config) -> Preprocessing:
    return files.read_preprocessing(foreign, config, prepared(usual, foreign, config))


def written(passport: Passport, config: Any, *, model_type: str, classes: str) -> dict[str, Any]:
    """What transformers' config.json of either family says."""
    height, width = config.image_size
    return {
        "architectures": [classes + ("ForImageClassification" if config.num_classes else "Model")],
        "model_type": model_type,
        "num_channels": config.channels,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "expand_ratio": config.expand,
        "hidden_act": "silu",
        "layer_norm_eps": config.norm_eps,
        **files.write_labels(passport, config),
    }


def sidecars(passport: Passport, config: MobileViTConfig) -> dict[str, dict[str, Any]]:
    said = written(passport, config, model_type="mobilevit", classes="MobileViT")
    said |= {
        "hidden_sizes": list(config.dims),
        "neck_hidden_sizes": [config.stem, *config.widths, config.last],
        "num_attention_heads": config.heads,
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": config.dropout,
    }
    before = files.write_mobile_preprocessing(passport.preprocessing)
    return {"config.json": said, "preprocessor_config.json": before}


def clashes(config: MobileViTConfig) -> str | None:
    if config.depths != (2, 4, 3):
        return f"has transformers of 2, 4 and 3 blocks, not of {config.depths}"
    return None


TIMM = Dialect(
    name="timm-mobilevit",
    about="pytorch-image-models: MobileViT",
    family="mobilevit",
    claims=partial(names.claims, TIMM_SPELLING),
    infer=partial(infer_timm, TIMM_SPELLING),
    rows=partial(rows, TIMM_SPELLING),
    preprocessing=partial(evaluated, lambda _: 0.9),
    resize="timm",
    holds=SHAPES,
    sidecars=sidecars_timm,
    labels=partial(timm.labels, head="head.fc"),
    licence=timm.licence,
    computes=AllowList("timm", is_row_of("mobilevit")),
)
TRANSFORMERS = Dialect(
    name="transformers-mobilevit",
    about="Hugging Face transformers: MobileViT, the same names in versions 4 and 5",
    family="mobilevit",
    claims=partial(names.claims, TRANSFORMERS_SPELLING),
    infer=partial(infer_transformers, TRANSFORMERS_SPELLING, "mobilevit"),
    rows=partial(rows, TRANSFORMERS_SPELLING),
    preprocessing=partial(read_processor, BLUE_FIRST),
    resize="hf",
    holds=SHAPES | {"patch_size": ANY},
    clashes=clashes,
    sidecars=sidecars,
    labels=transformers.labels,
    multi_label=files.read_multi_label,
    computes=AllowList("transformers", {"mobilevit"}.__contains__, "MobileViT"),
)
CVNETS = Dialect(
    name="cvnets-mobilevit",
    about="apple/ml-cvnets: MobileViT, the paper's code, which reads blue first",
    family="mobilevit",
    claims=partial(names.claims, CVNETS_SPELLING),
    infer=partial(names.infer, CVNETS_SPELLING),
    rows=partial(rows, CVNETS_SPELLING),
    preprocessing=partial(prepared, BLUE_FIRST),
    resize="paper",
    holds=SHAPES,
    suffix=".pth",
)
