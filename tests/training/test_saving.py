"""When a run is saved, by the clock, and that a checkpoint is of its step although training goes
on."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_statistics import KINDS, augmentation_of
from tests.training.world import trainer
from vitrail.training import saver
from vitrail.training.progress import Progress
from vitrail.training.recipe import Monitor, Schedule
from vitrail.training.saver import MAX_TIME_SAVING
from vitrail.training.shards import Shards


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-3
        return self.now


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 100.0])
def test_saving_takes_a_small_share_of_the_time(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, saves = Clock(), list[int]()
    monkeypatch.setattr("vitrail.training.loop.time", clock)
    monkeypatch.setattr("vitrail.training.saver.time", clock)
    run = trainer(tmp_path, schedule=Schedule(steps=60), monitor=Monitor(eval_every_epochs=100))

    def slow_write(*_: object, **__: object) -> None:
        saves.append(run.step)
        clock.now += seconds

    def pass_time(_: Progress) -> None:
        clock.now += 50

    monkeypatch.setattr("vitrail.training.saver.write_alone", slow_write)
    run.on_step = pass_time
    run.run()
    assert 2 < len(saves) < 32
    by_clock = len(saves) - 2  # the first shows how long one takes, the last ends the run
    assert by_clock * seconds <= MAX_TIME_SAVING * clock.now


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit_ti_16", "resnet18"])  # with statistics that forward changes
def test_weights_wait_until_they_are_copied(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step is saved; copies that take their time are of that step all the same."""
    changes: dict[str, Any] = {
        "schedule": Schedule(steps=6, warmup=1),
        "monitor": Monitor(eval_every_epochs=0.4, save_every_steps=1, keep=10),
    }
    if model == "resnet18":
        changes |= {"model": model, "fields": KINDS[model], "augmentation": augmentation_of(model)}
    trainer(tmp_path / "whole", **changes).run()
    copy, busy = saver.copy_tensors, list[bool]()

    def slow_copy(*args: Any) -> Any:
        time.sleep(0.1)
        return copy(*args)

    monkeypatch.setattr(saver, "copy_tensors", slow_copy)
    run = trainer(tmp_path / "slow", **changes)
    backward = run.backward

    def note_copying(*args: Any) -> Any:
        pending = run.saver._pending
        busy.append(pending is not None and not pending.done.done())
        return backward(*args)

    run.backward = note_copying  # type: ignore[method-assign, assignment]
    run.run()
    assert sum(busy) >= 3  # gradients were computed meanwhile
    for step in range(1, 7):
        whole, slow = (
            Shards(tmp_path / name / "steps" / f"step-{step:09d}").read_all()
            for name in ("whole", "slow")
        )
        assert all(whole[name].equal(tensor) for name, tensor in slow.items())
