"""Predictions in order, from anything that is a picture, and a reason where something is not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.models.kinds import KINDS, SMALL
from vitrail import UserError, predict
from vitrail.data.preprocess import prepare
from vitrail.models.catalogue import build
from vitrail.models.model import Model


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    model = build(SMALL).eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    model.passport = replace(model.passport, labels=("ant", "bee", "cat", "dog", "eel"))
    return model


def photo(seed: int, size: tuple[int, int] = (50, 70)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def test_files_pictures_and_arrays_are_answered_alike_and_in_order(
    model: Model, tmp_path: Path
) -> None:
    photo(0).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    pictures = [
        tmp_path / "a.png",
        str(tmp_path / "b.png"),
        photo(0),
        np.asarray(photo(0)),
        photo(1),
    ]
    found = predict(model, pictures, batch_size=2)
    assert [one.name for one in found[:2]] == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert found[1].label is None
    assert found[1].problem is not None
    for other in found[2:4]:
        assert [label for label, _ in other.top] == [label for label, _ in found[0].top]
        assert other.score == pytest.approx(found[0].score, rel=1e-5)
    assert found[4].score != pytest.approx(found[0].score, rel=1e-5)
    logits = model(prepare(photo(0), model.passport.preprocessing)[None])[0]
    best = logits.softmax(0).max().item()
    assert found[0].score == pytest.approx(best, rel=1e-5)
    assert found[0].label == ["ant", "bee", "cat", "dog", "eel"][logits.argmax()]
    assert sum(score for _, score in found[0].top) == pytest.approx(1)


def test_top_is_sorted_and_labels_have_names_even_without(model: Model) -> None:
    model.passport = replace(model.passport, labels=None)
    (one,) = predict(model, [photo(0)], top=3)
    scores = [score for _, score in one.top]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    assert one.label is not None
    assert one.label.startswith("class ")


def test_a_model_without_a_head_says_so() -> None:
    with pytest.raises(UserError, match="has no head"):
        predict(build(KINDS["no head"]), [photo(0)])
