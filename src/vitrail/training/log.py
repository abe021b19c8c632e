"""What a run tells: metrics as lines of JSON, and to loggers; a resumed run takes back what came
after.

Every line has `step`, `loss`, `grad_norm`, `data_seconds`, `seconds` and `lr`, and `train_accuracy`
where there are labels: means over the steps since the line before, seconds spent waiting for images
and on these steps in all, and the learning rate of the last step. A line of an evaluation has its
scores and `val_loss` too. What is not finite is null.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.training.loggers import LoggerName, open_loggers


class Log:
    """`metrics.jsonl` and loggers of the run's directory, cut to `step` at the start. `problems`
    are sentences about what could not be written, until they are taken: no metrics end a run."""

    def __init__(
        self,
        out: Path,
        step: int,
        loggers: tuple[LoggerName, ...] = ("tensorboard",),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.out, self.path = out, out / "metrics.jsonl"
        self.problems: list[str] = []
        self.unwritten: list[tuple[int, str]] = []  # lines with their steps
        self.loggers = open_loggers(loggers, out, settings or {}, self.problems.append)
        self.cut(step)

    def cut(self, step: int) -> None:
        """Forget what came after `step`. The file is shortened where it is, which takes no room on
        the disk, and no moment at which the lines that stay are not there."""
        self.unwritten = [line for line in self.unwritten if line[0] <= step]
        try:
            with self.path.open("ab"):
                os.truncate(self.path, end_of_step(self.path.read_bytes(), step))
        except OSError as error:
            self.note_problem(error)
        for logger in self.loggers:
            logger.start(step)

    def write(self, step: int, **values: float) -> None:
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = json.dumps({"step": step, **known}, allow_nan=False)
        self.unwritten.append((step, line))
        self.write_lines()
        finite = {name: value for name, value in known.items() if value is not None}
        for logger in self.loggers:
            logger.write(step, finite)

    def write_lines(self) -> None:
        """All lines that are not written yet. Where that fails, the disk is full perhaps, they wait
        for the next one, and half of a line is taken back."""
        left = memoryview("".join(f"{line}\n" for _, line in self.unwritten).encode())
        try:
            with self.path.open("ab", buffering=0) as file:
                size = file.tell()
                try:
                    while left:
                        left = left[file.write(left) :]
                except OSError:
                    file.truncate(size)
                    raise
            self.unwritten.clear()
        except OSError as error:
            if len(self.unwritten) == 1:  # once, not with every line
                self.note_problem(error)

    def note_problem(self, error: OSError) -> None:
        self.problems.append(
            f"{self.path}: cannot be written: {error.strerror or error}; lines are kept until they "
            "can be"
        )

    def take_problems(self) -> tuple[str, ...]:
        taken = tuple(self.problems)
        self.problems.clear()
        return taken

    def close(self) -> None:
        if self.unwritten:
            self.write_lines()
        for logger in self.loggers:
            logger.close()

    @staticmethod
    def read(out: Path) -> list[dict[str, Any]]:
        path = out / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        values = []
        for line in lines:
            try:
                values.append(json.loads(line))
            except ValueError:
                break  # the process was killed while it wrote this line
        return values


def end_of_step(content: bytes, step: int) -> int:
    r"""Where the lines up to `step` end. What a process that was killed left of a line ends them.

    >>> end_of_step(b'{"step": 1}\n{"step": 2}\n{"st', 1)
    12
    """
    end = 0
    for line in content.splitlines(keepends=True):
        try:
            if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                break
        except ValueError:
            break
        end += len(line)
    return end
