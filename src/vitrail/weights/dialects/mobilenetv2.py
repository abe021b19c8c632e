"""MobileNetV2 as torchvision and timm write it.

torchvision numbers the blocks of all stages through; {b} is such a block.
"""

from functools import partial
from typing import Any

from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD
from vitrail.models.catalogue import variant_of
from vitrail.models.mobilenetv2 import ALIASES, PAPER, MobileNetV2Config
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects import timm_config
from vitrail.weights.dialects.conv_norm import STATISTICS, conv_norm
from vitrail.weights.dialects.resnet import note_twin, torchvision_preprocessing
from vitrail.weights.dialects.timm_architectures import (
    is_row_of,
    refuse_arguments,
    refuse_other_layers,
)
from vitrail.weights.rows import Facts, same

PLACES = [f"{stage}.{block}" for stage, depth in enumerate(PAPER.depths) for block in range(depth)]
BLOCKS = tuple((str(number), place) for number, place in enumerate(PLACES, start=1))
TORCHVISION_ROWS = (
    *conv_norm("features.0.0", "features.0.1", "stem"),
    # the first block is not widened
    *conv_norm("features.1.conv.0.0", "features.1.conv.0.1", "stages.0.0.filter"),
    *conv_norm("features.1.conv.1", "features.1.conv.2", "stages.0.0.project"),
    *conv_norm("features.{b}.conv.0.0", "features.{b}.conv.0.1", "stages.{b}.expand"),
    *conv_norm("features.{b}.conv.1.0", "features.{b}.conv.1.1", "stages.{b}.filter"),
    *conv_norm("features.{b}.conv.2", "features.{b}.conv.3", "stages.{b}.project"),
    *conv_norm("features.18.0", "features.18.1", "last"),
    same("classifier.1.{p}", "head.classes.{p}"),
)
TIMM_ROWS = (
    *conv_norm("conv_stem", "bn1", "stem"),
    *conv_norm("blocks.0.{b}.conv_dw", "blocks.0.{b}.bn1", "stages.0.{b}.filter"),
    *conv_norm("blocks.0.{b}.conv_pw", "blocks.0.{b}.bn2", "stages.0.{b}.project"),
    *conv_norm("blocks.{s}.{b}.conv_pw", "blocks.{s}.{b}.bn1", "stages.{s}.{b}.expand"),
    *conv_norm("blocks.{s}.{b}.conv_dw", "blocks.{s}.{b}.bn2", "stages.{s}.{b}.filter"),
    *conv_norm("blocks.{s}.{b}.conv_pwl", "blocks.{s}.{b}.bn3", "stages.{s}.{b}.project"),
    *conv_norm("conv_head", "bn2", "last"),
    same("classifier.{p}", "head.classes.{p}"),
)
WIDENED = tuple(str(stage) for stage in range(1, len(PAPER.depths)))
SUPPORTS = dict.fromkeys(("stem", "widths", "depths", "last", "expand"), ANY)
PUBLISHED = {ours: theirs for theirs, ours in ALIASES.items()}


def torchvision_facts(foreign: Foreign, facts: Facts) -> Facts:
    return {"notes": note_twin(foreign)} if facts["num_classes"] == 1000 else {}


def other_depths(config: MobileNetV2Config) -> str | None:
    if config.depths != PAPER.depths:
        return f"has stages of {PAPER.depths} blocks, not of {config.depths}"
    return None


def timm_facts(foreign: Foreign, _: Facts) -> Facts:
    refuse_other_layers(foreign)
    refuse_arguments(foreign, ())
    return timm_config.image_size(foreign)


def timm_entry(config: MobileNetV2Config) -> str | None:
    ours = variant_of(config) or ""
    return PUBLISHED.get(ours, ours) or None


def timm_arguments(config: MobileNetV2Config) -> dict[str, Any]:
    return {"global_pool": "avg", "in_chans": config.channels}


TORCHVISION = Dialect(
    name="torchvision-mobilenetv2",
    about="torchvision.models: mobilenet_v2",
    family="mobilenetv2",
    rows=TORCHVISION_ROWS,
    values={"n": STATISTICS, "b": BLOCKS[1:]},
    constants={"norm_eps": 1e-5},
    sidecar_facts=torchvision_facts,
    preprocessing=torchvision_preprocessing,
    resize="torchvision",
    supports=SUPPORTS,
    why_unsupported=other_depths,
)
TIMM = Dialect(
    name="timm-mobilenetv2",
    about="pytorch-image-models: MobileNetV2",
    family="mobilenetv2",
    rows=TIMM_ROWS,
    values={"n": STATISTICS, "s": WIDENED},
    constants={"norm_eps": 1e-5},
    sidecar_facts=timm_facts,
    preprocessing=partial(timm_config.evaluated, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop=0.875),
    supports=SUPPORTS,
    **timm_config.in_common(
        timm_entry, timm_arguments, is_row_of("mobilenetv2"), head="classifier"
    ),
)
