"""Every field of every config says what it is for, and keeps to it."""

from dataclasses import fields
from typing import Any

import pytest
import torch

from tests.models.kinds import SMALL
from vitrail.models.catalogue import FAMILIES, build, change, family_of, find, shapes_of
from vitrail.models.config import Config, Purpose, fields_for, purposes
from vitrail.models.resnet import ResNetConfig
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config

STAGES: dict[str, Any] = {
    "dim": 16,
    "depths": (2, 2),
    "heads": (2, 4),
    "image_size": (64, 96),
    "window_size": 3,
    "num_classes": 5,
}
BASES: dict[str, Config] = {
    "vit": SMALL,
    "beit": change(
        find("beit_b_16"), {"dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64, "image_size": 32}
    ),
    "swin": SwinConfig(**STAGES),
    "swinv2": SwinV2Config(**STAGES),
    "mobilevit": change(find("mobilevit_xxs"), {"image_size": 64}),
    "mobilevitv2": change(find("mobilevitv2_050"), {"image_size": 64}),
    "coatnet": change(
        find("coatnet_0_rw"),
        {"stem": (8, 32), "dims": (32, 32, 64, 64), "depths": (2, 1, 1, 1), "image_size": 64},
    ),
    "resnet": change(find("resnet18"), {"width": 16, "image_size": 32}),
    "bit": change(find("bit_r50x1"), {"width": 32, "depths": (1, 1), "image_size": 32}),
    "mobilenetv2": change(find("mobilenetv2_035"), {"image_size": 32}),
    "tokenizer": change(find("vq_ti_8"), {"image_size": 32}),
}
# Another value of each field; of "numerics" one that leaves the tensors as they are.
MOBILE: dict[str, Any] = {
    "stem": 8,
    "widths": (8, 24, 48, 64, 80),
    "dims": (32, 80, 96),
    "depths": (1, 1, 1),
    "expand": 4.0,
    "mlp_ratio": 1.0,
    "patch_size": 1,
    "norm_eps": 0.1,
}
OTHERS: dict[str, dict[str, Any]] = {
    "vit": {
        "dim": 64,
        "depth": 3,
        "mlp_dim": 32,
        "dim_head": 4,
        "patch_size": 4,
        "stem": ResNetConfig(blocks=(), width=32),
        "class_token": False,
        "distilled": True,
        "registers": 2,
        "positions": "none",
        "prefix_positions": 0,
        "patch_bias": False,
        "patch_norm": True,
        "embed_norm": True,
        "qkv_bias": "qv",
        "layer_scale": 0.1,
        "heads": 2,
        "pool": "mean",
        "final_norm": "pooled",
        "activation": "relu",
        "norm_placement": "post",
        "norm_eps": 0.1,
    },
    "beit": {
        "dim": 64,
        "depth": 3,
        "heads": 2,
        "mlp_dim": 32,
        "patch_size": 8,
        "relative_bias": "shared",
        "layer_scale": None,
        "pool": "cls",
        "activation": "gelu_tanh",
        "norm_eps": 0.1,
    },
    "swin": {
        "dim": 32,
        "depths": (1, 1),
        "heads": (1, 2),
        "window_size": 4,
        "patch_size": 8,
        "mlp_ratio": 2.0,
        "window_policy": "torchvision",
        "norm_eps": 0.1,
    },
    "swinv2": {
        "dim": 32,
        "depths": (1, 1),
        "heads": (1, 2),
        "window_size": 4,
        "patch_size": 8,
        "mlp_ratio": 2.0,
        "pretrained_windows": (6, 6),
        "window_policy": "torchvision",
        "norm_eps": 0.1,
    },
    "mobilevit": {**MOBILE, "last": 64, "heads": 2},
    "mobilevitv2": MOBILE,
    "coatnet": {
        "stem": (4, 32),
        "dims": (32, 64, 64, 64),
        "depths": (1, 1, 1, 1),
        "kinds": "CTTT",
        "strides": (2, 2, 2, 1),
        "dim_head": 16,
        "widening": "early",
        "squeeze": 2,
        "conv_bias": True,
        "shortcut_bias": True,
        "bias_hidden": 8,
        "layer_scale": 0.1,
        "final_norm": "pooled",
        "norm_eps": 0.1,
        "pooling": "max",
        "downsampling": "convolution",
        "activation": "gelu",
        "preactivation": False,
        "squeeze_activation": "silu",
        "early_squeeze": False,
    },
    "resnet": {
        "depths": (1, 1),
        "block": "bottleneck",
        "width": 32,
        "stem": "3x3",
        "norm_eps": 0.1,
    },
    "bit": {
        "depths": (1, 2),
        "width": 64,
        "groups": 16,
        "standardize": "jax",
        "norm_eps": 0.1,
    },
    "mobilenetv2": {
        "stem": 8,
        "widths": (8, 8, 16, 24, 32, 56, 64),
        "depths": (1, 1, 1, 1, 1, 1, 1),
        "last": 64,
        "expand": 4.0,
        "norm_eps": 0.1,
    },
    "tokenizer": {
        "kind": "dvae",
        "words": 64,
        "width": 8,
        "stages": 3,
        "depth": 2,
        "code_dim": 4,
        "entry": 16,
        "decoder": False,
    },
}
TRAINING = {"drop_path": 0.5, "dropout": 0.5, "embed_dropout": 0.5, "patch_dropout": 0.5}


def with_other(family: str, name: str) -> Config:
    """The base with another value in one field, and in those that have to go with it."""
    values = {name: ({**OTHERS[family], **TRAINING})[name]}
    if name == "class_token":
        values["pool"] = "mean"
    if name == "stem" and family == "vit":
        values["patch_size"] = 2
    return change(BASES[family], values)


def cases(*wanted: Purpose) -> list[tuple[str, str]]:
    return [
        (family, name)
        for family, base in BASES.items()
        for name in fields_for(type(base), *wanted)
        if (family, name) != ("tokenizer", "drop_path")  # which has none to drop
    ]


def test_every_field_of_every_family_has_a_purpose() -> None:
    for family in FAMILIES.values():
        assert list(purposes(family.config)) == [field.name for field in fields(family.config)]
    assert set(purposes(ResNetConfig)) == {field.name for field in fields(ResNetConfig)}


def test_a_field_without_a_purpose_is_a_mistake_of_ours() -> None:
    class Bare(Config):
        width: int = 3

    with pytest.raises(TypeError, match=r"Bare\.width must be annotated with its purpose"):
        purposes(Bare)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("family", "name"), cases(Purpose.SHAPE))
def test_shape_fields_change_tensors(family: str, name: str) -> None:
    assert shapes_of(with_other(family, name)) != shapes_of(BASES[family])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("family", "name"), cases(Purpose.NUMERICS, Purpose.RUNTIME))
def test_numerics_and_runtime_leave_tensors_alone(family: str, name: str) -> None:
    assert shapes_of(with_other(family, name)) == shapes_of(BASES[family])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("family", "name"), cases(Purpose.RUNTIME))
def test_runtime_leaves_evaluation_alone(family: str, name: str) -> None:
    first, second = build(BASES[family]).eval(), build(with_other(family, name)).eval()
    second.load_state_dict(first.state_dict())
    image = torch.randn(2, 3, *BASES[family].image_size)
    torch.testing.assert_close(first.features(image), second.features(image), rtol=0, atol=0)


def test_bases_are_of_every_family() -> None:
    assert [family_of(config) for config in BASES.values()] == list(FAMILIES) == list(BASES)
