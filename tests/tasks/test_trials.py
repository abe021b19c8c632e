"""Trials before a run leave nothing in memory, and take as much of it as the run does."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.training.world import RECIPE, Stripes, accuracy
from vitrail import UserError
from vitrail.data.source import Splits
from vitrail.tasks import training_run, trials
from vitrail.training.capacity import Trial
from vitrail.training.finder import LearningRateCurve, find_lr
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.world import World

SPLITS = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
SMALL: dict[str, Any] = {"set": {"fields.depth": 1, "fields.dim": 16, "fields.mlp_dim": 16}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(60) % 3)
    return tmp_path / "noise.npz"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of one step each."""

    def one_step(run: Trainer) -> None:
        run.train_step(next(run.stream.batches(0, 1)))

    def found_lr(run: Trainer) -> LearningRateCurve:
        one_step(run)
        return LearningRateCurve(0.01, (0.01,), (1.0,))

    def steps_within(run: Trainer, minutes: float) -> tuple[int, float]:
        one_step(run)
        return 2, 0.1

    def find_batch_size(*_: Any, **__: Any) -> list[Trial]:
        return [Trial(16, 1.0)]

    monkeypatch.setattr(trials, "find_lr", found_lr)
    monkeypatch.setattr(trials, "steps_within", steps_within)
    monkeypatch.setattr(trials, "find_batch_size", find_batch_size)


@pytest.mark.usefixtures("short")
def test_nothing_of_a_trial_is_left(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = list[weakref.ref[Any]]()
    left = list[int]()

    def prepare(*args: Any, **options: Any) -> Any:
        left.append(sum(model() is not None for model in models))
        task = prepare_task(*args, **options)
        models.append(weakref.ref(task.objective))
        return task

    for module in (trials, training_run):
        monkeypatch.setattr(module, "prepare_task", prepare)
    options: dict[str, Any] = {"batch_size": "auto", "lr": "find", "minutes": 1.0, **SMALL}
    run = vitrail.train(data, out=tmp_path / "run", threads=1, **options)
    assert (run.total, run.recipe.optimiser.lr, run.recipe.batch_size) == (2, 0.01, 16)
    assert left == [0, 0, 0, 0]


@pytest.mark.usefixtures("short")
def test_another_batch_size_keeps_what_the_device_does_best(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_gpu(recipe: Any, machine: Any, given: Any) -> Any:
        return replace(recipe, workers=3)

    monkeypatch.setattr(training_run, "with_device_defaults", on_a_gpu)
    run = vitrail.train(data, batch_size="auto", steps=1, dry_run=True, **SMALL)
    assert run.recipe.workers == 3


def test_a_trial_of_a_shared_model_builds_no_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[bool]()

    class BuiltError(Exception):
        pass

    def prepare(*_: Any, deferred: bool = False) -> None:
        seen.append(deferred)
        raise BuiltError

    monkeypatch.setattr(trials, "prepare_task", prepare)
    for parallel, size in (("fsdp", 2), ("hsdp", 4), ("ddp", 2), ("fsdp", 1)):
        recipe = replace(RECIPE, parallel=parallel)  # type: ignore[arg-type]
        with pytest.raises(BuiltError):
            trials.try_out(find_lr, recipe, SPLITS, accuracy, World(size=size))
        with pytest.raises(BuiltError):
            trials.time_batch_sizes(recipe, SPLITS, accuracy, World(size=size))
    assert seen == [True] * 4 + [False] * 4


def test_a_trial_that_runs_out_of_memory_has_more_parts() -> None:
    def fits_in_four(run: Trainer) -> int:
        if run.accumulate < 4:
            raise torch.OutOfMemoryError
        return run.accumulate

    found, recipe = trials.try_out(fits_in_four, RECIPE, SPLITS, accuracy, World())
    assert found == recipe.accumulate == 4
    assert recipe.reasons[-1].startswith("batches in 4 parts: memory ran out")

    def never_fits(run: Trainer) -> int:
        raise torch.OutOfMemoryError

    with pytest.raises(UserError, match="not even one image at a time fits into memory"):
        trials.try_out(never_fits, RECIPE, SPLITS, accuracy, World())


def test_parts_divide_the_batch_and_others_are_not_waited_for() -> None:
    odd = replace(RECIPE, batch_size=15)
    assert trials.in_more_parts(odd, World()).accumulate == 3
    with pytest.raises(UserError, match=r"process 1 ran out of memory .* set accumulate=2"):
        trials.in_more_parts(RECIPE, World(rank=1, size=2))


def test_a_whole_model_that_does_not_fit_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(trials, "find_batch_size", no_memory)
    with pytest.raises(UserError, match="batch_size must be a number here: the whole model"):
        trials.time_batch_sizes(RECIPE, SPLITS, accuracy, World())
    shared = replace(RECIPE, parallel="fsdp")
    with pytest.raises(
        UserError, match="process 1 ran out of memory in a trial step of batch_size"
    ):
        trials.time_batch_sizes(shared, SPLITS, accuracy, World(rank=1, size=2))
