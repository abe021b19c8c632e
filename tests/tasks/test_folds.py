"""Cross-validation and a budget of minutes, as a person calls them."""

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from vitrail import UserError
from vitrail.data.sources import open_data
from vitrail.data.sources.validation import fold_numbers, strata
from vitrail.tasks.folds import CrossValidation
from vitrail.tasks.train import TrainKeywords
from vitrail.training.recipe_file import read_recipe

SMALL: dict[str, Any] = {
    "batch_size": 16,
    "threads": 1,
    "set": {"fields.depth": 1, "fields.dim": 16, "fields.mlp_dim": 16},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [30, 18, 12])
    images = (
        draw.integers(0, 60, (60, 8, 8)).astype(np.uint8)
        + (labels * 80).astype(np.uint8)[:, None, None]
    )
    np.savez(tmp_path / "bright.npz", images=images, labels=labels)
    return tmp_path / "bright.npz"


@given(folds=st.integers(2, 12))
def test_folds_are_equal_shares_of_every_class(folds: int) -> None:
    source = open_data("digits", val_share=0)["train"]
    numbers = fold_numbers(source, folds, seed=0)  # type: ignore[arg-type]
    sizes = np.bincount(numbers, minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    classes = strata(source)  # type: ignore[arg-type]
    for label in np.unique(classes):
        counts = np.bincount(numbers[classes == label], minlength=folds)
        assert counts.max() - counts.min() <= 1


def test_every_image_is_held_out_once(data: Path) -> None:
    seen = []
    for fold in (1, 2, 3):
        splits = open_data(data, folds=3, fold=fold)
        names = [{s.name(i) for i in range(len(s))} for s in (splits["train"], splits["val"])]
        assert not names[0] & names[1]
        assert len(names[0] | names[1]) == 60
        seen += list(names[1])
    assert len(seen) == len(set(seen)) == 60
    with pytest.raises(UserError, match="folds must be at least 2"):
        open_data(data, folds=3, fold=4)


def test_equal_scores_of_folds_give_no_interval() -> None:
    runs = [SimpleNamespace(score=score, metric="accuracy") for score in (0.5, 0.5)]
    found = CrossValidation(out=Path("out"), runs=runs, folds=2)  # type: ignore[arg-type]
    assert found.interval is None
    assert found.headline == "accuracy 0.5000, the mean of 2 folds"


@pytest.mark.slow
def test_a_run_for_each_fold_and_one_report(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "folds"
    found = vitrail.train(data, out=out, folds=3, epochs=4, **SMALL)
    assert isinstance(found, CrossValidation)
    scores = [run.score for run in found.runs]
    assert found.mean == pytest.approx(np.mean(scores))  # type: ignore[arg-type]
    assert found.interval is not None
    assert found.interval[0] <= found.mean <= found.interval[1]  # type: ignore[operator]
    assert json.loads((out / "folds.json").read_text()) == found.facts()
    page = (out / "report.html").read_text()
    assert "the mean of 3 folds" in page
    for fold in (1, 2, 3):
        recipe = read_recipe(out / f"fold-{fold}" / "recipe.yaml")
        assert (recipe.folds, recipe.fold) == (3, fold)
    # a fold's model is evaluated on the images that its training held out
    model = vitrail.load(out / "fold-2" / "best")
    again = vitrail.evaluate(model, data, split="val")
    assert again.accuracy == pytest.approx(found.runs[1].score)
    resumed = vitrail.train(data, out=out, folds=3, epochs=4, resume=True, **SMALL)
    assert resumed.facts() == found.facts()
    with pytest.raises(UserError, match="already exists"):
        vitrail.train(data, out=out, folds=3, epochs=4, **SMALL)


@pytest.mark.slow
def test_minutes_become_steps_that_a_resumed_run_keeps(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "budget"
    run = vitrail.train(data, out=out, minutes=0.02, **SMALL)
    assert run.recipe.schedule.steps == run.total == run.step
    (reason,) = [reason for reason in run.recipe.reasons if "minutes have time for" in reason]
    assert f"{run.total:,} steps" in reason
    assert vitrail.train(data, out=out, minutes=0.02, resume=True, **SMALL).facts() == run.facts()
    for wrong in ({"epochs": 3.0}, {"steps": 3}):
        with pytest.raises(UserError, match="minutes must be left out"):
            vitrail.train(data, out=tmp_path / "x", minutes=1, **wrong)
    with pytest.raises(UserError, match="minutes must be"):
        vitrail.train(data, out=tmp_path / "x", minutes=0)


@pytest.mark.slow
def test_minutes_of_all_folds_are_steps_of_each(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = list[float]()

    def measure(run: Any, minutes: float) -> tuple[int, float]:
        measured.append(minutes)
        return 3 + len(measured), 0.1  # another speed each time, as on a machine with other work

    monkeypatch.setattr("vitrail.tasks.trials.steps_within", measure)
    options = {"out": tmp_path / "folds", "folds": 3, "minutes": 6.0, **SMALL}
    found = vitrail.train(data, **options)
    assert measured == [2.0]
    assert [run.total for run in found.runs] == [4, 4, 4]
    assert vitrail.train(data, **options, resume=True).facts() == found.facts()


def test_all_folds_have_the_schedule_of_the_first(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the time allows more steps than the recipe has, which lengthens the warm-up."""
    monkeypatch.setattr("vitrail.tasks.trials.steps_within", lambda run, minutes: (8, 0.1))
    short = {"schedule.epochs": 2, "schedule.warmup": 2}
    options = {**SMALL, "set": SMALL["set"] | short}
    found = vitrail.train(data, out=tmp_path / "folds", folds=2, minutes=6.0, **options)
    first, second = (run.recipe.schedule for run in found.runs)
    assert first == second
    assert (first.steps, first.warmup) == (8, 4)


def test_the_keywords_are_those_of_the_function() -> None:
    names = set(inspect.signature(vitrail.train).parameters) - {"data", "folds"}
    assert set(TrainKeywords.__annotations__) == names
