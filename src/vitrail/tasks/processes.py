"""A run in several processes of this machine: torchrun starts them, and the main one reports to the
calling process through a pipe.

    python -m vitrail.tasks.processes OPTIONS PIPE
"""

from __future__ import annotations

import json
import os
import select
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrail.core.json_text import to_json
from vitrail.core.records import validate
from vitrail.tasks.run import Run, run_of
from vitrail.tasks.run_options import Observer, RunOptions
from vitrail.training.launcher import exit_now, launch
from vitrail.training.progress import Progress

SECONDS_TO_WAIT = 0.1  # for the next line, before looking whether there can be one


def launch_run(options: RunOptions, observer: Observer) -> Run:
    """Start the processes, pass on how they get on, and give the run that the main one reports."""
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        pipe = Path(folder) / "progress"
        os.mkfifo(pipe, mode=0o600)
        listener = Listener(observer)
        try:
            with listener.reading(pipe):
                arguments = [json.dumps(asdict(options)), str(pipe)]
                launch("vitrail.tasks.processes", arguments, options.processes)
        except KeyboardInterrupt:
            if listener.facts is None:  # nothing was saved
                raise
    if listener.error is not None:
        raise listener.error
    assert listener.facts is not None, "the main process ended without a report"
    was_finished = listener.facts.pop("was_finished")
    return run_of(listener.facts, Path(listener.facts["out"]), was_finished=was_finished)


class Listener:
    """Reads what the main process writes to a pipe, a JSON object a line, in a thread."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.facts: dict[str, Any] | None = None
        self.error: Exception | None = None  # of the observer, raised when the run is over
        self.closing = threading.Event()

    @contextmanager
    def reading(self, pipe: Path) -> Iterator[None]:
        source = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # before anybody writes to it
        thread = threading.Thread(target=self.read, args=(source,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.closing.set()
            thread.join()
            os.close(source)

    def read(self, source: int) -> None:
        rest = b""
        while True:
            last = self.closing.is_set()  # what was written before is read all the same
            select.select([source], [], [], 0 if last else SECONDS_TO_WAIT)
            with suppress(BlockingIOError):
                while found := os.read(source, 1 << 16):
                    *lines, rest = (rest + found).split(b"\n")
                    for line in lines:
                        self.receive(json.loads(line))
            if last:
                return
            self.closing.wait(SECONDS_TO_WAIT / 10)  # a pipe without a writer is always readable

    def receive(self, message: dict[str, Any]) -> None:
        if "run" in message:
            self.facts = message["run"]
            return
        if self.error is not None:
            return
        try:
            if "step" in message:
                now = message["step"]
                now["loss"] = float("nan") if now["loss"] is None else now["loss"]
                self.observer.show_step(Progress(**{**now, "messages": tuple(now["messages"])}))
            else:
                self.observer.on_progress(*message["progress"])
        except Exception as error:
            self.error = error


class Reporter:
    """Writes to the pipe that a `Listener` reads; nothing where nobody listens any more."""

    def __init__(self, pipe: str) -> None:
        self.target = os.open(pipe, os.O_WRONLY)

    def send(self, **message: Any) -> None:
        left = (to_json(message) + "\n").encode()
        with suppress(BrokenPipeError):
            while left:
                left = left[os.write(self.target, left) :]

    def observer(self) -> Observer:
        return Observer(
            lambda now: self.send(step=asdict(now)),
            lambda *done: None if done[0] == "training" else self.send(progress=done),
        )


def main() -> None:
    """One of the processes that `launch_run` started."""
    from vitrail.tasks.training_run import start_run

    options = validate(RunOptions, json.loads(sys.argv[1]), where="options")
    reporter = Reporter(sys.argv[2])
    try:
        run = start_run(options, reporter.observer())
    except KeyboardInterrupt:
        exit_now(130)
    if os.environ["RANK"] == "0":
        reporter.send(run={**run.facts(), "was_finished": run.was_finished})


if __name__ == "__main__":
    main()
    exit_now(0)
