"""Robustness is the score under each corruption, and its interval draws whole images."""

import numpy as np
import pytest
from numpy.typing import NDArray

from vitrail.core.outputs import Outputs
from vitrail.evaluation.classify import score
from vitrail.evaluation.robustness import VARIANTS, Robustness, measure_robustness

EXAMPLES = np.zeros((15, 4, 4, 3), dtype=np.uint8)


def outputs_of(images: int, *, multi_label: bool = False) -> Outputs:
    random = np.random.default_rng(images)
    targets = np.eye(3)[random.integers(0, 3, images)]
    if multi_label:
        targets = np.maximum(targets, random.random(targets.shape) < 0.3)
    logits = random.normal(size=targets.shape) + 2 * targets - 1
    return Outputs(
        labels=("a", "b", "c"),
        logits=logits.astype(np.float32),
        targets=targets.astype(np.float32),
        indices=np.arange(images),
        multi_label=multi_label,
    )


def corrupted(clean: Outputs) -> NDArray[np.float32]:
    """Logits of every variant, ever noisier."""
    noise = np.random.default_rng(0).normal(size=(len(VARIANTS), *clean.logits.shape))
    return (clean.logits + 2 * noise).astype(np.float32)


def test_one_label_has_the_share_that_is_right_and_an_interval() -> None:
    clean = outputs_of(40)
    right = corrupted(clean).argmax(axis=2) == clean.truth
    found = measure_robustness(clean, right.astype(np.float32), side=32, examples=EXAMPLES)
    expected = score(clean.logits, clean.targets, multi_label=False)
    assert (found.metric, found.clean, found.images) == ("accuracy", expected.best, 40)
    assert found.values.reshape(-1) == pytest.approx(right.mean(axis=1))
    assert found.interval is not None
    low, high = found.interval
    assert low < found.mean < high


def test_several_labels_have_mean_average_precision_and_no_interval() -> None:
    clean = outputs_of(40, multi_label=True)
    logits = corrupted(clean)
    logits[3, 5] = np.nan
    found = measure_robustness(clean, logits, side=32, examples=EXAMPLES)
    assert (found.metric, found.interval) == ("mean_precision", None)
    expected = score(np.nan_to_num(logits[3]), clean.targets, multi_label=True).best
    assert found.values[0, 3] == expected


def test_one_image_has_no_interval() -> None:
    clean = outputs_of(1)
    right = np.ones((75, 1), dtype=np.float32)
    assert measure_robustness(clean, right, side=32, examples=EXAMPLES).interval is None


def test_errors_are_relative_to_those_without_corruption() -> None:
    assert len(VARIANTS) == 75
    values = np.full((15, 5), 0.6)
    found = Robustness("accuracy", 0.8, values, 10, 32, EXAMPLES)
    assert found.mean == pytest.approx(0.6)
    assert found.relative_error == pytest.approx(2)
    assert Robustness("accuracy", 1.0, values, 10, 32, EXAMPLES).relative_error is None
