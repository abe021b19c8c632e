"""When a run is saved, by the clock, and that a checkpoint is of its step although training goes
on."""

import errno
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.test_statistics import KINDS, augmentation_of
from tests.training.world import trainer
from vitrail import UserError
from vitrail.training import saver
from vitrail.training.loop import Trainer
from vitrail.training.progress import Progress
from vitrail.training.recipe import Monitor, Schedule
from vitrail.training.saver import Pending
from vitrail.training.shards import Shards
from vitrail.training.world import World


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-3
        return self.now


STEPS = 60
EVERY_TWO = [*range(3, STEPS, 2), STEPS]  # a step takes 50 s, and a minute must have passed


def saves_of(run: Trainer, clock: Clock, monkeypatch: pytest.MonkeyPatch, write: Any) -> list[int]:
    """At which steps a run by the clock is saved; `write` takes the place of writing files."""
    saves = list[int]()

    def note(*_: object) -> None:
        saves.append(run.step)
        write()

    def pass_time(_: Progress) -> None:
        pending = run.saver._pending
        while pending is not None and pending.ended is None:
            time.sleep(1e-3)
        clock.now += 50

    monkeypatch.setattr("vitrail.training.loop.time", clock)
    monkeypatch.setattr("vitrail.training.saver.time", clock)
    monkeypatch.setattr("vitrail.training.saver.write_alone", note)
    run.saver.saved_at = clock.now
    run.on_step = pass_time
    with suppress(UserError):
        run.run()
    return saves


def run_by_the_clock(out: Path) -> Trainer:
    return trainer(out, schedule=Schedule(steps=STEPS), monitor=Monitor(eval_every_epochs=100))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.5, EVERY_TWO), (99.0, [3, 21, 39, 57, STEPS])],  # a tenth of the time at most
)
def test_a_run_is_saved_every_minute_or_less_often_where_that_is_slow(
    seconds: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, run = Clock(), run_by_the_clock(tmp_path)

    def write_slowly() -> None:
        clock.now += seconds

    assert saves_of(run, clock, monkeypatch, write_slowly) == expected


def test_a_save_that_fails_is_not_tried_again_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saves = saves_of(run_by_the_clock(tmp_path), Clock(), monkeypatch, fill_the_disk)
    assert saves == [*EVERY_TWO, STEPS]  # and once more at the end


def test_a_save_that_takes_long_is_not_waited_for(tmp_path: Path) -> None:
    run = run_by_the_clock(tmp_path)
    run.saver.saved_at -= 1000
    assert run.saver.is_due(1)
    done = Future[None]()
    run.saver._pending = Pending(1, None, run.saver.saved_at, lambda: None, done)
    assert not run.saver.is_due(2)
    done.set_result(None)
    assert not run.saver.is_due(3)  # it took 1000 s: not before 10,000 have passed
    run.saver.saved_at -= 10_000
    assert run.saver.is_due(4)


def test_a_gpu_has_finished_what_is_copied_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not run on a GPU: the order of calls is what can be seen here."""
    pytest.importorskip("torch.distributed.checkpoint")
    from vitrail.training import sharded_files

    calls = list[str]()
    stream = SimpleNamespace(synchronize=lambda: calls.append("wait for the optimiser"))
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: stream)
    monkeypatch.setattr(sharded_files, "make_stager", lambda device: object())
    monkeypatch.setattr(sharded_files, "save_async", lambda *_: calls.append("copy"))
    gpu = torch.device("cuda", 0)
    save = trainer(tmp_path).saver
    save.world = World(size=2, device=gpu, saving=object())  # type: ignore[arg-type]
    save.start_together(tmp_path / "draft", {}, None)
    assert calls == ["wait for the optimiser", "copy"]


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
