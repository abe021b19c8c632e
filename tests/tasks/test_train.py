"""Training from Python: what the command line does, with the same numbers."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import vitrail
from vitrail.cli.app import main
from vitrail.core.records import validate
from vitrail.data.sources import open_data
from vitrail.pages.thumbnails import data_uri
from vitrail.tasks.run import Run
from vitrail.tasks.run_report import AUGMENTED, augmented_images
from vitrail.tasks.training_run import make_scorer
from vitrail.training.finder import read_curve
from vitrail.training.prepare import prepare_task
from vitrail.training.progress import Progress
from vitrail.training.recipe import Monitor, Recipe
from vitrail.training.recipe_file import as_plain_values, read_recipe, with_new_names
from vitrail.training.reconstructions import as_pixels
from vitrail.training.stream import make_stream
from vitrail.training.world import World

SMALL: dict[str, Any] = {
    "fields.dim": 16, "fields.depth": 1, "fields.heads": 2, "fields.mlp_dim": 32,
    "monitor.examine_data": False,  # tests/cli/test_training.py has what it finds
}  # fmt: skip
SHORT: dict[str, Any] = {"steps": 6, "batch_size": 16, "set": SMALL, "threads": 1}
WORDS = [
    "--steps", "6", "--batch-size", "16", "--threads", "1", "--json",
    *(word for name, value in SMALL.items() for word in ("--set", f"{name}={json.dumps(value)}")),
]  # fmt: skip


def weights(run: Run) -> dict[str, Any]:
    assert run.last is not None
    return {name: t.numpy() for name, t in load_file(run.last / "model.safetensors").items()}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_python_and_shell_give_the_same_json(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "python", tmp_path / "shell"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[0])
    run = getattr(vitrail, verb)("digits", out="run", **SHORT)
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""
    monkeypatch.chdir(folders[1])
    assert main([verb, "digits", "--out", "run", *WORDS]) == 0
    assert run.facts() == json.loads(capsys.readouterr().out)
    first, second = (load_file(one / "run/last/model.safetensors") for one in folders)
    assert all(first[name].equal(second[name]) for name in first)
    dry = getattr(vitrail, verb)("digits", out="dry", dry_run=True, **SHORT)
    assert main([verb, "digits", "--out", "dry", "--dry-run", *WORDS]) == 0
    assert dry.facts() == json.loads(capsys.readouterr().out)
    assert not Path("dry").exists()


@pytest.mark.slow
def test_ctrl_c_returns_a_run_that_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    whole = vitrail.train("digits", out=tmp_path / "whole", **SHORT)
    seen = list[int]()

    def press(now: Progress) -> None:
        seen.append(now.step)
        if now.step == 3:
            signal.raise_signal(signal.SIGINT)

    run = vitrail.train("digits", out=tmp_path / "run", on_step=press, **SHORT)
    assert (run.stopped, run.step, run.total) == (True, 3, 6)
    assert seen == [0, 1, 2, 3]
    assert "step 3 of 6" in repr(run)
    done = vitrail.resume(tmp_path / "run")
    assert (done.stopped, done.step) == (False, 6)
    assert done.score == whole.score
    ours, theirs = weights(done), weights(whole)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert vitrail.resume(tmp_path / "run").was_finished
    assert [line["step"] for line in done.metrics] == [line["step"] for line in whole.metrics]
    assert str(done.report) in done._repr_html_()
    copy = done.save_html(tmp_path / "copy.html")
    assert done.report is not None
    assert copy.read_bytes() == done.report.read_bytes()
    with pytest.raises(vitrail.UserError, match="no run to resume here"):
        vitrail.resume(tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": "ten"}, "train: epochs must be a valid number, got 'ten'"),
        ({"device": "tpu"}, "device must be auto, cpu, cuda"),
        ({"set": {"optimizer.lr": 1}}, "no part 'optimizer': did you mean optimiser"),
        ({"set": {"seed": None}}, "seed must be a valid integer, got None"),
        ({"set": {"optimiser.betas": [0.9]}}, "betas must have at least 2 values$"),
        ({"set": {"optimiser.betas": [1, 2, 3]}}, "betas must have at most 2 values, got 3$"),
        ({"processes": 0}, "processes must be at least 1, got 0"),
        ({"precision": "float8"}, "precision must be 'float32', 'bfloat16' or 'float16'"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(vitrail.UserError, match=sentence):
        vitrail.train("digits", out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_several_processes_report_to_python(tmp_path: Path) -> None:
    steps, work = list[int](), set[str]()
    run = vitrail.train(
        "digits",
        out=tmp_path / "run",
        processes=2,
        on_step=lambda now: steps.append(now.step),
        on_progress=lambda what, *_: work.add(what),
        **{**SHORT, "set": {**SMALL, "monitor.examine_data": True}},
    )
    assert steps == list(range(7))
    assert work == {"training", "examining the data"}
    assert vitrail.resume(tmp_path / "run").facts() == run.facts()
    with pytest.raises(vitrail.UserError, match="lr must be above 0"):
        vitrail.train("digits", out=tmp_path / "no", processes=2, lr=-1.0, **SHORT)


@pytest.mark.slow
def test_the_curve_of_the_learning_rate_finder_stays_with_the_run(tmp_path: Path) -> None:
    run = vitrail.train("digits", out=tmp_path / "run", lr="find", **SHORT)
    curve = read_curve(run.out)
    assert curve is not None
    assert curve.lr == run.recipe.optimiser.lr
    assert len(curve.rates) == len(curve.losses) > 5


def test_the_report_shows_augmented_images_of_the_first_step() -> None:
    recipe = Recipe(data="digits", fields={"channels": 1, "image_size": 16, "dim": 192})
    splits = open_data("digits")
    task = prepare_task(recipe, splits, make_scorer(splits))
    batch = next(make_stream(task, World()).batches(0, 1))
    how = task.objective.model.passport.preprocessing
    pixels = as_pixels(batch.images[:AUGMENTED], how)
    assert augmented_images(task) == [data_uri(image) for image in pixels]


def test_recipes_of_earlier_versions_are_read(tmp_path: Path) -> None:
    recipe = Recipe(data="digits", ema_decay=0.9, monitor=Monitor(save_every_steps=7))
    values = as_plain_values(recipe)
    values["average"] = values.pop("ema_decay")
    values["watch"] = values.pop("monitor")
    for new, old in (("eval_every_epochs", "every"), ("save_every_steps", "save")):
        values["watch"][old] = values["watch"].pop(new)
    (tmp_path / "recipe.yaml").write_text(json.dumps(values))
    assert read_recipe(tmp_path / "recipe.yaml") == recipe
    assert validate(Recipe, with_new_names(values), where="old") == recipe
