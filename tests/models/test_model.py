"""The methods that every family's model has: preprocess, intermediates, reset_head."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.models.kinds import KINDS
from tests.models.test_config import BASES
from vitrail import UserError, create, load, save
from vitrail.core.late import LATE, find_late
from vitrail.models.catalogue import build
from vitrail.models.vit import ViT

CLASSIFIERS = [name for name in BASES if name != "tokenizer"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", BASES)
def test_every_block_has_a_map_of_the_declared_layout(family: str) -> None:
    model = build(BASES[family]).eval()
    height, width = model.config.image_size
    maps = model.intermediates(torch.randn(2, 3, height, width))
    assert len(maps) == len(model.feature_info) > 1
    for found, info in zip(maps, model.feature_info, strict=True):
        rows, columns = -(-height // info.reduction), -(-width // info.reduction)
        assert found.shape == (2, info.channels, rows, columns)
        assert info.module in dict(model.named_modules())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_vit_has_maps(kind: str) -> None:
    model = ViT(KINDS[kind]).eval()
    image = torch.randn(1, model.config.channels, 32, 48)
    first, last = model.intermediates(image, [0, -1])
    assert first.shape == last.shape == (1, 32, *model.config.grid)
    prefix = model.config.prefix
    tokens = model.norm(last.flatten(2).mT) if model.config.final_norm == "tokens" else None
    if tokens is not None:
        torch.testing.assert_close(model.encode(image)[:, prefix:], tokens)


def test_maps_carry_gradients_come_in_the_order_asked_and_leave_no_hook() -> None:
    model = build(BASES["vit"]).eval()
    image = torch.randn(1, 3, 32, 48, requires_grad=True)
    last, first = model.intermediates(image, [1, 0])
    assert torch.equal(model.intermediates(image, [0])[0], first)
    last.sum().backward()
    assert image.grad is not None
    assert image.grad.abs().sum() > 0
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("place", [2, -3])
def test_a_block_that_is_not_there_is_refused(place: int) -> None:
    model = build(BASES["vit"])
    with pytest.raises(UserError, match=rf"blocks must be between -2 and 1, got {place}"):
        model.intermediates(torch.zeros(1, 3, 32, 48), [place])


def test_maps_need_every_patch() -> None:
    model = create("vit_ti_16", depth=1, image_size=64, patch_dropout=0.5).train()
    with pytest.raises(UserError, match=r"a map needs all 16 patches, got 8: .*model\.eval\(\)"):
        model.intermediates(torch.zeros(1, 3, 64, 64))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CLASSIFIERS)
def test_a_new_head_is_zero_and_only_the_head_is_new(family: str, tmp_path: Path) -> None:
    model = build(BASES[family]).to(torch.bfloat16).eval()
    before = {name: t.clone() for name, t in model.state_dict().items() if "head" not in name}
    labels = tuple(map(str, range(model.config.num_classes)))
    model.passport = replace(model.passport, labels=labels, scores={"accuracy": 0.5})
    assert model.reset_head(3) is model
    assert model.config.num_classes == 3
    assert model.passport.labels is None
    assert model.passport.scores == {}
    assert model.passport.config["num_classes"] == 3
    image = torch.randn(1, 3, *model.config.image_size, dtype=torch.bfloat16)
    assert torch.equal(model(image), torch.zeros(1, 3, dtype=torch.bfloat16))
    assert not any(module.training for module in model.modules())
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["distilled", "pre-training head", "no head", "clip"])
def test_every_kind_of_head_can_be_replaced(kind: str) -> None:
    model = ViT(KINDS[kind]).double()
    image = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    assert model.reset_head(7)(image).shape == (2, 7)
    if kind == "distilled":
        assert [tuple(one.shape) for one in model.both_heads(image)] == [(2, 7), (2, 7)]
    assert model.reset_head(0)(image).shape == (2, model.config.features)


def test_a_wrong_number_of_classes_changes_nothing() -> None:
    model = build(BASES["vit"])
    with pytest.raises(UserError, match="num_classes"):
        model.reset_head(-1)
    assert model.config is BASES["vit"]
    with pytest.raises(UserError, match="a tokenizer has no classes"):
        build(BASES["tokenizer"]).reset_head(4)


def test_images_of_every_kind_are_prepared_alike(tmp_path: Path) -> None:
    model = create("vit_ti_16", depth=1, num_classes=2, image_size=32)
    array = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    image, path = Image.fromarray(array), tmp_path / "image.png"
    image.save(path)
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    one = model.preprocess(image)
    assert one.shape == (1, 3, 32, 32)
    assert -1 <= one.min() < one.max() <= 1
    many = model.preprocess([path, str(path), encoded.getvalue(), image, array])
    assert torch.equal(many, one.expand(5, -1, -1, -1))
    assert torch.equal(model.preprocess(np.stack([array, array])), one.expand(2, -1, -1, -1))
    assert model.to(torch.bfloat16).preprocess(image).dtype == torch.bfloat16
    assert model(model.preprocess(path)).shape == (1, 2)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    model = create("vit_ti_16", depth=1, num_classes=2, image_size=32)
    (tmp_path / "notes.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"notes\.jpg: "):
        model.preprocess(tmp_path / "notes.jpg")
    with pytest.raises(UserError, match=r"gone\.jpg: no such file"):
        model.preprocess([tmp_path / "gone.jpg"])
    with pytest.raises(UserError, match=r"images must be a path, .* got int"):
        model.preprocess(3)
    with pytest.raises(UserError, match=r"images must be a path, .* got float"):
        model.preprocess([0.5])
    with pytest.raises(UserError, match="at least one, got none"):
        model.preprocess([])


def test_functions_of_later_rooms_are_there() -> None:
    assert all(callable(find_late(name)) for name in LATE)
