"""What a run tells: metrics as lines of JSON and TensorBoard events; a resumed run takes back what
came after.

Every line has `step`, `loss`, `grad_norm`, `data_seconds`, `seconds` and `lr`, and `train_accuracy`
where there are labels: means over the steps since the line before, seconds spent waiting for images
and on these steps in all, and the learning rate of the last step. A line of an evaluation has its
scores and `val_loss` too. What is not finite is null.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Log:
    """`metrics.jsonl` and TensorBoard events in the run's directory, both cut to `step` at the
    start."""

    def __init__(self, out: Path, step: int) -> None:
        self.out, self.path = out, out / "metrics.jsonl"
        self.board: SummaryWriter | None = None
        self.cut(step)

    def cut(self, step: int) -> None:
        """Forget what came after `step`."""
        from torch.utils.tensorboard import SummaryWriter

        self.close()
        keep = [line for line in self.read(self.out) if line["step"] <= step]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in keep), encoding="utf-8")
        # purge_step hides what an earlier, longer attempt wrote
        purge = step + 1 if step else None
        self.board = SummaryWriter(str(self.out / "tensorboard"), purge_step=purge)

    def write(self, step: int, **values: float) -> None:
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **known}, allow_nan=False) + "\n")
        for name, value in known.items():
            if value is not None and self.board is not None:
                self.board.add_scalar(name, value, step)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()

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
