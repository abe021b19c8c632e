"""When a run is saved, by the clock."""

from pathlib import Path

import pytest

from tests.training.world import trainer
from vitrail.training.progress import Progress
from vitrail.training.recipe import Monitor, Schedule
from vitrail.training.saver import MAX_TIME_SAVING


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-3
        return self.now


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
