"""Trials before a run: the learning rate and the batch size that are found are usable ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.world import RECIPE, trainer
from vitrail import UserError
from vitrail.training.capacity import Trial, best, find_batch_size, time_steps
from vitrail.training.finder import HIGHEST, LOWEST, find_lr, steepest
from vitrail.training.recipe import Schedule
from vitrail.training.train_state import TrainState
from vitrail.training.world import World


@pytest.mark.slow
def test_the_rate_that_is_found_trains(tmp_path: Path) -> None:
    schedule = Schedule(steps=24, warmup=4)
    found = find_lr(trainer(tmp_path, schedule=schedule))
    assert LOWEST < found.lr < HIGHEST
    assert not list(tmp_path.iterdir())
    good, bad = (
        trainer(
            tmp_path / str(lr), optimiser=replace(RECIPE.optimiser, lr=lr), schedule=schedule
        ).run()
        for lr in (found.lr, LOWEST)
    )
    assert good.run_state.best is not None
    assert bad.run_state.best is not None
    assert good.run_state.best > bad.run_state.best


def test_the_steepest_fall_comes_before_the_lowest_loss() -> None:
    rates = [10.0**-k for k in (5, 4, 3, 2, 1, 0)]
    assert steepest(rates, [2.0, 2.0, 1.5, 0.7, 0.6, 9.0]) == 1e-2


def test_no_rate_where_nothing_is_finite(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(UserError, match="no learning rate was found"):
        find_lr(run)


def test_batch_sizes_grow_up_to_the_data(tmp_path: Path) -> None:
    objective = trainer(tmp_path).task.objective
    trials = find_batch_size(objective, RECIPE, images=100, world=World())
    assert [trial.batch_size for trial in trials] == [16, 32, 64]
    assert best(trials) in trials
    assert best([Trial(16, 50.0), Trial(32, 100.0), Trial(64, 104.0)]).batch_size == 32


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_a_trial_has_all_that_a_step_of_the_run_has(name: str, tmp_path: Path) -> None:
    """Its optimiser's state, its average, its parts and its precision are there when memory is
    measured."""
    recipe = replace(
        RECIPE,
        optimiser=replace(RECIPE.optimiser, name=name),  # type: ignore[arg-type]
        precision="bfloat16",
        accumulate=4,
    )
    run = trainer(tmp_path, optimiser=recipe.optimiser, accumulate=4)
    seen = list[tuple[int, bool]]()
    forward = run.task.objective.forward

    def forward_and_note(images: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        seen.append((len(images), torch.is_autocast_enabled("cpu")))
        return forward(images, targets)

    run.task.objective.forward = forward_and_note  # type: ignore[method-assign]
    state = TrainState(run.task.objective, recipe, torch.device("cpu"))
    weights = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    assert time_steps(state, recipe, 16, torch.device("cpu")) > 0
    assert set(seen) == {(4, True)}
    kept = sum(len(optimiser.state) for optimiser in state.optimisers)
    assert kept == len(weights)
    assert any(not torch.equal(p, weights[name]) for name, p in run.model.named_parameters())
    assert state.ema is not None
    averaged = state.ema.state
    assert any(not torch.equal(averaged[f"model.{name}"], p) for name, p in weights.items())
