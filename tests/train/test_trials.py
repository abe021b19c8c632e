"""Trials before a run: the learning rate and the batch size that are found are usable ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.train.world import RECIPE, trainer
from vitrail import UserError
from vitrail.train.capacity import Trial, best, find_batch_size
from vitrail.train.finder import HIGHEST, LOWEST, find_rate, steepest


def test_the_rate_that_is_found_trains(tmp_path: Path) -> None:
    found = find_rate(trainer(tmp_path))
    assert LOWEST < found.lr < HIGHEST
    assert not list(tmp_path.iterdir())
    good = trainer(tmp_path / "good", optimiser=replace(RECIPE.optimiser, lr=found.lr)).run()
    bad = trainer(tmp_path / "bad", optimiser=replace(RECIPE.optimiser, lr=LOWEST)).run()
    assert good.memory.best is not None
    assert bad.memory.best is not None
    assert good.memory.best > bad.memory.best


def test_the_steepest_fall_comes_before_the_lowest_loss() -> None:
    rates = [10.0**-k for k in (5, 4, 3, 2, 1, 0)]
    assert steepest(rates, [2.0, 2.0, 1.5, 0.7, 0.6, 9.0]) == 1e-2


def test_no_rate_where_nothing_is_finite(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(UserError, match="no learning rate was found"):
        find_rate(run)


def test_batch_sizes_grow_up_to_the_data(tmp_path: Path) -> None:
    objective = trainer(tmp_path).task.objective
    trials = find_batch_size(objective, images=100, device=torch.device("cpu"))
    assert [trial.batch_size for trial in trials] == [16, 32, 64]
    assert best(trials) in trials
    assert best([Trial(16, 50.0), Trial(32, 100.0), Trial(64, 104.0)]).batch_size == 32
