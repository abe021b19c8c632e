"""int8 files: measured on the user's images, refused where they lose too much."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.inference.photos import LABELS, write_photos
from tests.models.kinds import SMALL, perturbed
from tests.parity.test_every_family import CNNS, SHALLOW, make
from vitrail import UserError
from vitrail.exporters.export import Export
from vitrail.exporters.int8 import with_samples
from vitrail.exporters.target import Request
from vitrail.inference.onnx_file import OnnxFile
from vitrail.models.model import Model


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = perturbed(replace(SMALL, depth=1)).eval()
    made.passport = replace(made.passport, labels=LABELS)
    return made


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders."""
    place = tmp_path_factory.mktemp("photos")
    for label in LABELS[:2]:
        write_photos(place / label, 8)
    return place


@pytest.mark.slow
def test_a_file_in_int8_says_what_it_lost(model: Model, photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    done = vitrail.export(
        model, file, images=photos, precision="int8", preprocessing=True, max_drop=100
    )
    assert isinstance(done, Export)
    record = done.quantisation
    assert record is not None
    assert record.images == 8
    assert record.accuracy is not None
    assert 0 < record.error < 0.1
    stored = json.loads((tmp_path / "model.onnx.json").read_text())["quantisation"]
    assert stored["accuracy_before"] == record.accuracy[0]
    assert "dynamic int8" in repr(done)
    written = OnnxFile(file)
    assert written.metadata().graph.precision == "int8"
    assert vitrail.predict(file, next(photos.rglob("*.jpg"))).label in LABELS


@pytest.mark.slow
@pytest.mark.parametrize("family", CNNS)
def test_convolutional_networks_in_int8(family: str, photos: Path, tmp_path: Path) -> None:
    """Their activations have calibrated scales."""
    cnn = make(family, configs=SHALLOW)
    file = tmp_path / "model.onnx"
    done = vitrail.export(cnn, file, images=photos, precision="int8", max_drop=100)
    assert isinstance(done, Export)
    assert done.quantisation is not None
    assert done.quantisation.method == "static"
    assert 0 < done.quantisation.error < 0.1
    assert vitrail.predict(file, next(photos.rglob("*.jpg"))).score is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.onnx", "model.xml"])
def test_a_file_that_lost_too_much_is_not_written(
    name: str, model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # any file loses more than -101 points, if such a limit is let through
    monkeypatch.setattr("vitrail.tasks.export.check", lambda *given, **limits: None)
    with pytest.raises(
        UserError, match=r"may lose -101 points of accuracy, but loses .*: raise max_drop"
    ):
        vitrail.export(model, tmp_path / name, images=photos, precision="int8", max_drop=-101)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_openvino_in_int8(model: Model, photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.xml"
    done = vitrail.export(model, file, images=photos, precision="int8", max_drop=100)
    assert isinstance(done, Export)
    record = done.quantisation
    assert record is not None
    assert record.method == "static (NNCF)"
    assert 0 < record.error < 0.2
    assert record.size[1] < record.size[0]


def test_too_few_images_are_refused(model: Model, tmp_path: Path) -> None:
    names = write_photos(tmp_path / "photos", 3)
    with pytest.raises(UserError, match=r"at least 16 images .* got 3: give more with images="):
        vitrail.export(model, tmp_path / "model.onnx", images=names, precision="int8")
    assert [file.name for file in tmp_path.iterdir()] == ["photos"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8-weights", "int4-weights"])
def test_weights_alone_make_smaller_files(
    precision: str, model: Model, photos: Path, tmp_path: Path
) -> None:
    wide: Model = perturbed(replace(SMALL, depth=1, dim=64, mlp_dim=256)).eval()
    file = tmp_path / "model.onnx"
    options: Any = {"precision": precision, "max_drop": 100}
    done = vitrail.export(wide, file, images=photos, **options)
    assert isinstance(done, Export)
    record = done.quantisation
    assert record is not None
    assert (record.method, record.bits) == ("weights", int(precision[3]))
    assert 0 < record.error < {8: 0.02, 4: 0.3}[record.bits]
    assert file.stat().st_size < 0.6 * record.size[0]
    assert OnnxFile(file).metadata().graph.precision == precision
    with pytest.raises(UserError, match="precision must be float32 or float16 or int8 for"):
        vitrail.export(wide, tmp_path / "m.xml", images=photos, **options)


def test_images_to_calibrate_on_are_in_memory_once(model: Model, photos: Path) -> None:
    images = sorted(photos.rglob("*.jpg"))
    samples = with_samples(Request(model=model, precision="int8"), images).samples
    assert samples is not None
    calibration, test = samples.split()
    for some in (samples, calibration, test):
        assert np.shares_memory(some.inputs, some.images.numpy())
    pixels = with_samples(Request(model=model, precision="int8", preprocessing=True), images)
    assert pixels.samples is not None
    assert pixels.samples.inputs.dtype == np.uint8
