"""Models by name: ours, timm's, and the nearest one to a name that is none."""

import re

import pytest
import timm
import torch

from vitrail import UserError, create, list_models
from vitrail.core.without_init import without_init
from vitrail.models.catalogue import FAMILIES, find, variant_of
from vitrail.models.measure import count
from vitrail.models.vit import ViTConfig


def test_names_are_sorted_and_matched() -> None:
    assert list_models() == sorted(list_models())
    assert list_models("vit_b_*") == ["vit_b_14", "vit_b_16", "vit_b_32", "vit_b_8"]
    assert list_models("vit_G_14") == ["vit_G_14"]
    sizes, patches = ("ti", "s", "m", "b", "l", "h", "g", "G"), (8, 14, 16, 32)
    assert {f"vit_{size}_{patch}" for size in sizes for patch in patches} <= set(list_models())


@pytest.mark.parametrize("name", FAMILIES["vit"].variants)
def test_a_variant_knows_its_name(name: str) -> None:
    found = variant_of(find(name))
    # DeiT's plain models are ViTs in all but the recipe
    assert found in (name, re.sub("^deit", "vit", name))


TIMM = [
    name
    for name in timm.list_models(["vit_*", "deit*", "flexivit_*"])
    if re.fullmatch(
        r"(vit|deit3?)_(tiny|small|medium|base|large|huge|giant|gigantic)(_distilled)?_patch\d+_\d+"
        r"|vit_(tiny|small|base|large)_r\d*_s\d+(_p8)?_\d+"
        r"|vit_\w+_patch14(_reg4)?_dinov2|flexivit_(small|base|large)",
        name,
    )
]


def sort_of(name: str) -> str:
    """A name without its size: models of a sort differ in numbers of the same table."""
    return re.sub(r"_(tiny|small|medium|base|large|huge|giant|gigantic)|\d+$", "", name)


def first_of_their_sort() -> set[str]:
    return set({sort_of(name): name for name in reversed(TIMM)}.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in first_of_their_sort() else [pytest.mark.slow])
        for name in TIMM
    ],
)
def test_timms_names_mean_timms_models(name: str) -> None:
    config = find(name)
    assert isinstance(config, ViTConfig)
    with without_init():
        theirs = timm.create_model(name, num_classes=config.num_classes)
        ours = create(name)
    assert count(ours) == sum(p.numel() for p in theirs.parameters())
    assert config.image_size == theirs.patch_embed.img_size
    assert config.heads == theirs.blocks[0].attn.num_heads


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("vit_b16", "unknown model 'vit_b16', did you mean vit_b_16?"),
        ("vit_tiny", "unknown model 'vit_tiny', did you mean vit_ti_16?"),
        ("vit_huge", "unknown model 'vit_huge', did you mean vit_h_14?"),
        ("mobilevit_small", "unknown model 'mobilevit_small', did you mean mobilevit_s?"),
        ("vit_base_patch17_224", "unknown model"),
        ("", "unknown model ''"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        find(name)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"imagesize": 3}, "unknown field 'imagesize', did you mean image_size?"),
        ({"heads": "three"}, "heads must be a valid integer, got 'three'"),
        ({"pool": "max"}, "pool must be 'cls', 'mean'"),
        ({"image_size": (224, 224, 3)}, "image_size"),
        ({"image_size": 225}, "not a multiple of patch 16: use 224 or 240"),
        ({"dropout": float("nan")}, "dropout must be a finite number"),
        ({"num_classes": True}, "num_classes must be a valid integer, got True"),
        ({"stem": {"blocks": [0]}}, "a ResNet has up to 6 stages"),
        ({"stem": torch}, "not plain JSON values"),
    ],
)
def test_a_wrong_field_says_what_fits(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        create("vit_ti_16", **fields)


def test_creating_is_repeatable_and_takes_the_ecosystems_fields() -> None:
    fields = {
        "image_size": (64, 32), "patch_size": 8, "num_classes": 2, "channels": 1, "pool": "mean",
        "dim": 24, "depth": 1, "heads": 2, "mlp_dim": 48, "dropout": 0.1, "drop_path": 0.1,
        "head": "pretrain",
    }  # fmt: skip
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(create("vit_b_16", **fields))
    one, other = (model.state_dict() for model in models)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert models[0].passport.preprocessing.size == (64, 32)
    assert models[0].eval()(torch.zeros(3, 1, 64, 32)).shape == (3, 2)
