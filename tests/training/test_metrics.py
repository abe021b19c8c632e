"""What a run logs of itself, and what it does when its numbers go wrong."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.training.world import RECIPE, Stripes, accuracy, trainer
from vitrail import UserError
from vitrail.data.augment import NOTHING
from vitrail.data.loader import Batch, EvalLoader
from vitrail.data.source import Splits
from vitrail.evaluation.classify import score
from vitrail.objectives.supervised import Distilled, Supervised
from vitrail.training.goal import Distil, Labels
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Monitor, Schedule
from vitrail.training.validate import compute_outputs


def strict_lines(out: Path) -> list[dict[str, Any]]:
    """Every line as a strict parser of JSON reads it, which knows no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def record(run: Trainer) -> list[float]:
    losses, take = list[float](), run.train_step

    def take_and_note(batch: Batch) -> None:
        take(batch)
        losses.append(run.last_loss)

    run.train_step = take_and_note  # type: ignore[method-assign, assignment]
    return losses


def test_a_line_has_the_means_of_its_steps(tmp_path: Path) -> None:
    run = trainer(
        tmp_path,
        schedule=Schedule(steps=12),
        monitor=Monitor(eval_every_epochs=1.0, log_every_steps=4),
    )
    losses = record(run)
    run.run()
    lines = strict_lines(tmp_path)
    assert [line["step"] for line in lines] == [4, 6, 8, 12]  # an epoch has 6 steps
    before = 0
    for line in lines:
        assert line["loss"] == pytest.approx(np.mean(losses[before : line["step"]]))
        assert line["grad_norm"] > 0
        assert 0 < line["data_seconds"] < line["seconds"]
        assert 0 <= line["train_accuracy"] <= 1
        assert ("val_loss" in line) == ("accuracy" in line) == (line["step"] in (6, 12))
        before = line["step"]


def test_training_accuracy_and_validation_loss_are_those_of_the_model(tmp_path: Path) -> None:
    """Without dropout, augmentation and average a step at rate 0 is an evaluation."""
    fields = {**RECIPE.fields, "dropout": 0.0, "drop_path": 0.0}
    run = trainer(
        tmp_path, fields=fields, augmentation=NOTHING, ema_decay=None, batch_size=100,
        schedule=Schedule(steps=1, warmup=10**9),
    )  # fmt: skip
    torch.nn.init.normal_(run.model.get_parameter("head.classes.weight"))
    run.run()
    (line,) = strict_lines(tmp_path)
    objective = run.task.objective.eval()

    def answers(source: Stripes) -> Any:
        batches = EvalLoader(source, run.stream.how, 64)
        return compute_outputs(objective, batches, run.world, classes=len(source.labels), seed=0)

    seen, val = answers(run.task.train), answers(run.task.val)  # type: ignore[arg-type]
    right = (seen.logits.argmax(1) == seen.targets.argmax(1)).mean()
    assert line["train_accuracy"] == pytest.approx(right)
    loss = F.cross_entropy(torch.from_numpy(val.logits), torch.from_numpy(val.targets))
    assert line["val_loss"] == pytest.approx(float(loss), rel=1e-4)


