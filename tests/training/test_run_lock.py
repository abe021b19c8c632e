"""Two runs never write to one directory, and a run that was killed can go on at once."""

import errno
import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from tests.training.world import trainer
from vitrail import UserError
from vitrail.training.checkpoint import steps_in
from vitrail.training.run_lock import lock, sole_writer
from vitrail.training.world import World

# from Python 3.12 on, of a fork beside threads of torch
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def test_a_directory_that_a_run_writes_to_is_refused(tmp_path: Path) -> None:
    draft = tmp_path / "steps" / "step-000000005.tmp"
    draft.mkdir(parents=True)
    with (
        sole_writer(tmp_path, World()),
        pytest.raises(UserError, match="another run is writing to it: wait until"),
    ):
        trainer(tmp_path).run(resume=True)
    assert draft.exists()  # it is the other's
    assert trainer(tmp_path).run(resume=True).step == 12
    assert steps_in(tmp_path / "steps")
    assert not draft.exists()


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        lock(tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with sole_writer(tmp_path, World()):
        pass


def test_readers_that_outlive_a_run_do_not_hold_its_lock(tmp_path: Path) -> None:
    ready, told = os.pipe()
    run = os.fork()
    if not run:
        lock(tmp_path)
        reader = os.fork()
        if not reader:
            os.write(told, b".")
            time.sleep(60)
            os._exit(0)
        os.write(told, f" {reader}".encode())
        time.sleep(60)
    text = b""
    while not (b"." in text and b" " in text):
        text += os.read(ready, 20)
    with pytest.raises(BlockingIOError):
        lock(tmp_path)
    os.kill(run, signal.SIGKILL)
    os.waitpid(run, 0)
    try:
        with sole_writer(tmp_path, World()):
            pass
    finally:
        os.kill(int(text.replace(b".", b"")), signal.SIGKILL)
        os.close(ready)
        os.close(told)


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with sole_writer(tmp_path, World()), sole_writer(tmp_path, World()):
        pass
    with sole_writer(tmp_path / "missing", World()):
        pass
