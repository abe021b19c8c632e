"""Where a claim's runs are made and measured: nothing that is finished is done again.

OUT/plan.json             the settings of every run
OUT/runs/NAME             a run of `vitrail.train` or `vitrail.pretrain`
OUT/results/NAME.json     its test, as `vitrail.compare` writes it
OUT/measured/NAME.json    other measurements, with the seconds that they took
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError, writing
from vitrail.core.json_text import plain_values, to_json
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.models.model import Model
from vitrail.tasks.claims.claim import Pretraining, Setting, Stage
from vitrail.tasks.compare_plan import Cell, ComparePlan
from vitrail.tasks.compare_runs import (
    RUNS,
    CellResult,
    Place,
    StoppedError,
    choose_test,
    read_result,
    record_plan,
    run_cell,
)
from vitrail.tasks.figures import read_spread
from vitrail.tasks.pretrain import pretrain
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.threads import use_threads
from vitrail.weights.atomic import write_file
from vitrail.weights.load import load

MEASURED = "measured"


@dataclass
class Lab:
    """The runs of one claim, and what was measured of them."""

    setting: Setting
    place: Place = field(default_factory=Place)
    on_progress: OnProgress = silent
    results: list[CellResult] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # of pre-training and measurements

    @property
    def out(self) -> Path:
        return self.setting.out

    def run(self, stages: Sequence[Stage]) -> None:
        """Make the runs that are not finished, one after another."""
        for stage in stages:
            if isinstance(stage, ComparePlan):
                record_plan(stage, self.out)  # refuses other settings of a run that has begun
        steps = list(steps_of(stages))
        for number, (stage, cell) in enumerate(steps):
            self.on_progress("runs", number, len(steps))
            if isinstance(stage, Pretraining):
                self.pretrain(stage)
                continue
            assert cell is not None
            found = read_result(self.out, cell)
            if found is None:
                found = run_cell(stage, cell, self.out, self.place, self.on_progress)
            self.results.append(found)
        self.on_progress("runs", len(steps), len(steps))

    def pretrain(self, stage: Pretraining) -> None:
        """A run without labels; one that is finished comes back as it ended."""
        tokenizer = None if stage.tokenizer is None else self.checkpoint(stage.tokenizer)
        fields = {f"fields.{name}": value for name, value in stage.fields.items()}
        options = {f"goal.options.{name}": value for name, value in stage.options.items()}
        # a score at the end is enough, and validation images are few
        monitor = {"monitor.eval_every_epochs": 1e6, "monitor.patience": None}
        run = pretrain(
            self.setting.data,
            objective=stage.objective,
            model=stage.model,
            tokenizer=tokenizer,
            steps=stage.steps,
            batch_size=stage.batch_size,
            lr=stage.lr,
            val_share=self.setting.val_share,
            seed=stage.seed,
            set=fields | options | monitor,
            out=self.out / RUNS / stage.name,
            resume="auto",
            **asdict(self.place),
        )
        if run.stopped:
            raise StoppedError
        self.seconds[stage.name] = sum(line["seconds"] or 0.0 for line in run.metrics)

    def checkpoint(self, run: str) -> Path:
        """The last weights of a run."""
        return self.out / RUNS / run / "last"

    def load(self, run: str) -> Model:
        return load(self.checkpoint(run), device=self.place.device).eval()

    def cells(self, model: str, *, share: float = 1.0) -> list[CellResult]:
        """The runs of a model, seed by seed."""
        found = [one for one in self.results if (one.model, one.share) == (model, share)]
        return sorted(found, key=lambda one: one.seed)

    def right(self, model: str, *, share: float = 1.0) -> NDArray[np.bool_]:
        """(S, N): for each seed and test image, whether a model is right."""
        cells = self.cells(model, share=share)
        if len({one.test_digest for one in cells}) > 1:
            raise UserError(
                f"{self.out}: runs were tested on different images: the data has changed, use "
                "another out"
            )
        return np.stack([one.right for one in cells])

    def test_split(self) -> tuple[str, Source]:
        """The split that runs are tested on."""
        data, share = self.setting.data, self.setting.val_share
        parts = open_data(data) if share is None else open_data(data, val_share=share)
        return choose_test(parts, data)

    def images(self, model: Model, count: int | None = None) -> Tensor:
        """Images that are spread over the test split, prepared for a model."""
        source = self.test_split()[1]
        count = count or self.setting.scale.images
        return torch.stack(list(read_spread(source, model.passport.preprocessing, count, {})))

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """A measurement in plain values, made once and kept."""
        path = self.out / MEASURED / f"{name}.json"
        if path.exists():
            try:
                kept = json.loads(path.read_text(encoding="utf-8"))
                self.seconds[name] = kept["seconds"]
                return kept["values"]
            except (OSError, ValueError, KeyError, TypeError):
                raise UserError(f"{path}: cannot be read: remove it, and run again") from None
        self.on_progress(f"measuring {name}", 0, None)
        began = time.perf_counter()
        with use_threads(self.place.threads), torch.no_grad():
            values = plain_values(compute())
        self.seconds[name] = round(time.perf_counter() - began, 1)
        text = to_json({"seconds": self.seconds[name], "values": values}) + "\n"
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, lambda draft: _write(draft, text), overwrite=True)
        return values


def steps_of(stages: Sequence[Stage]) -> Iterator[tuple[Stage, Cell | None]]:
    """Every run of a claim: pre-training, or a cell of a comparison."""
    for stage in stages:
        if isinstance(stage, ComparePlan):
            yield from ((stage, cell) for cell in stage.cells)
        else:
            yield stage, None


def run_name(stage: Stage, cell: Cell | None) -> str:
    """The directory of a run."""
    if cell is not None:
        return cell.name
    assert isinstance(stage, Pretraining)
    return stage.name


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
