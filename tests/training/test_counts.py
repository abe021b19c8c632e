"""Scores as sums of whole numbers: the same for any batches and any number of processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.training.world import trainer
from vitrail import UserError
from vitrail.data.source import Splits
from vitrail.evaluation.classify import LabelScorer, score
from vitrail.tasks.training_run import make_scorer
from vitrail.training.counts import CountedScorer, Counts


@given(
    images=st.integers(1, 60),
    classes=st.integers(2, 9),
    cut=st.integers(1, 60),
    seed=st.integers(0),
)
def test_batches_add_up_to_the_whole(images: int, classes: int, cut: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(images, classes)).astype(np.float32)
    targets = np.eye(classes, dtype=np.float32)[draw.integers(classes, size=images)]
    losses = F.cross_entropy(
        torch.from_numpy(logits), torch.from_numpy(targets), reduction="none"
    ).numpy()
    scorer = LabelScorer(classes)
    assert isinstance(scorer, CountedScorer)
    sums = []
    for order in (np.arange(images), draw.permutation(images)):
        counts = Counts(scorer.names)
        for first in range(0, images, cut):
            part = order[first : first + cut]
            counts.add(scorer.hits(logits[part], targets[part]), losses[part], len(part))
        sums.append(counts.sums)
    assert sums[0] == sums[1]
    values = counts.values()
    assert values.pop("val_loss") == pytest.approx(float(losses.mean()), rel=1e-5, abs=1e-6)
    assert values == score(logits, targets, multi_label=False).values


def test_a_loss_that_is_not_finite_is_said_so() -> None:
    counts = Counts(())
    counts.add({}, np.array([1.0, np.inf]), 2)
    assert np.isnan(counts.values()["val_loss"])
    counts = Counts(())
    counts.add({}, np.array([1e30]), 1)
    assert counts.values()["val_loss"] == 2.0**16


def test_outputs_are_forgotten_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores are the same, and no output of all images is kept."""
    ends: list[Any] = []
    for limit in (2**26, 10):
        monkeypatch.setattr("vitrail.training.evaluator.MAX_KEPT", limit)
        run = trainer(tmp_path / str(limit))
        object.__setattr__(run.task, "scorer", LabelScorer(2))
        ends.append(run.run())
    assert ends[0].run_state.best_scores == ends[1].run_state.best_scores
    assert ends[0].outputs is not None
    assert ends[1].outputs is None


def test_ranking_too_many_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.training.world import Stripes

    monkeypatch.setattr("vitrail.tasks.training_run.MAX_KEPT", 10)
    val = Stripes(40)
    train = Stripes(40)
    train.targets = np.eye(2, dtype=np.uint8)[train.targets]
    with pytest.raises(UserError, match="at most 10, got 80"):
        make_scorer(Splits({"train": train, "val": val}))
