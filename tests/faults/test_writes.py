"""A save that is killed, or whose disk fails, at any of its writes: there is always a checkpoint to
load, and nothing is left behind."""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.training.world import trainer
from vitrail import UserError
from vitrail.training import checkpoint
from vitrail.training.checkpoint import find_step
from vitrail.training.loop import Trainer
from vitrail.training.recipe import Monitor, Schedule
from vitrail.training.saver import Saver
from vitrail.weights import atomic
from vitrail.weights.native import read_native

# Everything that a save asks of a file system, and how it is called.
CALLS: tuple[tuple[Any, str], ...] = (
    (os, "write"), (os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir"),
    (Path, "write_text"), (atomic, "exchange"), (checkpoint, "exchange"),
)  # fmt: skip
FIRST, SECOND = 2, 4  # steps that are saved


class Layer:
    """Calls of the file system, of which the n-th fails or kills the process."""

    def __init__(self, at: int | None = None, how: int | None = None) -> None:
        self.at, self.how, self.count, self.names = at, how, 0, list[str]()

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            number, self.count = self.count, self.count + 1
            self.names.append(name)
            if number == self.at:
                if self.how is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                assert self.how is not None
                raise OSError(self.how, os.strerror(self.how))
            return call(*args, **kwargs)

        return called

    @contextmanager
    def on(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name in CALLS:
                stack.enter_context(
                    patch.object(owner, name, self.wrap(name, getattr(owner, name)))
                )
            yield


def run_to(out: Path, step: int) -> Trainer:
    monitor = Monitor(eval_every_epochs=100, save_every_steps=100, log_every_steps=100)
    run = trainer(out, schedule=Schedule(steps=step), monitor=monitor)
    run.run(resume=True)
    return run


def elsewhere(run: Trainer, out: Path) -> Trainer:
    """The same run in a copy of its directory."""
    shutil.copytree(run.out, out)
    run.saver = Saver(run.recipe, run.model, out, run.world)
    run.saver.step = FIRST
    return run


def save_again(run: Trainer, layer: Layer) -> str | None:
    """Save a later step under the layer; why it failed, if it did."""
    with layer.on():
        run.saver.save(SECOND, run.state, run.run_state)
        run.saver.wait()
    return run.saver.problem


def check(run: Trainer, out: Path, *, killed: bool) -> int:
    """The step of the checkpoint that can be loaded. Nothing is left half written: now, or after
    the next start of a run that was killed."""
    found = find_step(out / "steps")
    assert found is not None
    assert found.read().keys() == run.state.tensors().keys()
    read_native(out / "last")
    if killed:
        run.saver.sweep()
    left = [path for path in out.rglob("*") if "tmp" in path.name]
    assert not left, left
    return found.step


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["kill", "ENOSPC", "EIO"])
def test_a_save_that_fails_here_and_there(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part of the next test that `make test` has time for."""
    fail_at_calls(how, 23, tmp_path, capsys)


@pytest.mark.faults
@pytest.mark.parametrize("how", ["kill", "ENOSPC", "EIO"])
def test_a_save_that_fails_anywhere(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_at_calls(how, 1, tmp_path, capsys)


def fail_at_calls(how: str, every: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A save for each of `every` so many calls, the last of all too, which fails there."""
    run, counter, counts = run_to(tmp_path / "run", FIRST), Layer(), {FIRST: 0, SECOND: 0}
    assert save_again(elsewhere(run, tmp_path / "count"), counter) is None
    names = counter.names
    assert {"write", "fsync", "rename", "mkdir", "write_text"} <= set(names), names
    places = sorted({*range(0, len(names), every), len(names) - 1})
    for number in places:
        out = tmp_path / f"{how}-{number}"
        elsewhere(run, out)
        if how == "kill":
            assert in_child(run, Layer(number)) == -signal.SIGKILL
        else:
            problem = save_again(run, Layer(number, getattr(errno, how)))
            if problem is not None and how == "ENOSPC":
                assert "make room on the disk" in problem
                assert f"the checkpoint of step {FIRST} is intact" in problem
        counts[check(run, out, killed=how == "kill")] += 1
        shutil.rmtree(out)
    with capsys.disabled():
        print(
            f"\n{how} at {len(places)} of {len(names)} calls of a save: "
            f"{sum(counts.values())} loadable checkpoints ({counts[FIRST]} of the step before), "
            "nothing left behind"
        )
    assert counts[FIRST]
    assert counts[SECOND]  # what comes after the rename does not undo it


def in_child(run: Trainer, layer: Layer) -> int:
    """Save in a copy of this process, which has no other thread; how it ended."""
    pid = os.fork()
    if not pid:
        try:
            save_again(run, layer)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_full_disk_at_the_end_is_a_sentence(tmp_path: Path) -> None:
    run = run_to(tmp_path / "run", FIRST)
    full = OSError(errno.ENOSPC, "No space left on device")
    with patch.object(os, "fsync", side_effect=full):
        run.saver.save(SECOND, run.state, run.run_state)
        with pytest.raises(UserError, match=r"could not be saved .*No space left.*make room"):
            run.saver.finish_all(SECOND, run.state, run.run_state)
    assert check(run, tmp_path / "run", killed=False) == FIRST
