"""BiT as its paper's code and timm write it: `block1/unit01/a/standardized_conv2d/kernel`."""

from typing import Any

from vitrail.core.passport import INCEPTION, Preprocessing
from vitrail.models.bit import ALIASES, BiTConfig
from vitrail.models.catalogue import variant_of
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects import timm_config
from vitrail.weights.dialects.preparation import prepared
from vitrail.weights.dialects.timm_architectures import (
    is_row_of,
    refuse_arguments,
    refuse_other_layers,
)
from vitrail.weights.rows import Facts, axes, refuse, reshape, same, within

EPS = 1e-5  # of every GroupNorm
KERNEL = axes("p q C D", "D C p q")
CONV = "standardized_conv2d/kernel"
UNIT = (
    same("{c}/group_norm/{n}", "stages.{s}.{u}.norm{c}.{n}"),
    reshape(f"{{c}}/{CONV}", "stages.{s}.{u}.conv{c}.weight", KERNEL),
    reshape(f"a/proj/{CONV}", "stages.{s}.{u}.shortcut.weight", KERNEL),
)
ROWS = within(
    "resnet/",
    (
        reshape(f"root_block/{CONV}", "stem.conv.weight", KERNEL),
        *within("block{s+1}/unit{u}/", UNIT),
        same("group_norm/{n}", "norm.{n}"),
        # a head of 1x1 convolutions, after pooling
        reshape("head/conv2d/kernel", "head.classes.weight", axes("1 1 D K", "K D")),
        same("head/conv2d/bias", "head.classes.bias"),
    ),
)
UNITS = tuple((f"{number + 1:02d}", str(number)) for number in range(99))
VALUES = {
    "c": (("a", "1"), ("b", "2"), ("c", "3")),
    "n": (("gamma", "weight"), ("beta", "bias")),
    "u": UNITS,
}
TIMM_ROWS = (
    same("stem.conv.weight", "stem.conv.weight"),
    *within(
        "stages.{s}.blocks.{b}.",
        (
            same("norm{c}.{p}", "stages.{s}.{b}.norm{c}.{p}"),
            same("conv{c}.weight", "stages.{s}.{b}.conv{c}.weight"),
            same("downsample.conv.weight", "stages.{s}.{b}.shortcut.weight"),
        ),
    ),
    same("norm.{p}", "norm.{p}"),
    reshape("head.fc.weight", "head.classes.weight", axes("K D 1 1", "K D")),
    same("head.fc.bias", "head.classes.bias"),
    refuse(
        "stages.[0-9].blocks.*.norm1.running_mean",
        why="it has batch norms, as timm's resnetv2_50 does; of ResNet v2 Vitrail computes BiT, "
        "which has group norms and weight standardisation",
    ),
)
SUPPORTS = {"depths": ANY, "width": ANY, "standardize": ANY}
PUBLISHED = {ours: theirs for theirs, ours in ALIASES.items()}


def facts(foreign: Foreign, facts: Facts) -> Facts:
    if facts["num_classes"] in (0, 21_843):  # 21,843 are those of pre-training on ImageNet-21k
        return {}
    return {
        "notes": [
            "images of 224 pixels unless image_size is given: the paper fine-tunes at 480, and at "
            "128 where images are small"
        ]
    }


def preprocessing(_: Foreign, config: BiTConfig) -> Preprocessing:
    """The whole image squeezed into a square, values from -1 to 1."""
    return prepared(config, interpolation="bilinear")


def groups_of_32(config: BiTConfig) -> str | None:
    if config.groups != 32:
        return f"norms in 32 groups, and this model in {config.groups}"
    return None


def timm_facts(foreign: Foreign, _: Facts) -> Facts:
    refuse_other_layers(foreign)
    refuse_arguments(foreign, ())
    return timm_config.image_size(foreign)


def timm_preprocessing(foreign: Foreign, config: BiTConfig) -> Preprocessing:
    """As pretrained_cfg specifies; otherwise as timm evaluates the weights fine-tuned on
    ImageNet."""
    whole = max(config.image_size) >= 384
    crop = 1.0 if whole else 0.875
    return timm_config.evaluated(foreign, config, mean=INCEPTION, std=INCEPTION, crop=crop)


def timm_entry(config: BiTConfig) -> str | None:
    return PUBLISHED.get(variant_of(config) or "")


def timm_arguments(config: BiTConfig) -> dict[str, Any]:
    return {"global_pool": "avg", "in_chans": config.channels}


BIT = Dialect(
    name="bit",
    about="google-research/big_transfer, the paper's code: BiT, .npz",
    family="bit",
    rows=ROWS,
    values=VALUES,
    constants={"norm_eps": EPS, "standardize": "bit"},
    sidecar_facts=facts,
    preprocessing=preprocessing,
    resize="paper",
    supports=SUPPORTS,
    why_unsupported=groups_of_32,
    suffix=".npz",
)
TIMM = Dialect(
    name="timm-bit",
    about="pytorch-image-models: BiT (resnetv2_50x1_bit and its variants)",
    family="bit",
    rows=TIMM_ROWS,
    constants={"norm_eps": EPS, "standardize": "timm"},
    accepts=lambda foreign: "norm.weight" in foreign.tensors,
    sidecar_facts=timm_facts,
    preprocessing=timm_preprocessing,
    supports=SUPPORTS,
    why_unsupported=groups_of_32,
    **timm_config.in_common(timm_entry, timm_arguments, is_row_of("bit")),
)
