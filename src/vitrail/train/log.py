"""What a run tells: metrics as lines of JSON and TensorBoard events; a resumed run takes back what
came after."""

import json
from pathlib import Path
from typing import Any


class Log:
    """`metrics.jsonl` and TensorBoard events in the run's directory, both cut to `step` at the
    start."""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = out / "metrics.jsonl"
        keep = [line for line in self.read(out) if line["step"] <= step]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in keep), encoding="utf-8")
        # purge_step hides what an earlier, longer attempt wrote
        self.board = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, step: int, **values: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        for name, value in values.items():
            if isinstance(value, int | float):
                self.board.add_scalar(name, value, step)

    def close(self) -> None:
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
