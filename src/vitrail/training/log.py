"""What a run tells: metrics as lines of JSON, and to loggers; a resumed run takes back what came
after.

Every line has `step`, `loss`, `grad_norm`, `data_seconds`, `seconds` and `lr`, and `train_accuracy`
where there are labels: means over the steps since the line before, seconds spent waiting for images
and on these steps in all, and the learning rate of the last step. A line of an evaluation has its
scores and `val_loss` too. What is not finite is null.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.training.loggers import LoggerName, open_loggers


class Log:
    """`metrics.jsonl` and loggers of the run's directory, cut to `step` at the start. `problems`
    are sentences about loggers that failed, until they are taken."""

    def __init__(
        self,
        out: Path,
        step: int,
        loggers: tuple[LoggerName, ...] = ("tensorboard",),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.out, self.path = out, out / "metrics.jsonl"
        self.problems: list[str] = []
        self.loggers = open_loggers(loggers, out, settings or {}, self.problems.append)
        self.cut(step)

    def cut(self, step: int) -> None:
        """Forget what came after `step`."""
        keep = [line for line in self.read(self.out) if line["step"] <= step]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in keep), encoding="utf-8")
        for logger in self.loggers:
            logger.start(step)

    def write(self, step: int, **values: float) -> None:
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **known}, allow_nan=False) + "\n")
        finite = {name: value for name, value in known.items() if value is not None}
        for logger in self.loggers:
            logger.write(step, finite)

    def take_problems(self) -> tuple[str, ...]:
        taken = tuple(self.problems)
        self.problems.clear()
        return taken

    def close(self) -> None:
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
