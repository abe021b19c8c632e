"""`precision="int8"` of the verbs: close, told in the record, refused beyond a limit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.inference.photos import LABELS, write_photos
from tests.models.kinds import SMALL, perturbed
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.inference.engines.auto import open_runner
from vitrail.inference.engines.runner import Plan
from vitrail.inference.merging import merge_tokens
from vitrail.inference.quantisation import check_drop
from vitrail.inference.quantise import relative_error
from vitrail.models.model import Model
from vitrail.tasks.int8 import make_calibration

CONFIG = replace(SMALL, depth=2, dim=32, mlp_dim=64)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One for all tests here: a second start opens what the first built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model() -> Model:
    made: Model = perturbed(CONFIG).eval()
    made.passport = replace(made.passport, labels=LABELS)
    return made


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photos")
    write_photos(place, 24, broken=(3,))
    return place


def scores(predictions: Any) -> Any:
    return np.array([sorted(dict(one.top).items()) for one in predictions if one.problem is None])


@pytest.mark.slow
def test_predictions_in_int8_are_close_and_say_what_they_cost(
    model: Model, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = vitrail.predict(model, photos, engine="eager")
    found = vitrail.predict(model, photos, precision="int8", max_drop=100)
    assert found != plain
    difference = scores(found)[:, :, 1].astype(float) - scores(plain)[:, :, 1].astype(float)
    assert np.abs(difference).max() < 0.1
    record = found.quantisation
    assert record is not None
    assert (record.method, record.images) == ("static", 12)  # of 23 that can be read
    assert 0 < record.error < 0.2
    saved = str(vitrail.save(model, tmp_path / "model"))
    capsys.readouterr()
    command = ["predict", saved, str(photos), "--precision", "int8", "--max-drop", "100"]
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == found.facts()
    assert "static int8" in printed.err
    out = tmp_path / "labels.jsonl"
    assert main([*command, "--json", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["quantisation"]["error"] == record.error


@pytest.mark.slow
def test_what_an_image_gets_does_not_depend_on_its_batch(model: Model, photos: Path) -> None:
    names = sorted(str(file) for file in photos.iterdir())
    every = vitrail.predict(model, names, precision="int8", calibrate=photos, max_drop=100)
    some = vitrail.predict(model, names[8:17], precision="int8", calibrate=photos, max_drop=100)
    assert list(some) == every[8:17]


@pytest.mark.parametrize(
    ("calibrate", "sentence"),
    [
        ("none.png", "^calibrate must have at least 16 images to read, got 0 of 1; none.png: no"),
        (["{photos}/*.nothing"], "^calibrate cannot be read: .*no images found"),
        ("{folder}", "^calibrate cannot be read: .*no images found"),
        ([], "^calibrate must be images, got none"),
        (3, "^calibrate must be images or a directory of them, got 3"),
        ("/dev/stdin", "^calibrate must be files, directories or patterns, got standard input"),
        (iter([Image.new("RGB", (9, 9))] * 2), "^calibrate must have at least 16 .*, got 2$"),
    ],
)
def test_images_to_calibrate_on_that_cannot_be_read(
    calibrate: Any, sentence: str, model: Model, photos: Path, tmp_path: Path
) -> None:
    places = {"photos": photos, "folder": tmp_path}
    if isinstance(calibrate, str):
        calibrate = calibrate.format(**places)
    elif isinstance(calibrate, list):
        calibrate = [one.format(**places) for one in calibrate]
    with pytest.raises(UserError, match=sentence):
        vitrail.predict(model, photos, precision="int8", calibrate=calibrate)


def test_too_much_lost_is_refused(model: Model, photos: Path, tmp_path: Path) -> None:
    record = vitrail.predict(model, photos, precision="int8", max_drop=100).quantisation
    assert record is not None
    with pytest.raises(UserError, match=r"may lose 1 points of label agreement, but loses 50"):
        check_drop(replace(record, agreement=0.5), 1.0)
    with pytest.raises(UserError, match=r"^int8 needs at least 16 .* got 3: .* with calibrate="):
        vitrail.predict(model, sorted(photos.iterdir())[:3], precision="int8")
    with pytest.raises(UserError, match="int8 is computed by the engine onnxruntime or openvino"):
        vitrail.predict(model, photos, precision="int8", engine="eager")
    with pytest.raises(UserError, match="one by one: give calibrate"):
        vitrail.predict(model, iter([str(photos)]), precision="int8")
    names = [*sorted(map(str, photos.iterdir()))[4:19], str(photos / "none.png")]
    with pytest.raises(UserError, match=r"^int8 needs at least 16 .* got 15 of 16; .*: no such"):
        vitrail.predict(model, names, precision="int8")
    with pytest.raises(UserError, match="add precision int8"):
        vitrail.predict(model, photos, calibrate=photos)
    with pytest.raises(UserError, match="another engine than ray"):
        vitrail.predict(model, photos, precision="int8", engine="ray", out=tmp_path / "x.csv")


def plan_for(model: Model) -> Plan:
    return Plan("logits", (4, model.config.channels, *model.config.image_size))


@pytest.mark.slow
def test_int8_and_merging_combine(model: Model, photos: Path) -> None:
    merged = merge_tokens(model, 3)
    calibration = make_calibration(merged, photos, "int8", None, 100.0)
    assert calibration is not None
    opened = open_runner(merged, plan_for(model), "auto", calibration=calibration)
    images = calibration.samples.images[:4]
    with torch.no_grad():
        expected, whole = merged(images).numpy(), model(images).numpy()
    found = opened.compute(images)
    assert opened.engine == "onnxruntime"
    assert 0 < relative_error(expected, found) < 0.2
    assert not np.allclose(expected, whole, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("kind", ["vit", pytest.param("beit", marks=pytest.mark.slow)])
def test_engines_compute_merged_models(engine: str, kind: str, model: Model) -> None:
    """open_runner compares with eager, so that it would refuse; here the whole of it is shown."""
    fields: Any = {"depth": 2, "dim": 32, "heads": 2, "mlp_dim": 64, "image_size": 64}
    if kind == "beit":
        torch.manual_seed(0)
        model = vitrail.create("beit_b_16", num_classes=5, **fields).eval()
        for parameter in model.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
    merged = merge_tokens(model, 3)
    images = torch.randn(plan_for(model).shape)
    found = open_runner(merged, plan_for(model), engine).compute(images)
    with torch.no_grad():
        expected = merged(images).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_embeddings_in_int8_of_merged_tokens_are_found_again(
    model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.inference.speed_up import SpeedUp
    from vitrail.tasks import speed_up

    monkeypatch.setattr(speed_up, "choose_merging", lambda *args, **options: SpeedUp(3, 1.5))
    monkeypatch.setattr("vitrail.inference.quantisation.MAX_ERROR", 1.0)
    saved = vitrail.save(model, tmp_path / "model")
    out = tmp_path / "vectors"
    index = vitrail.embed(saved, photos, out=out, speed_up=1.5, precision="int8")
    assert index.facts()["speed_up"]["merged_tokens"] == 3
    assert index.quantisation is not None
    name = str(sorted(photos.iterdir())[0])
    best = vitrail.search(out, name, k=1)[0]
    assert best.id == name
    assert 0.98 < best.cosine < 1
    again = vitrail.embed(saved, photos, out=out, speed_up=1.5, precision="int8")
    assert (again.before, again.embedded) == (23, 0)
    with pytest.raises(UserError, match=r"another model|made with"):
        vitrail.embed(saved, photos, out=out)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_evaluate_in_int8(engine: str) -> None:
    torch.manual_seed(0)
    fields: Any = {"image_size": 16, "patch_size": 4, "dim": 32, "depth": 2, "heads": 2}
    model = vitrail.create("vit_ti_16", num_classes=10, channels=1, **fields).eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    options: Any = {"by_index": True, "engine": engine, "max_drop": 100}
    plain = vitrail.evaluate(model, "digits", by_index=True, engine="eager")
    found = vitrail.evaluate(model, "digits", precision="int8", **options)
    assert found.engine == engine
    facts = found.facts()["quantisation"]
    assert facts["images"] == 256  # of train, calibrated on 64 others
    assert 0 < facts["error"] < 0.3
    assert plain.metrics["nll"] != found.metrics["nll"]
    assert "int8" in found.notes[0]


def test_a_directory_of_merged_embeddings_is_searched_with_as_many(
    model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.inference.speed_up import SpeedUp
    from vitrail.tasks import speed_up

    monkeypatch.setattr(speed_up, "choose_merging", lambda *args, **options: SpeedUp(3, 1.5))
    saved, out = vitrail.save(model, tmp_path / "model"), tmp_path / "vectors"
    index = vitrail.embed(saved, photos, out=out, speed_up=1.5, engine="eager")
    assert index.facts()["speed_up"]["merged_tokens"] == 3
    name = str(sorted(photos.iterdir())[0])
    assert vitrail.search(out, name, k=1)[0].cosine == pytest.approx(1, abs=1e-6)
