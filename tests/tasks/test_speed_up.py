"""`speed_up=` of the verbs: what was merged is told, in Python and in the shell alike."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.inference.photos import write_photos
from vitrail import UserError
from vitrail.cli.app import main
from vitrail.inference.speed_up import SpeedUp
from vitrail.models.model import Model
from vitrail.tasks import speed_up as task
from vitrail.tasks.speed_up import with_speed_up

SPEED_UP = {"merged_tokens": 5, "speed_up": 1.75, "measured_on": "eager"}


def digits_model() -> Model:
    torch.manual_seed(0)
    model = vitrail.create(
        "vit_ti_16", depth=2, num_classes=10, channels=1, image_size=32, patch_size=4
    ).eval()
    for parameter in model.get_submodule("head").parameters():
        torch.nn.init.normal_(parameter)
    return model


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A machine on which 5 merged tokens are always 1.75 times as fast: times are not what these
    tests are about (tests/inference/test_speed_up.py is)."""
    calls: list[dict[str, Any]] = []

    def choose(model: Model, speed_up: float, **options: Any) -> SpeedUp:
        calls.append({"speed_up": speed_up, **options})
        return SpeedUp(5, 1.75)

    monkeypatch.setattr(task, "choose_merging", choose)
    return calls


def test_evaluate_tells_what_was_merged(measured: list[dict[str, Any]]) -> None:
    model = digits_model()
    plain = vitrail.evaluate(model, "digits", by_index=True, engine="eager")
    merged = vitrail.evaluate(model, "digits", by_index=True, engine="eager", speed_up=1.7)
    assert plain.facts()["speed_up"] is None
    assert merged.facts()["speed_up"] == SPEED_UP
    assert merged.notes[0].startswith("5 tokens are merged in every block")
    assert merged.metrics["nll"] != plain.metrics["nll"]
    assert measured == [{"speed_up": 1.7, "batch_size": 64, "output": "scores"}]
    assert not model.merged_tokens


def test_predict_in_python_and_in_the_shell(
    measured: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_photos(tmp_path / "photos", 2)
    torch.manual_seed(0)
    model = vitrail.create("vit_ti_16", depth=2, num_classes=3, image_size=64).eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    saved = str(vitrail.save(model, tmp_path / "model"))
    plain = vitrail.predict(model, photos, engine="eager")
    merged = vitrail.predict(model, photos, engine="eager", speed_up=1.5)
    assert plain.speed_up is None
    assert merged.speed_up == SPEED_UP
    assert merged.facts() != plain.facts()
    capsys.readouterr()
    command = ["predict", saved, *photos, "--engine", "eager", "--speed-up", "1.5", "--json"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == merged.facts()
    assert "5 tokens are merged" in printed.err


def test_a_real_model_becomes_faster() -> None:
    model = digits_model()
    merged, found = with_speed_up(model, 1.0, batch_size=4)
    assert found is not None
    assert (found.r, found.ratio) == (0, 1.0)
    assert not merged.merged_tokens


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    model = digits_model()
    with pytest.raises(UserError, match="leave out resolutions"):
        vitrail.evaluate(model, "digits", speed_up=2, resolutions=[16])
    with pytest.raises(UserError, match=r"int8 is measured for one image .* leave out resolutions"):
        vitrail.evaluate(model, "digits", precision="int8", resolutions=[16])
    with pytest.raises(UserError, match="another engine than ray"):
        vitrail.predict(model, "x.png", speed_up=2, engine="ray", out=tmp_path / "x.jsonl")
    with pytest.raises(UserError, match="1 or more"):
        vitrail.evaluate(model, "digits", by_index=True, speed_up=0.5)