def spoil(run: Trainer, when: Any) -> None:
    """Make the loss NaN in some steps."""
    forward = run.task.objective.forward

    def forward_and_spoil(images: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        losses = forward(images, targets)
        factor = float("nan") if when(run.step) else 1.0
        return {**losses, "loss": losses["loss"] * factor}

    run.task.objective.forward = forward_and_spoil  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("policy", ["skip", "back"])
def test_steps_that_are_not_finite_leave_valid_metrics(
    policy: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.training.loop.check_precision", lambda *_: None)
    monitor = Monitor(eval_every_epochs=0.5, save_every_steps=5, log_every_steps=1, nan=policy)  # type: ignore[arg-type]
    run = trainer(tmp_path, monitor=monitor, precision=precision, schedule=Schedule(steps=18))
    spoil(run, lambda step: step in (7, 8, 13))
    outcome = run.run()
    assert outcome.run_state.skip == [7, 8, 13]
    lines = strict_lines(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 19))  # each once, going back or not
    assert [line["step"] - 1 for line in lines if line["loss"] is None] == [7, 8, 13]
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["skip", "back"])
def test_a_run_whose_loss_stays_bad_gives_up(policy: str, tmp_path: Path) -> None:
    monitor = Monitor(eval_every_epochs=0.5, save_every_steps=5, nan=policy, nan_limit=4)  # type: ignore[arg-type]
    run = trainer(tmp_path, monitor=monitor, schedule=Schedule(steps=2000))
    spoil(run, lambda step: step >= 7)
    with pytest.raises(
        UserError, match=r"more than 4 of the steps from .* to 11 .*monitor.nan_limit"
    ):
        run.run()
    strict_lines(tmp_path)


def test_a_score_that_is_not_finite_is_never_the_best(tmp_path: Path) -> None:
    values = iter([math.nan, 0.4, math.nan, 0.7])

    def judge(answers: Any, targets: Any) -> tuple[str, dict[str, float]]:
        _, scores = accuracy(answers, targets)
        return "val_loss", {**scores, "val_loss": next(values)}

    splits = Splits({"train": Stripes(96), "val": Stripes(40, seed=1)})
    task = prepare_task(replace(RECIPE, schedule=Schedule(steps=12)), splits, judge)
    task.objective.val_losses = lambda *_: None  # type: ignore[method-assign]
    outcome = Trainer(task, tmp_path).run()
    assert (outcome.run_state.best, outcome.run_state.best_step) == (0.4, 6)
    assert outcome.run_state.since_best == 2
    strict_lines(tmp_path)
    assert (tmp_path / "best").is_dir()


def test_a_run_without_any_finite_score_keeps_its_weights(tmp_path: Path) -> None:
    def judge(answers: Any, targets: Any) -> tuple[str, dict[str, float]]:
        return "val_loss", {"val_loss": math.nan}

    splits = Splits({"train": Stripes(96), "val": Stripes(40, seed=1)})
    task = prepare_task(replace(RECIPE, schedule=Schedule(steps=12)), splits, judge)
    task.objective.val_losses = lambda *_: None  # type: ignore[method-assign]
    outcome = Trainer(task, tmp_path).run()
    assert outcome.run_state.best is None
    assert outcome.run_state.since_best == 4
    assert (tmp_path / "best").is_dir()


def test_a_teacher_leaves_the_rest_of_the_goal_as_it_is(tmp_path: Path) -> None:
    trainer(tmp_path / "teacher", schedule=Schedule(steps=2)).run()
    splits = Splits({"train": Stripes(96), "val": Stripes(40, seed=1)})
    goal = Distil(
        loss="sigmoid", class_weights="balanced", teacher=str(tmp_path / "teacher" / "last")
    )
    plain, taught = (
        prepare_task(replace(RECIPE, goal=one), splits, accuracy).objective
        for one in (Labels(loss="sigmoid", class_weights="balanced"), goal)
    )
    assert isinstance(plain, Supervised)
    assert isinstance(taught, Distilled)
    logits, targets = torch.randn(4, 2), F.one_hot(torch.tensor([0, 1, 1, 0]), 2).float()
    torch.testing.assert_close(taught.cost(logits, targets), plain.cost(logits, targets))


def test_several_labels_are_scored_whatever_the_logits_are() -> None:
    """A run whose weights became NaN says so; it does not fail in scikit-learn."""
    targets = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    logits = np.where(targets > 0, 5.0, -5.0).astype(np.float32)
    best = score(logits, targets, multi_label=True).best
    spoilt = logits.copy()
    spoilt[0], spoilt[1, 1] = np.nan, np.inf
    assert score(spoilt, targets, multi_label=True).best < best == 1
