"""Which weights become the best ones."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.training.world import RECIPE, Stripes
from vitrail.data.source import Splits
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.progress import Values
from vitrail.training.validate import is_better


def always_half(answers: NDArray[np.float32], targets: NDArray[np.float32]) -> tuple[str, Values]:
    return "accuracy", {"accuracy": 0.5}


def test_a_tie_goes_to_the_lower_validation_loss(tmp_path: Path) -> None:
    splits = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
    recipe = replace(RECIPE, monitor=replace(RECIPE.monitor, log_every_steps=1_000))
    outcome = Trainer(prepare_task(recipe, splits, always_half), tmp_path).run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    judged = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
    assert len(judged) > 3
    lowest = min(judged, key=lambda step: judged[step])
    assert outcome.run_state.best_step == lowest > min(judged)
    assert outcome.run_state.best == 0.5
    assert outcome.outputs is not None
    assert len(outcome.outputs.logits) == 40


@pytest.mark.parametrize(
    ("values", "best", "better"),
    [
        ({"accuracy": 0.6, "val_loss": 9.0}, {"accuracy": 0.5, "val_loss": 1.0}, True),
        ({"accuracy": 0.5, "val_loss": 1.0}, {"accuracy": 0.5, "val_loss": 1.0}, False),
        ({"accuracy": 0.5, "top5": 0.9}, {"accuracy": 0.5, "top5": 0.8}, True),
        (
            {"accuracy": 0.5, "top5": 0.9, "val_loss": 2.0},
            {"accuracy": 0.5, "top5": 0.8, "val_loss": 1.0},
            False,
        ),
        ({"accuracy": math.nan, "val_loss": 1.0}, {"accuracy": 0.5, "val_loss": 2.0}, False),
        ({"accuracy": 0.1, "val_loss": 5.0}, {"val_loss": 2.0}, True),
    ],
)
def test_the_order_in_which_scores_decide(values: Values, best: Values, better: bool) -> None:
    assert is_better("accuracy", values, best) == better
