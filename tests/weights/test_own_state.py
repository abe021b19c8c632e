"""Tensors of a Vitrail model without its checkpoint."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vitrail import UserError, create, load, save
from vitrail.models.catalogue import FAMILIES, build, build_meta
from vitrail.models.config import Config
from vitrail.training.lora import adapt
from vitrail.training.recipe import Lora
from vitrail.weights.own_state import unseen


def assert_equal(one: torch.nn.Module, other: torch.nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "given", "fields"),
    [
        ("vit_ti_16", {}, {"num_classes": 3}),
        ("vit_ti_16", {"model": "vit_ti_16", "image_size": 48}, {"image_size": 48, "channels": 1}),
        ("mobilevit_xxs", {}, {"num_classes": 0}),
        ("mobilevitv2_050", {"model": "mobilevitv2_050"}, {"num_classes": 2}),
        ("deit_ti_16_distilled", {}, {"num_classes": 4}),
        ("resnet18", {}, {"num_classes": 2}),
        ("mobilenetv2_035", {}, {"num_classes": 3, "channels": 1}),
        (
            "bit_r50x1",
            {"model": "bit_r50x1", "width": 32, "depths": (1, 1)},
            {"num_classes": 2, "width": 32, "depths": (1, 1)},
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_state_dict_is_loaded(
    name: str, given: dict[str, Any], fields: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    model = create(name, **fields)
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(model.state_dict(), file)
    else:
        save_file(model.state_dict(), file)
    loaded = load(file, **given)
    assert loaded.config == model.config
    assert_equal(loaded, model)
    assert "state dict of Vitrail" in loaded.passport.origin.changes[0]


def test_the_tensors_of_a_checkpoint_are_read_with_its_config(tmp_path: Path) -> None:
    model = create("vit_ti_16", num_classes=2, image_size=32, dim=24, heads=2, depth=1)
    saved = save(model, tmp_path / "model")
    assert_equal(load(saved / "model.safetensors"), model)
    (saved / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"manifest.json is missing"):
        load(saved)
    loaded = load(saved / "model.safetensors")
    assert_equal(loaded, model)
    assert loaded.config == model.config
    assert "not verified" in loaded.passport.origin.changes[-1]


def test_other_classes_are_a_new_head(tmp_path: Path) -> None:
    torch.save(create("mobilevit_xxs", num_classes=3).state_dict(), tmp_path / "x.pth")
    loaded = load(tmp_path / "x.pth", num_classes=5)
    assert loaded.config.num_classes == 5
    assert "new head for 5 classes" in loaded.passport.origin.changes[-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("config", "given", "sentence"),
    [
        ({"dim": 24, "heads": 2}, {}, "no published model fits: give model=NAME"),
        ({"depth": 2, "num_classes": 3}, {}, "no published model fits: give model=NAME"),
        ({"image_size": 48}, {"model": "vit_ti_16"}, "must have the shape (1, 197, 192), got"),
    ],
)
def test_what_nothing_tells_is_asked_for(
    config: dict[str, Any], given: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    torch.save(create("vit_ti_16", **config).state_dict(), tmp_path / "x.pth")
    with pytest.raises(UserError, match=re.escape(sentence)):
        load(tmp_path / "x.pth", **given)


def test_windows_that_no_tensor_tells_are_asked_for(tmp_path: Path) -> None:
    model = build(FAMILIES["swinv2"].variants["swinv2_t"].config)
    torch.save(model.state_dict(), tmp_path / "x.pth")
    with pytest.raises(UserError, match="several published models fit"):
        load(tmp_path / "x.pth")
    assert load(tmp_path / "x.pth", model="swinv2_t").config == model.config


def test_low_rank_changes_without_their_scale_are_refused(tmp_path: Path) -> None:
    model = create("vit_ti_16", image_size=32, dim=24, heads=2, depth=1)
    adapt(model, Lora(rank=2))
    torch.save(model.state_dict(), tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"save that model with vitrail.save, which merges them"):
        load(tmp_path / "x.pth")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("vit_ti_16", {"heads": 6, "pool": "mean", "norm_eps": 1e-3, "activation": "quick_gelu"}),
        ("beit_b_16", {"pool": "cls", "norm_eps": 1e-3, "activation": "gelu_tanh"}),
        ("swin_t", {"window_policy": "timm", "norm_eps": 1e-3}),
        ("swinv2_t", {"window_policy": "timm", "norm_eps": 1e-3}),
        ("mobilevit_xxs", {"heads": 2, "patch_size": 4, "norm_eps": 1e-3}),
        ("mobilevitv2_050", {"patch_size": 4, "norm_eps": 1e-3}),
        ("coatnet_0", {"pooling": "max", "activation": "silu", "squeeze_activation": "relu"}),
        ("resnet18", {"norm_eps": 1e-3}),
        ("bit_r50x1", {"norm_eps": 1e-3, "groups": 16, "standardize": "timm"}),
        ("mobilenet_v2", {"norm_eps": 1e-3}),
    ],
)
def test_every_field_that_no_tensor_shows_is_noted(name: str, fields: dict[str, Any]) -> None:
    """They are named because the tensors of a model with other values look the same."""
    plain = next(f.variants[name].config for f in FAMILIES.values() if name in f.variants)
    note = unseen(plain)
    shapes = shapes_of(plain)
    for field, value in fields.items():
        assert shapes_of(replace(plain, **{field: value})) == shapes, field
        assert f"{field}={getattr(plain, field)}" in note


def shapes_of(config: Config) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in build_meta(config).state_dict().items()}


def test_the_note_is_on_the_model(tmp_path: Path) -> None:
    torch.save(create("vit_ti_16", num_classes=3, heads=6).state_dict(), tmp_path / "x.pth")
    assert "heads=3, pool=cls" in " ".join(load(tmp_path / "x.pth").passport.origin.changes)
    known = load(tmp_path / "x.pth", model="vit_ti_16", heads=6)
    assert known.config.heads == 6
    assert "heads=" not in " ".join(known.passport.origin.changes)
