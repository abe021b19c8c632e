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
from vitrail.inference.journal import Journal, speed_up_facts, stopped_speed_up
from vitrail.inference.merging import merge_tokens
from vitrail.inference.outputs import open_logits
from vitrail.inference.speed_up import SpeedUp
from vitrail.models.model import Model
from vitrail.tasks import evaluate
from vitrail.tasks import speed_up as task
from vitrail.tasks.models import open_model
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


def test_a_merged_model_stays_so_in_another_precision() -> None:
    merged = merge_tokens(digits_model(), 5)
    other = open_model(merged, precision="float64")
    assert next(other.parameters()).dtype is torch.float64
    assert other.merged_tokens == merged.merged_tokens == (5, 5)
    images = torch.rand(2, 1, 32, 32)
    with torch.inference_mode():
        expected = other(images.double()).float()
        torch.testing.assert_close(merged(images), expected, rtol=1e-4, atol=1e-4)


def test_a_merged_model_stays_so_at_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def note_merging(model: Model, **options: Any) -> Any:
        seen.append(model.merged_tokens)
        return open_logits(model, **options)

    monkeypatch.setattr(evaluate, "open_logits", note_merging)
    merged = merge_tokens(digits_model(), 5)
    found = vitrail.evaluate(merged, "digits", by_index=True, engine="eager", resolutions=[16])
    assert found.resolutions[0].problem is None
    assert seen == [(5, 5), (5, 5)]


def test_a_speed_up_is_measured_with_the_threads_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = []

    def choose(*given: Any, **options: Any) -> SpeedUp:
        threads.append(torch.get_num_threads())
        return SpeedUp(5, 1.75)

    monkeypatch.setattr(task, "choose_merging", choose)
    before = torch.get_num_threads()
    with_speed_up(digits_model(), 1.5, batch_size=1, threads=before + 1)
    assert threads == [before + 1]
    assert torch.get_num_threads() == before


def colour_model() -> Model:
    torch.manual_seed(0)
    model = vitrail.create("vit_ti_16", depth=2, num_classes=3, image_size=64).eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    return model


def test_predictions_that_were_interrupted_are_resumed_with_as_many_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, model = write_photos(tmp_path / "photos", 6), colour_model()
    options: Any = {"engine": "eager", "speed_up": 1.5, "batch_size": 2, "threads": 1}

    def stop(what: str, done: int, total: int | None) -> None:
        if done == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(task, "choose_merging", lambda *given, **options: SpeedUp(3, 1.6))
    with pytest.raises(KeyboardInterrupt, match="repeat the command to resume"):
        vitrail.predict(model, photos, out=tmp_path / "a.jsonl", on_progress=stop, **options)
    monkeypatch.setattr(task, "choose_merging", lambda *given, **options: SpeedUp(5, 1.9))
    resumed = vitrail.predict(model, photos, out=tmp_path / "a.jsonl", **options)
    merged = {"merged_tokens": 3, "speed_up": 1.6, "measured_on": "eager"}
    assert resumed.facts()["speed_up"] == merged
    monkeypatch.setattr(task, "choose_merging", lambda *given, **options: SpeedUp(3, 1.6))
    vitrail.predict(model, photos, out=tmp_path / "b.jsonl", **options)
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()


def test_another_speed_up_is_another_run(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    found = SpeedUp(3, 1.6)
    journal = Journal(out, {"engine": "eager", "speed_up": speed_up_facts(1.5, found)})
    list(journal.resume([], lambda names: iter(()), 8))
    assert stopped_speed_up(out, 1.5) == found
    assert stopped_speed_up(out, 2.0) is None
    assert stopped_speed_up(tmp_path / "b.jsonl", 1.5) is None


@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_a_dry_run_measures_nothing(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "choose_merging", None)
    photos, out = write_photos(tmp_path / "photos", 2), tmp_path / "out.jsonl"
    plan = getattr(vitrail, verb)(colour_model(), photos, out=out, speed_up=1.5, dry_run=True)
    assert plan.facts()["images"] == 2


def test_the_shell_resumes_and_reports_merged_tokens(
    measured: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_photos(tmp_path / "photos", 2)
    saved = str(vitrail.save(colour_model(), tmp_path / "model"))
    out = str(tmp_path / "labels.jsonl")
    command = ["predict", saved, *photos, "--speed-up", "1.5", "--out", out, "--json"]
    assert main([*command, "--dry-run"]) == 0
    assert not measured
    capsys.readouterr()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["speed_up"] == SPEED_UP
