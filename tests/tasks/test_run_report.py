"""What the report of a run is computed with."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.world import Stripes
from vitrail.data.source import Splits
from vitrail.tasks import run_report
from vitrail.tasks.run_report import EndedRun
from vitrail.training.recipe import Recipe


def test_outputs_are_computed_where_the_run_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[Any, ...]]()

    def load(path: Path, device: Any = None) -> Any:
        return path.name, device

    def compute_outputs(model: Any, source: Any, **options: Any) -> Any:
        seen.append((*model, len(source), options.get("workers"), options.get("split", "test")))
        return SimpleNamespace(broken={})

    monkeypatch.setattr(run_report, "load", load)
    monkeypatch.setattr(run_report, "compute_outputs", compute_outputs)
    monkeypatch.setattr(run_report, "score_split", lambda outputs: None)
    monkeypatch.setattr(run_report, "replace", lambda record, **_: record)
    recipe = Recipe(data="stripes", workers=3)
    gpu = torch.device("meta")  # stands for one
    ended = EndedRun(
        task=SimpleNamespace(recipe=recipe, objective=SimpleNamespace(native=None)),  # type: ignore[arg-type]
        splits=Splits({name: Stripes(n) for name, n in (("train", 9), ("val", 5), ("test", 7))}),
        out=tmp_path,
        outcome=SimpleNamespace(outputs=None, stopped=False, run_state=SimpleNamespace(broken={})),  # type: ignore[arg-type]
        seconds=1.0,
        device=gpu,
    )
    run_report.best_outputs(ended)
    run_report.evaluate_test(ended, "val", lambda *_: None)
    assert seen == [("best", gpu, 5, 3, "val"), ("best", gpu, 7, 3, "test")]
