"""Batches in a process: images and tensors together, problems in their place, sizes divided."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import vitrail
from tests.serving.conftest import make_model
from tests.serving.running import png
from vitrail.inference.engine import Job, plan_of
from vitrail.inference.engines.auto import OpenRunner
from vitrail.inference.exported_model import ExportedModel
from vitrail.inference.prediction import NOT_FINITE
from vitrail.models.model import Model
from vitrail.serving.engine import NOT_PIXELS, BatchEngine, Item, LaneRunner, divide
from vitrail.serving.spec import WorkerSpec

SPEC = WorkerSpec(name="pets", path="", engine="eager", batch_size=16, max_pixels=5000)


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model(0)


def prepared(model: Model, seed: int) -> NDArray[np.float32]:
    image = Image.open(BytesIO(png(seed)))
    return np.asarray(model.preprocess(image)[0].numpy())


def test_a_batch_has_files_and_tensors(model: Model) -> None:
    engine = BatchEngine(model, SPEC)
    tensor = prepared(model, 1).tobytes()
    file, again, broken, large = engine.run(
        [
            Item("logits", False, png(1)),
            Item("logits", True, tensor),
            Item("logits", False, b"no image"),
            Item("logits", False, png(1, (80, 80))),
        ]
    )
    assert isinstance(file, np.ndarray)
    assert isinstance(again, np.ndarray)
    np.testing.assert_allclose(file, again, atol=1e-6)
    assert isinstance(broken, str)
    assert large == "80x80, more than the limit of 5,000 pixels"


def test_scores_are_the_best_classes_with_their_numbers() -> None:
    model = make_model(2, classes=200)
    (found,) = BatchEngine(model, SPEC).run([Item("scores", False, png(1))])
    assert isinstance(found, np.ndarray)
    with torch.inference_mode():
        expected = model(torch.from_numpy(prepared(model, 1))[None])[0].softmax(0)
    assert found.shape == (2, 100)
    assert found[0].astype(int).tolist() == expected.argsort(descending=True)[:100].tolist()
    np.testing.assert_allclose(found[1], expected.sort(descending=True).values[:100], atol=1e-6)


def test_features_are_opened_when_they_are_first_wanted(model: Model) -> None:
    engine = BatchEngine(model, SPEC)
    assert set(engine.lanes) == {"logits"}
    (found,) = engine.run([Item("features", False, png(1))])
    assert isinstance(found, np.ndarray)
    assert found.shape == (192,)
    assert set(engine.lanes) == {"logits", "pooled"}


def test_an_output_that_is_not_finite_is_a_problem() -> None:
    model = make_model(0)
    with torch.no_grad():
        next(iter(model.parameters())).fill_(float("nan"))
    assert BatchEngine(model, SPEC).run([Item("scores", False, png(1))]) == [NOT_FINITE]


@pytest.mark.slow
def test_a_file_that_reads_pixels_takes_no_other_tensors(model: Model, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="exported files")
    vitrail.export(model, tmp_path / "m.onnx", preprocessing=True)
    engine = BatchEngine(ExportedModel(tmp_path / "m.onnx"), SPEC)
    good = prepared(model, 1)
    rows = [good, np.full_like(good, np.nan), good * 100]
    found, *others = engine.run([Item("logits", True, row.tobytes()) for row in rows])
    with torch.inference_mode():
        expected = model(torch.from_numpy(good)[None])[0]
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert others == [NOT_PIXELS] * 2


@pytest.mark.parametrize("count", range(1, 40))
def test_any_number_is_divided_into_sizes_without_waste(count: int) -> None:
    sizes = divide(count, (1, 4, 8))
    assert sum(sizes) == count
    assert sizes == sorted(sizes, reverse=True)
    assert divide(count, (8,)) == [8] * -(-count // 8)


def test_parts_of_a_batch_are_put_together_in_order(model: Model) -> None:
    seen: list[int] = []

    def run(images: torch.Tensor) -> NDArray[np.float32]:
        seen.append(len(images))
        return np.asarray(images.flatten(1)[:, :1].numpy())

    plan = plan_of(model, Job(output="scores", batch_size=1))
    lane = LaneRunner([OpenRunner("onnxruntime", run, plan)] * 2, (4, 8))
    images = torch.arange(11, dtype=torch.float32).view(11, 1, 1, 1)
    assert lane.compute(images).ravel().tolist() == list(range(11))
    assert seen == [8, 4]


@pytest.mark.slow
def test_another_engine_computes_the_same(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="another engine")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    spec = WorkerSpec(name="pets", path="", engine="onnxruntime", batch_size=8)
    eager, other = BatchEngine(model, SPEC), BatchEngine(model, spec)
    assert other.engine == "onnxruntime"
    for count in (1, 3, 8, 11):
        items = [Item("logits", False, png(seed)) for seed in range(count)]
        for one, two in zip(eager.run(items), other.run(items), strict=True):
            np.testing.assert_allclose(one, two, atol=1e-4)  # type: ignore[arg-type]
