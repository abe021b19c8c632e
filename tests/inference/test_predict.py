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
from vitrail.data.reader import ImageSource
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
    pictures: list[ImageSource] = [
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


def test_one_image_gives_one_prediction(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    photo(0).save(path)
    (same,) = predict(model, [str(path)])
    assert predict(model, str(path)) == predict(model, path) == same
    assert same.name == str(path)
    for image in (photo(0), np.asarray(photo(0))):
        one = predict(model, image)
        assert (one.label, one.score, one.top) == (same.label, same.score, same.top)


def test_directories_patterns_arrays_and_iterators_give_lists(model: Model, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    for number in range(3):
        photo(number).save(tmp_path / "few" / f"{number}.png")
    listed = [str(tmp_path / "few" / f"{number}.png") for number in range(3)]
    for images in (tmp_path / "few", str(tmp_path / "few"), f"{tmp_path}/few/*.png", iter(listed)):
        assert predict(model, images) == predict(model, listed)
    mixed = predict(model, [tmp_path / "few", photo(7)])
    assert [one.name for one in mixed] == [*listed, "image 1"]
    stacked = np.stack([np.asarray(photo(number)) for number in range(3)])
    assert [one.top for one in predict(model, stacked)] == [
        one.top for one in predict(model, listed)
    ]
    assert predict(model, []) == []


def test_an_image_that_pillow_has_opened_is_read_as_its_file(model: Model, tmp_path: Path) -> None:
    """Upright, and transparent parts on white."""
    turned, clear = tmp_path / "turned.jpg", tmp_path / "clear.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(0, (48, 80)).save(turned, exif=exif)
    rgba = photo(1).convert("RGBA")
    rgba.putalpha(photo(2).convert("L"))
    rgba.save(clear)
    for path in (turned, clear):
        with Image.open(path) as image:
            assert predict(model, image).top == predict(model, path).top


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        ("gone.png", "gone.png: no such file"),
        ("nothing-like-*.png", "no images found"),
        (7, "images must be a path, .* got int"),
        ([{1}], "got set"),
        (np.zeros((4, 4, 3), dtype=np.float32), "pixels are float32"),
        (Image.new("RGB", (0, 0)), "image 0: its size is 0x0"),
    ],
)
def test_what_is_no_image_is_a_mistake(model: Model, images: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        predict(model, images)  # type: ignore[call-overload]


def test_the_model_is_left_as_it_was(model: Model) -> None:
    """Also where parts of it are frozen."""
    model.train()
    frozen = next(iter(model.children())).eval()
    before = [module.training for module in model.modules()]
    predict(model, photo(0))
    assert [module.training for module in model.modules()] == before
    assert not frozen.training
    with pytest.raises(UserError):
        predict(model, "gone.jpg")
    assert [module.training for module in model.modules()] == before


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0, 0), (0, 7, 1)])
def test_an_image_without_pixels_is_refused(model: Model, shape: tuple[int, ...]) -> None:
    nothing = np.zeros(shape, np.uint8)
    for exact in (True, False):
        with pytest.raises(UserError, match="it has no pixels"):
            predict(model, nothing, exact=exact)
    found = predict(model, [nothing, photo(0)])
    assert [one.label is None for one in found] == [True, False]
    with pytest.raises(UserError, match="its size is 0x3"):
        predict(model, Image.new("RGB", (0, 3)))
    for empty in (nothing, Image.new("RGB", (0, 3))):
        for fast in (True, False):
            with pytest.raises(UserError, match="an image must have pixels"):
                prepare(empty, model.passport.preprocessing, exact=not fast)


def test_a_model_that_is_none_is_one_sentence() -> None:
    sentences = {
        "runs/pets/best": "no such file",
        torch.nn.Flatten(): "none of the known",
        7: "source must be a path",
    }
    for wrong, sentence in sentences.items():
        with pytest.raises(UserError, match=sentence):
            predict(wrong, np.zeros((8, 8, 3), dtype=np.uint8))  # type: ignore[call-overload]


def test_pixels_that_were_not_prepared_are_refused(model: Model) -> None:
    size = model.config.image_size
    with pytest.raises(UserError, match=r"preprocessed floats, got torch\.uint8"):
        model(torch.zeros(1, model.config.channels, *size, dtype=torch.uint8))
