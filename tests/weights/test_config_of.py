"""What our tensors tell of their model: every size, for published variants and for odd ones."""

from dataclasses import fields, replace
from importlib import import_module
from typing import Any

import pytest

from vitrail import UserError
from vitrail.models.beit import BeitConfig
from vitrail.models.bit import BiTConfig
from vitrail.models.catalogue import FAMILIES, build_meta
from vitrail.models.coatnet import CoAtNetConfig
from vitrail.models.config import Config
from vitrail.models.mobilenetv2 import MobileNetV2Config
from vitrail.models.mobilevit import MobileViTConfig
from vitrail.models.mobilevitv2 import MobileViTV2Config
from vitrail.models.resnet_v15 import ResNetV15Config
from vitrail.models.swin import SwinConfig
from vitrail.models.swinv2 import SwinV2Config
from vitrail.models.tokenizer import TokenizerConfig
from vitrail.weights.families.family import NamedTensors, Request

READ = (
    "beit", "swin", "swinv2", "mobilevit", "mobilevitv2", "coatnet", "resnet", "bit",
    "mobilenetv2", "tokenizer",
)  # fmt: skip
PUBLISHED = [(family, name) for family in READ for name in FAMILIES[family].variants]
BEIT = BeitConfig(dim=24, depth=3, heads=4, mlp_dim=40, patch_size=8, image_size=(32, 48))
SWIN = SwinConfig(
    dim=12, depths=(1, 2, 3), heads=(2, 3, 6), window_size=3, patch_size=2, image_size=(48, 72)
)
COATNET = CoAtNetConfig(
    stem=(8, 12), dims=(16, 24, 32, 64), depths=(1, 2, 1, 2), dim_head=8, image_size=(64, 96)
)
ODD: dict[str, list[Config]] = {
    "beit": [
        BEIT,
        replace(BEIT, relative_bias="shared", pool="cls", num_classes=0, layer_scale=None),
        replace(BEIT, channels=1, num_classes=7, image_size=(8, 8)),
    ],
    "swin": [
        SWIN,
        replace(SWIN, depths=(2,), heads=(1,), mlp_ratio=2.5, num_classes=0, channels=5),
        replace(SWIN, image_size=(24, 24), num_classes=2),
    ],
    "swinv2": [
        SwinV2Config(dim=8, depths=(1, 1), heads=(2, 4), window_size=4, image_size=(32, 48)),
        SwinV2Config(dim=16, depths=(3,), heads=(4,), patch_size=2, mlp_ratio=1.5, num_classes=0),
    ],
    "mobilevit": [
        MobileViTConfig(
            stem=8, widths=(8, 16, 16, 24, 24), dims=(16, 24, 32), depths=(1, 2, 3), heads=2,
            last=40, expand=3.0, mlp_ratio=1.5, num_classes=0, channels=1,
        )
    ],
    "mobilevitv2": [
        MobileViTV2Config(
            stem=8, widths=(8, 16, 16, 24, 24), dims=(16, 24, 32), depths=(3, 1, 2), expand=4.0,
            mlp_ratio=1.25, num_classes=3,
        )
    ],
    "coatnet": [
        COATNET,
        replace(COATNET, kinds="CTTT", stem=(8, 8), dims=(8, 16, 16, 24), head="linear"),
        replace(COATNET, stem=(8, 16), widening="late", conv_bias=False, shortcut_bias=False),
        replace(COATNET, bias_hidden=20, layer_scale=1e-6, squeeze=4, num_classes=0, head="linear"),
    ],
    "resnet": [
        ResNetV15Config(depths=(1, 2), width=8, channels=1, num_classes=0),
        ResNetV15Config(depths=(2,), block="basic", stem="3x3", num_classes=3),
    ],
    "bit": [BiTConfig(depths=(1, 2), width=32, channels=1, num_classes=0)],
    "mobilenetv2": [
        MobileNetV2Config(
            stem=8, widths=(8, 8, 16, 16, 24, 24, 32), depths=(2, 1, 1, 2, 1, 1, 1), last=40,
            expand=3.0, channels=1, num_classes=0,
        )
    ],
    "tokenizer": [
        TokenizerConfig(words=30, width=8, stages=2, depth=3, entry=6, channels=1),
        TokenizerConfig(words=30, width=8, stages=3, depth=1, kind="vq", code_dim=5, entry=7),
        TokenizerConfig(words=30, width=8, stages=3, depth=1, kind="vq", decoder=False),
    ],
}  # fmt: skip
CASES = [(family, config) for family in READ for config in ODD[family]]


def check(family: str, config: Config) -> None:
    """Each field is told, and told right, or listed as one that no tensor tells."""
    module = import_module(f"vitrail.weights.families.{family}")
    facts = module.FAMILY.config_of(NamedTensors("a model", dict(build_meta(config).state_dict())))
    names = {field.name for field in fields(config)}
    assert facts.keys() <= names
    assert names - facts.keys() <= set(module.NOT_IN_TENSORS)
    assert facts == {name: getattr(config, name) for name in facts}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("family", "name"), PUBLISHED)
def test_tensors_tell_the_sizes_of_a_published_model(family: str, name: str) -> None:
    check(family, FAMILIES[family].variants[name].config)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("family", "config"), CASES, ids=[f for f, _ in CASES])
def test_tensors_tell_the_sizes_of_an_odd_model(family: str, config: Config) -> None:
    check(family, config)


@pytest.mark.parametrize(("family", "config"), CASES, ids=[f for f, _ in CASES])
def test_sizes_and_what_is_untold_make_the_same_config(family: str, config: Config) -> None:
    module: Any = import_module(f"vitrail.weights.families.{family}")
    tensors = NamedTensors("a model", dict(build_meta(config).state_dict()))
    untold = {
        name: getattr(config, name) for name in module.NOT_IN_TENSORS if hasattr(config, name)
    }
    facts = module.FAMILY.config_of(tensors) | untold
    resolved, notes = module.FAMILY.resolve_config(facts, tensors, Request("a model"))
    assert resolved == config
    assert notes == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", READ)
def test_a_tensor_that_sizes_are_read_from_must_be_there(family: str) -> None:
    """Whatever is lost, a person gets one sentence or a config, and no other error."""
    config_of = import_module(f"vitrail.weights.families.{family}").FAMILY.config_of
    whole = dict(build_meta(ODD[family][0]).state_dict())
    said = []
    for name in whole:
        for harmed in (None, whole[name][:0], whole[name][None]):
            tensors = {n: t for n, t in whole.items() if n != name}
            tensors |= {} if harmed is None else {name: harmed}
            try:
                config_of(NamedTensors("damaged", tensors))
            except UserError as error:
                said.append(str(error))
    assert len(said) >= 6
    assert all(sentence.startswith("damaged: ") for sentence in said)
