"""A dry run checks everything, computes nothing and writes nothing."""

from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.cli.app import main
from vitrail.tasks import keywords
from vitrail.tasks.dry_run import DryRun

VERBS = ("evaluate", "probe", "explain", "figures")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    fields = {"image_size": 16, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2, "channels": 1}
    made = vitrail.create("vit_ti_16", num_classes=10, **fields)
    return str(vitrail.save(made, tmp_path_factory.mktemp("model") / "model"))


@pytest.mark.parametrize("verb", [*VERBS, "compare", "reproduce"])
def test_type_checkers_know_every_argument(verb: str) -> None:
    parameters = signature(getattr(vitrail, verb)).parameters.values()
    options = {one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY}
    known = getattr(keywords, f"{verb.capitalize()}Keywords")
    assert get_type_hints(known).keys() == options - {"dry_run"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_written_and_mistakes_are_found(
    verb: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.zeros((16, 16), dtype=np.uint8)).save(tmp_path / "photo.png")
    data = "photo.png" if verb == "explain" else "digits"
    task: Any = getattr(vitrail, verb)
    before = sorted(tmp_path.rglob("*"))
    plan = task(model, data, out="out", dry_run=True)
    assert isinstance(plan, DryRun)
    assert plan.out == "out"
    assert plan.details["batches"] >= 1
    assert "report.html" in plan.details["files"]
    assert not task(model, data, dry_run=True).details["files"]
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("mine")
    with pytest.raises(vitrail.UserError, match=r"report.html was not written by vitrail"):
        task(model, data, out="out", dry_run=True)
    with pytest.raises(vitrail.UserError, match="no-such"):
        task(model, "no-such", dry_run=True)


def test_the_counts_are_those_of_the_run(model: str) -> None:
    plan = vitrail.evaluate(
        model, "digits", by_index=True, corruptions=True, corrupted_images=2, dry_run=True
    )
    found = vitrail.evaluate(model, "digits", by_index=True)
    assert isinstance(plan, DryRun)
    assert plan.details["images"] == {"val": found.images, "corrupted": 150}
    assert plan.details["batches"] == 3 + 3  # of 64


def test_the_shell_prints_a_line_for_each_fact(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", model, "digits", "--out", "nowhere", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dry run of vitrail probe: nothing was computed or written"
    assert "images      1,618 train, 179 val" in lines
    assert lines[-2:] == ["files       report.html, probe.json", "out         nowhere"]


def test_predict_and_embed_print_the_same_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = vitrail.create("vit_ti_16", image_size=32, depth=1, num_classes=3)
    folder, photo = str(vitrail.save(tiny, tmp_path / "model")), str(tmp_path / "a.png")
    Image.new("RGB", (40, 40)).save(photo)
    for verb, out in (("predict", tmp_path / "labels.csv"), ("embed", tmp_path / "vectors")):
        assert main([verb, folder, photo, "--out", str(out), "--dry-run"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"dry run of vitrail {verb}: nothing was computed or written"
        assert lines[1:3] == ["images      1", "batches     1"]
        assert not out.exists()
