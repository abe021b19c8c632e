"""ResNet v1.5 as torchvision and timm write it, with the same names, and as transformers does.

A file alone does not tell torchvision from timm: without a config.json that names an architecture
of timm it is read as torchvision's.
"""

import re
from dataclasses import replace
from functools import partial
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitrail.models.catalogue import variant_of
from vitrail.models.config import Config
from vitrail.models.resnet_v15 import ResNetV15Config
from vitrail.weights.dialect import ANY, Dialect, Foreign, architecture_of
from vitrail.weights.dialects import timm_config
from vitrail.weights.dialects import transformers_config as files
from vitrail.weights.dialects.conv_norm import STATISTICS, conv_norm
from vitrail.weights.dialects.preparation import prepared
from vitrail.weights.dialects.timm_architectures import (
    is_row_of,
    refuse_arguments,
    refuse_other_layers,
)
from vitrail.weights.dialects.transformers_config import Kind
from vitrail.weights.dialects.transformers_processor import PROCESSORS
from vitrail.weights.rows import Facts, same, within

EPS = 1e-5  # of every batch norm
OURS = "stages.{s}.{b}."
ROWS = (
    *conv_norm("conv1", "bn1", "stem.first"),
    *conv_norm("layer{s+1}.{b}.conv{c}", "layer{s+1}.{b}.bn{c}", OURS + "conv{c}"),
    *conv_norm("layer{s+1}.{b}.downsample.0", "layer{s+1}.{b}.downsample.1", OURS + "shortcut"),
    same("fc.{p}", "head.classes.{p}"),
)
CONV, NORM = "convolution", "normalization"
HF_ENCODER = (
    *conv_norm(f"embedder.embedder.{CONV}", f"embedder.embedder.{NORM}", "stem.first"),
    *within(
        "encoder.stages.{s}.layers.{b}.",
        (
            *conv_norm(f"layer.{{c-1}}.{CONV}", f"layer.{{c-1}}.{NORM}", OURS + "conv{c}"),
            *conv_norm(f"shortcut.{CONV}", f"shortcut.{NORM}", OURS + "shortcut"),
        ),
    ),
)
HF_ROWS = (*within("{root}", HF_ENCODER), same("classifier.1.{p}", "head.classes.{p}"))
SUPPORTS = {"depths": ANY, "block": ANY}

# torchvision puts the beginning of a checksum into the name of each file. These are its
# IMAGENET1K_V2 weights of ResNet-50, 101, 152 and MobileNetV2, which have a twin of the same shape.
SECOND = re.compile(r"-(11ad3fa6|cd907fc2|f82ba261|7ebf99e0)\b")
SIDES = {"IMAGENET1K_V1": 256, "IMAGENET1K_V2": 232}  # that the shorter side of 224 is cut from


def torchvision_preprocessing(foreign: Foreign, config: Config) -> Preprocessing:
    """Bilinear, the centre of the shorter side; in proportion at another size than 224."""
    side = SIDES["IMAGENET1K_V2" if SECOND.search(foreign.source) else "IMAGENET1K_V1"]
    height, width = config.image_size
    resize = (round(height * side / 224), round(width * side / 224))
    return prepared(config, resize=resize, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def note_twin(foreign: Foreign) -> list[str]:
    """What was assumed where the name of a file does not tell which of two weights it holds."""
    if SECOND.search(foreign.source):
        return []
    return [
        "images prepared as for the IMAGENET1K_V1 weights; the IMAGENET1K_V2 weights have the "
        "same tensors, and take the shorter side to 232 pixels, not 256"
    ]


def torchvision_facts(foreign: Foreign, facts: Facts) -> Facts:
    published = facts["block"] == "bottleneck" and facts["num_classes"] == 1000
    return {"notes": note_twin(foreign)} if published else {}


def four_stages(config: ResNetV15Config) -> str | None:
    if len(config.depths) != 4:
        return f"has four stages, and this model {len(config.depths)}"
    return None


TIMM_ARGUMENTS = ("layers", "block")


def timm_facts(foreign: Foreign, _: Facts) -> Facts:
    refuse_other_layers(foreign)
    refuse_arguments(foreign, TIMM_ARGUMENTS)
    return timm_config.image_size(foreign)


def timm_arguments(config: ResNetV15Config) -> dict[str, Any]:
    return {"global_pool": "avg", "in_chans": config.channels, "layers": list(config.depths)}


def timm_entry(config: ResNetV15Config) -> str:
    """A published model of timm; arguments give it other depths."""
    return variant_of(config) or ("resnet18" if config.block == "basic" else "resnet50")


def is_timm(foreign: Foreign) -> bool:
    """Whether the config.json beside a file is timm's."""
    library, _ = architecture_of(foreign) or ("", "")
    return library == "timm"


TIMM = Dialect(
    name="timm-resnet",
    about="pytorch-image-models: ResNet v1.5, with its config.json",
    family="resnet",
    rows=ROWS,
    values={"n": STATISTICS},
    constants={"norm_eps": EPS},
    accepts=is_timm,
    sidecar_facts=timm_facts,
    preprocessing=partial(timm_config.evaluated, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop=0.95),
    supports=SUPPORTS,
    why_unsupported=four_stages,
    **timm_config.in_common(timm_entry, timm_arguments, is_row_of("resnet"), head="fc"),
)
TORCHVISION = Dialect(
    name="torchvision-resnet",
    about="torchvision.models: resnet18 and its variants",
    family="resnet",
    rows=ROWS,
    values={"n": STATISTICS},
    constants={"norm_eps": EPS},
    sidecar_facts=torchvision_facts,
    preprocessing=torchvision_preprocessing,
    resize="torchvision",
    supports=SUPPORTS,
    why_unsupported=four_stages,
)


def hf_facts(foreign: Foreign, _: Facts) -> Facts:
    """What its config.json may change, and we do not compute."""
    config = foreign.sidecars.get(files.CONFIG, {})
    files.require(foreign, "hidden_act", ("relu",), "a ResNet has no other")
    for name in ("downsample_in_first_stage", "downsample_in_bottleneck"):
        if config.get(name):
            raise UserError(
                f"{foreign.source}: {name} must be false, got {config[name]!r}: "
                "Vitrail computes ResNet v1.5"
            )
    return {}


def hf_labels(foreign: Foreign) -> tuple[str, ...] | None:
    """The classifier's layer is numbered, because a module without weights stands before it."""
    renamed = {
        name.replace("classifier.1.", "classifier."): tensor
        for name, tensor in foreign.tensors.items()
    }
    return files.read_labels(replace(foreign, tensors=renamed))


KIND = Kind(
    model_type="resnet",
    classes="ResNet",
    fields={"num_channels": "channels", "embedding_size": "width", "hidden_sizes": "widths"}
    | {"depths": "depths", "layer_type": "block"},
    reads=(),
    # microsoft/resnet-50 and its kin: the centre of 256 pixels, as ConvNext's processor does
    usual=replace(
        PROCESSORS["ConvNext"],
        size=(224, 224),
        resize=(256, 256),
        crop="floored",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
    extras=lambda _: {
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
    },
)
TRANSFORMERS = Dialect(
    **KIND.in_common
    | {
        "about": "ResNet v1.5, the same names in versions 4 and 5",
        "family": "resnet",
        "rows": HF_ROWS,
        "values": KIND.in_common["values"] | {"n": STATISTICS},
        "constants": {"norm_eps": EPS},
        "sidecar_facts": hf_facts,
        "labels": hf_labels,
        "supports": SUPPORTS | {"width": ANY},
    }
)
