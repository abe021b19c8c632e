"""One of several processes fails, dies or is interrupted: one sentence, and nothing is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitrail import UserError
from vitrail.training.checkpoint import newest_step, steps_in
from vitrail.training.launcher import launch

COMMAND = (
    "train", "digits", "--processes", "2", "--resume", "auto", "--steps", "100000",
    "--batch-size", "16", "--set", "monitor.save_every_steps=5",
    "--set", "monitor.eval_every_epochs=1000", "--set", "fields.dim=16", "--set", "fields.depth=1",
    "--set", "fields.heads=2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("which", "how", "sentence"),
    [
        ("1", "death", "^process 1 was ended by SIGKILL"),
        # without a process: tests/training/together.py has mistakes of one that all tell
        pytest.param("all", "mistake", "^lr must be", marks=pytest.mark.slow),
        pytest.param("1", "mistake", "^lr must be", marks=pytest.mark.slow),
    ],
)
def test_what_happens_to_one_or_all_reaches_the_person_once(
    which: str, how: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A mistake that all of them make, from the command line, is in tests/cli/test_training.py."""
    with pytest.raises(UserError, match=sentence):
        launch("tests.training.mistake", [which, how], processes=2)
    assert "Traceback" not in capfd.readouterr().err


def test_a_mistake_is_no_abort_of_a_thread_that_outlives_it() -> None:
    """torch's threads may abort while the interpreter takes itself down: the launcher would then
    report SIGABRT in place of the sentence."""
    program = (
        "import atexit, os; from vitrail import UserError\n"
        "from vitrail.training.launcher import report_errors\n"
        "atexit.register(os.abort)\n"
        "with report_errors(): raise UserError('lr must be above 0')"
    )
    launched = os.environ | {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    done = subprocess.run([sys.executable, "-c", program], env=launched, check=False)
    assert done.returncode == 2


@pytest.mark.slow
def test_killed_and_interrupted_runs_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, printed = after_some_steps(out, lambda run: os.kill(children(run)[1], signal.SIGKILL))
    assert code == 2, printed
    assert "was ended by SIGKILL" in printed
    assert "Traceback" not in printed
    before = newest_step(out / "steps")
    assert before is not None

    code, printed = after_some_steps(out, lambda run: os.killpg(run.pid, signal.SIGINT))
    assert code == 130, printed
    assert "Traceback" not in printed
    assert "death signal" not in printed  # torchrun's own words
    after = newest_step(out / "steps")
    assert after is not None
    assert after.step > before.step
    assert f"saved at step {after.step}" in " ".join(printed.split())

    # as Slurm sends it to the process that it has started: the launcher
    left = list[int]()

    def ask_to_requeue(run: subprocess.Popen[bytes]) -> None:
        left.extend(children(run))
        os.kill(run.pid, signal.SIGUSR1)

    code, printed = after_some_steps(out, ask_to_requeue)
    assert code == 75, printed
    assert "Traceback" not in printed
    last = newest_step(out / "steps")
    assert last is not None
    assert last.step > after.step
    assert not [child for child in left if Path(f"/proc/{child}").exists()]


def after_some_steps(out: Path, strike: object) -> tuple[int, str]:
    """The exit code of a run that something happened to once it had saved, and what it printed."""
    log, began = out.with_suffix(".log"), last_step(out)
    with log.open("w") as file:
        command = [sys.executable, "-m", "vitrail.cli.app", *COMMAND, "--out", str(out)]
        run = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while last_step(out) <= began and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run.poll() is None, log.read_text()
        strike(run)  # type: ignore[operator]
        return run.wait(timeout=200), log.read_text()
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def children(run: subprocess.Popen[bytes]) -> list[int]:
    words = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    return [int(word) for word in words]


def last_step(out: Path) -> int:
    steps = steps_in(out / "steps")
    return int(steps[-1].name.removeprefix("step-")) if steps else 0
