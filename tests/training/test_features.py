"""Progressive resizing and the end of mixing: what a run does at which step, resumed or not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_resume import Death, die_at, fingerprint
from tests.training.world import RECIPE, Stripes, accuracy, trainer
from vitrail import UserError, create, save
from vitrail.data.augment import Augmentation
from vitrail.data.source import Splits
from vitrail.training.estimate import estimate_seconds, steps_within, time_step
from vitrail.training.prepare import prepare_task
from vitrail.training.progressive import resize_positions_to_images
from vitrail.training.recipe import Schedule
from vitrail.weights.load import load

GROWING = replace(RECIPE.augmentation, progressive=(4,), mix_off_epochs=1.0)
PLAIN = {"image_size": 32, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2, "num_classes": 3}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("positions", ["learned", "sincos2d", "learned2d", "none"])
def test_smaller_images_have_the_positions_of_a_resized_model(
    positions: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    changes: dict[str, Any] = {"positions": positions, "class_token": positions == "learned"}
    changes["pool"] = "cls" if positions == "learned" else "mean"
    model = create("vit_ti_16", **PLAIN, **changes).eval()
    save(model, tmp_path / "model")
    small = load(tmp_path / "model", image_size=16).eval()
    whole, part = torch.randn(2, 3, 32, 32), torch.randn(2, 3, 16, 16)
    known = model(whole)
    resize_positions_to_images(model)  # type: ignore[arg-type]
    assert torch.equal(model(whole), known)
    assert (model(part) - small(part)).abs().max() < 1e-6
    assert torch.equal(model(whole), known)
    if positions == "learned":
        model.encode(part)[..., 0].sum().backward()
        assert model.positions.table.grad.abs().sum() > 0  # type: ignore[union-attr, operator]


@pytest.mark.slow
def test_sizes_grow_mixing_ends_and_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    straight = trainer(tmp_path / "straight", augmentation=GROWING)
    sides, mixed = list[int](), list[bool]()
    train_step = straight.train_step

    def note(batch: Any, lr: float | None = None) -> None:
        sides.append(batch.images.shape[2])
        mixed.append(bool(straight.mixing().mixup))
        train_step(batch, lr)

    straight.train_step = note  # type: ignore[method-assign]
    straight.run()
    per_epoch = straight.stream.steps
    assert straight.total == 12 == 2 * per_epoch
    assert sides == [4] * per_epoch + [8] * per_epoch
    assert mixed == [True] * (12 - per_epoch) + [False] * per_epoch
    for death in (2, 7):
        killed = trainer(tmp_path / "resumed", augmentation=GROWING)
        die_at(death, killed)
        with pytest.raises(Death):
            killed.run(resume=True)
    trainer(tmp_path / "resumed", augmentation=GROWING).run(resume=True)
    assert fingerprint(tmp_path / "straight") == fingerprint(tmp_path / "resumed")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"augmentation": Augmentation(progressive=(8,))}, "stay below the model's 8x8"),
        ({"augmentation": Augmentation(progressive=(6,))}, "multiples of the patch size 4"),
        ({"augmentation": Augmentation(progressive=(4,)), "compile": True}, "compile must be off"),
    ],
)
def test_what_cannot_grow_is_refused(changes: dict[str, Any], reason: str) -> None:
    splits = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
    with pytest.raises(UserError, match=reason):
        prepare_task(replace(RECIPE, **changes), splits, accuracy)


def test_a_budget_is_steps_of_the_measured_length(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", schedule=Schedule(steps=40, warmup=4))
    steps, seconds = steps_within(run, minutes=0.05)
    per_evaluation = seconds / 3 * 40 / 16
    evaluations = max(steps / (0.5 * run.stream.steps), 1)
    assert steps >= 1
    assert steps * seconds + evaluations * per_evaluation <= 0.05 * 60
    again = trainer(tmp_path / "again", schedule=Schedule(steps=40, warmup=4))
    with pytest.raises(UserError, match="minutes must be at least"):
        steps_within(again, minutes=1e-9)


class Clock:
    """Time that passes as a test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_budget_counts_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    run = trainer(tmp_path, augmentation=GROWING, schedule=Schedule(steps=60))

    def train_step(batch: Any, lr: float | None = None) -> None:
        clock.now += {4: 1.0, 8: 4.0}[batch.images.shape[2]]

    run.train_step = train_step  # type: ignore[method-assign]
    monkeypatch.setattr("vitrail.training.estimate.time.perf_counter", clock)
    steps, seconds = steps_within(run, minutes=10)
    assert seconds == pytest.approx(2.5)  # half of the run has each size
    evaluation = 4.0 / 3 * 40 / 16  # at the model's own size
    evaluations = steps / (0.5 * run.stream.steps)
    assert steps * 2.5 + evaluations * evaluation == pytest.approx(0.95 * 600, rel=0.01)
    once = 60 * 2.5 + 60 / (0.5 * run.stream.steps) * evaluation
    assert estimate_seconds(run) == pytest.approx(once)


def test_the_clock_waits_for_a_device_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, queue = Clock(), list[float]()
    run = trainer(tmp_path, schedule=Schedule(steps=60))

    def train_step(batch: Any, lr: float | None = None) -> None:
        queue.append(9.0 if not queue and not clock.now else 0.5)

    def read_losses() -> bool:
        clock.now += sum(queue)
        queue.clear()
        return True

    monkeypatch.setattr(run, "train_step", train_step)
    monkeypatch.setattr(run, "read_losses", read_losses)
    monkeypatch.setattr("vitrail.training.estimate.time.perf_counter", clock)
    assert time_step(run, seconds=100) == pytest.approx(0.5)
