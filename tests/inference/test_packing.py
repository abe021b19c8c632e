"""`predict` at native resolution: sizes, equality with one by one, threads, refusals, the shell."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.inference.photos import small_model
from tests.parity.test_every_family import CONFIGS
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.core.image_list import ImageList
from vitrail.core.native_size import NativeSize
from vitrail.data.preprocess import prepare
from vitrail.inference.parts import columns_of, finished_parts
from vitrail.models.catalogue import build, change

SIZES = [(60, 40), (40, 60), (90, 20), (20, 90), (33, 33), (60, 41), (7, 200)]  # width, height


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    folder = tmp_path / "photos"
    folder.mkdir()
    names = []
    for number, size in enumerate(SIZES):
        draw = np.random.default_rng(number)
        coarse = draw.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        names.append(str(folder / f"{number}.png"))
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(names[-1])
    return names


@given(
    patch=st.integers(1, 32),
    tokens=st.integers(1, 1_000),
    height=st.integers(1, 40_000),
    width=st.integers(1, 40_000),
)
def test_sizes_are_whole_patches_within_the_budget(
    patch: int, tokens: int, height: int, width: int
) -> None:
    native = NativeSize(patch, tokens)
    rows, columns = native.grid(height, width)
    assert rows >= 1
    assert columns >= 1
    assert rows * columns <= tokens
    assert native.size(height, width) == (rows * patch, columns * patch)
    assert rows * patch <= max(height, patch)  # never enlarged
    assert columns * patch <= max(width, patch)
    # either side is at most a patch shorter than the exact one
    scale = min(1, math.sqrt(tokens * patch**2 / (height * width)))
    if min(height, width) * scale >= patch and max(height, width) * scale < 2**15:
        assert rows > height * scale / patch - 1 - 1e-9
        assert columns > width * scale / patch - 1 - 1e-9


def test_an_image_of_the_budget_keeps_every_patch() -> None:
    assert NativeSize(16, 196).grid(224, 224) == (14, 14)
    assert NativeSize(16, 196).grid(4000, 4000) == (14, 14)
    assert NativeSize(14, 256).grid(224, 224) == (16, 16)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("max_tokens", [None, 12, 60])
def test_predictions_are_those_of_the_model_loaded_at_each_size(
    photos: list[str], max_tokens: int | None, precision: Any
) -> None:
    """In float32 within 1e-6 of the largest logit: either way rounds by about that. In float64
    within 1e-6, because engines give logits in float32."""
    model = small_model().to(getattr(torch, precision))
    found = vitrail.predict(
        model, photos, native_resolution=True, max_tokens=max_tokens, batch_size=4
    )
    native = NativeSize(8, max_tokens or 24)
    grids = set()
    for name, prediction in zip(photos, found, strict=True):
        image = Image.open(name)
        size = native.size(image.height, image.width)
        grids.add(size)
        alone: Any = vitrail.load(model, image_size=size)
        how = replace(model.passport.preprocessing, size=size, resize=None, squeeze=False)
        with torch.no_grad():
            logits = alone(prepare(image, how)[None].to(next(alone.parameters())))[0]
        scores = logits.softmax(dim=0)
        tolerance = 1e-6 * float(logits.abs().max()) if precision == "float32" else 1e-6
        assert prediction.label == alone.passport.labels[int(scores.argmax())]
        assert prediction.score == pytest.approx(float(scores.max()), abs=tolerance)
    assert len(grids) > 3


def test_threads_change_nothing_and_batches_rounding_alone(photos: list[str]) -> None:
    model = small_model().double()
    one, two = (
        vitrail.predict(model, photos, native_resolution=True, batch_size=2, threads=threads)
        for threads in (1, 2)
    )
    assert one == two
    for batch_size in (1, 7):
        other = vitrail.predict(model, photos, native_resolution=True, batch_size=batch_size)
        for ours, theirs in zip(one, other, strict=True):
            assert ours.label == theirs.label
            assert ours.score == pytest.approx(theirs.score, abs=1e-6)


def test_broken_images_have_their_problem(photos: list[str]) -> None:
    Path(photos[1]).write_bytes(b"no picture")
    found = vitrail.predict(small_model(), photos, native_resolution=True)
    assert [one.problem is None for one in found] == [number != 1 for number in range(len(photos))]


def test_fast_decoding_gives_nearly_the_same(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    path = tmp_path / "large.jpg"
    Image.fromarray(coarse).resize((1200, 800), Image.Resampling.BICUBIC).save(path)
    model = small_model()
    exact, fast = (
        vitrail.predict(model, [path], native_resolution=True, exact=exact)[0]
        for exact in (True, False)
    )
    assert exact.score == pytest.approx(fast.score, abs=0.02)


def test_shell_and_python_agree(
    photos: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(vitrail.save(small_model(), tmp_path / "model"))
    line = ["predict", model, *photos, "--native-resolution", "--max-tokens", "20", "--json"]
    assert main(line) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = vitrail.predict(model, photos, native_resolution=True, max_tokens=20)
    assert printed == json.loads(json.dumps(found.facts()))
    out = tmp_path / "labels.jsonl"
    vitrail.predict(model, photos, native_resolution=True, max_tokens=20, out=out)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["label"] for one in written] == [one["label"] for one in printed]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"native_resolution": True, "engine": "compiled"}, "needs the engine eager, got compiled"),
        ({"native_resolution": True, "speed_up": 1.5}, "speed_up must be left out"),
        ({"native_resolution": True, "max_tokens": 0}, "max_tokens must be"),
        ({"max_tokens": 64}, "add native_resolution=True"),
    ],
)
def test_what_cannot_be_combined_is_refused(
    photos: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        vitrail.predict(small_model(), photos, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["swin", "beit", "mobilevit"])
def test_other_families_are_refused(photos: list[str], family: str, tmp_path: Path) -> None:
    model = build(change(CONFIGS[family], {"num_classes": 3}))
    every: list[dict[str, Any]] = [{}, {"out": tmp_path / "labels.csv"}]
    for options in every:
        with pytest.raises(UserError, match="need a ViT, DeiT or DINOv2 model"):
            vitrail.predict(model, photos, native_resolution=True, **options)
    assert not (tmp_path / "labels.csv").exists()


def test_capture_is_refused(photos: list[str]) -> None:
    model = small_model()
    with pytest.raises(UserError, match="must not be observed"), vitrail.capture(model):
        vitrail.predict(model, photos, native_resolution=True)
    assert len(vitrail.predict(model, photos, native_resolution=True)) == len(photos)


def test_embeddings_are_features_of_the_model_loaded_at_each_size(
    photos: list[str], tmp_path: Path
) -> None:
    model = small_model()
    index = vitrail.embed(
        model, photos, out=tmp_path / "vectors", native_resolution=True, max_tokens=20, batch_size=4
    )
    assert index.embedded == len(photos)
    [part] = finished_parts(tmp_path / "vectors")
    names, vectors = (column.to_pylist() for column in columns_of(part, "id", "embedding"))
    for name, vector in zip(names, vectors, strict=True):
        image = Image.open(name)
        size = NativeSize(8, 20).size(image.height, image.width)
        alone: Any = vitrail.load(model, image_size=size).eval()
        how = replace(model.passport.preprocessing, size=size, resize=None, squeeze=False)
        with torch.no_grad():
            expected = alone.features(prepare(image, how)[None])[0].numpy()
        np.testing.assert_allclose(vector, expected, atol=1e-5 * np.abs(expected).max())
    [nearest] = index.search(photos[0], k=1)
    assert nearest.id == photos[0]
    assert nearest.cosine == pytest.approx(1, abs=1e-5)  # the query has its native size too
    with pytest.raises(UserError, match="was made with native_resolution True, not False"):
        vitrail.embed(model, photos, out=tmp_path / "vectors", batch_size=4)
    with pytest.raises(UserError, match="tokens must be left out with native_resolution"):
        vitrail.embed(model, photos, out=tmp_path / "x", native_resolution=True, tokens=True)


def test_probes_read_the_features_of_images_at_their_own_size(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("wide", "high"):
            for number in range(4):
                sides = (24, 64) if label == "wide" else (64, 24)
                pixels = draw.integers(0, 256, (*sides, 3), dtype=np.uint8)
                file = tmp_path / "data" / split / label / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file)
    model = small_model()
    given: dict[str, Any] = {"shots": [2], "seeds": 1, "cache": tmp_path / "cache"}
    native: dict[str, Any] = {"native_resolution": True, "max_tokens": 20}
    square = vitrail.probe(model, tmp_path / "data", **given)
    found = vitrail.probe(model, tmp_path / "data", **given, **native)
    assert not found.train["cached"]  # other features than those of squares
    assert vitrail.probe(model, tmp_path / "data", **given, **native).train["cached"]
    assert vitrail.probe(model, tmp_path / "data", **given).facts() | {"train": 0, "test": 0} == (
        square.facts() | {"train": 0, "test": 0}
    )
    with pytest.raises(UserError, match="linear probe reads blocks of images of one size"):
        vitrail.probe(model, tmp_path / "data", method="linear", **native)


def test_an_image_list_moves_and_divides_like_a_batch() -> None:
    images = ImageList(torch.full((1, n, 2), n) for n in range(1, 6))
    parts = images.to(torch.float64).split([2, 0, 3])
    assert [[int(image[0, 0, 0]) for image in part] for part in parts] == [[1, 2], [], [3, 4, 5]]
    assert all(isinstance(part, ImageList) for part in parts)
    assert parts[0][0].dtype is torch.float64


def test_evaluate_scores_images_as_predict_does(photos: list[str], tmp_path: Path) -> None:
    model = small_model()
    labels = model.passport.labels
    assert labels is not None
    for name, label in zip(photos, labels * len(photos), strict=False):
        target = tmp_path / "data" / "test" / label / Path(name).name
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(name).rename(target)
    native: dict[str, Any] = {"native_resolution": True, "max_tokens": 8}
    found = vitrail.evaluate(model, tmp_path / "data", **native)
    files = sorted((tmp_path / "data").rglob("*.png"))
    scores = torch.from_numpy(found.outputs.logits).softmax(dim=1).amax(dim=1)
    expected = [one.score for one in vitrail.predict(model, files, **native)]
    np.testing.assert_allclose(scores, np.array(expected), rtol=1e-5)
    square = vitrail.evaluate(model, tmp_path / "data").outputs.logits
    assert np.abs(square - found.outputs.logits).max() > 1e-4
    with pytest.raises(UserError, match="corruptions must be left out with native_resolution"):
        vitrail.evaluate(model, tmp_path / "data", corruptions=True, **native)
