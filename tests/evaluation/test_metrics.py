"""Headline numbers are scikit-learn's, and their intervals those of drawing images again."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest  # type: ignore[import-untyped]
from sklearn import metrics as sk

from tests.evaluation.test_calibration import make
from vitrail.evaluation.calibration import confidences, reliability
from vitrail.evaluation.classify import score
from vitrail.evaluation.intervals import count_draws, wilson_interval
from vitrail.evaluation.metrics import (
    compute_metrics,
    multi_label_statistics,
    single_label_statistics,
)


def f1_of_present(truth: NDArray[np.int64], guess: NDArray[np.int64]) -> float:
    present = np.unique(truth)
    return float(sk.f1_score(truth, guess, labels=present, average="macro", zero_division=0))


def test_numbers_of_one_label_are_those_of_others() -> None:
    logits, targets = make(classes=9)
    truth, guess = targets.argmax(axis=1), logits.argmax(axis=1)
    found = compute_metrics(logits, targets, multi_label=False)
    expected = score(logits, targets, multi_label=False).values
    assert {name: found.values[name] for name in expected} == pytest.approx(expected)
    assert found.key == "accuracy"
    assert found.values["accuracy"] == pytest.approx(
        sk.accuracy_score(truth, logits.argmax(axis=1))
    )
    top5 = sk.top_k_accuracy_score(truth, logits, k=5)
    assert found.values["top5"] == pytest.approx(top5)
    assert found.values["f1"] == pytest.approx(f1_of_present(truth, guess))
    confidence, right = confidences(logits, targets, multi_label=False)
    assert found.values["ece"] == pytest.approx(reliability(confidence, right).ece)
    assert list(found.values) == ["accuracy", "top5", "f1", "ece", "nll", "brier"]
    assert "top5" not in compute_metrics(logits[:, :5], targets[:, :5], multi_label=False).values


@pytest.mark.parametrize("ties", [False, True])
def test_multi_label_statistics_labels_are_sklearns(ties: bool) -> None:
    logits, targets = make(multi_label=True)
    targets[:, 3] = 0  # a class without an image counts nowhere
    logits = logits.round() if ties else logits
    found = compute_metrics(logits, targets, multi_label=True).values
    present = [0, 1, 2, 4, 5, 6]
    average = sk.average_precision_score(targets[:, present], logits[:, present])
    assert found["mean_precision"] == pytest.approx(average, abs=1e-12)
    f1 = sk.f1_score(targets[:, present], logits[:, present] > 0, average="macro")
    assert found["f1"] == pytest.approx(f1, abs=1e-12)
    assert found["exact"] == pytest.approx(sk.accuracy_score(targets, logits > 0))
    confidence, right = confidences(logits, targets, multi_label=True)
    assert found["ece"] == pytest.approx(reliability(confidence.reshape(-1), right.reshape(-1)).ece)


def test_several_labels_agree_with_torchmetrics() -> None:
    metrics = pytest.importorskip("torchmetrics.functional.classification")
    logits, targets = make(multi_label=True)
    theirs = metrics.multilabel_average_precision(
        torch.from_numpy(logits).sigmoid().double(), torch.from_numpy(targets).long(), num_labels=7
    )
    found = compute_metrics(logits, targets, multi_label=True, only="mean_precision")
    assert list(found.values) == ["mean_precision"]
    assert found.values["mean_precision"] == pytest.approx(float(theirs), abs=1e-6)


def test_a_sample_counts_as_its_images_would() -> None:
    """Weighted once, or computed on the images that were drawn: the same."""
    drawn = np.random.default_rng(0).integers(0, 80, (4, 80))
    logits, targets = make(images=80)
    truth, guess = targets.argmax(axis=1), logits.argmax(axis=1)
    statistics = single_label_statistics(logits, targets)
    found = {name: statistic(count_draws(drawn)) for name, statistic in statistics.items()}
    for place, rows in enumerate(drawn):
        assert found["accuracy"][place] == pytest.approx((truth == guess)[rows].mean())
        assert found["f1"][place] == pytest.approx(f1_of_present(truth[rows], guess[rows]))
        expected = compute_metrics(
            logits[rows], targets[rows], multi_label=False, only="top5"
        ).values["top5"]
        assert found["top5"][place] == pytest.approx(expected)

    logits, targets = make(images=80, multi_label=True)
    logits = logits.round(1)
    statistics = multi_label_statistics(logits, targets)
    found = {name: statistic(count_draws(drawn)) for name, statistic in statistics.items()}
    for place, rows in enumerate(drawn):
        average = sk.average_precision_score(targets[rows], logits[rows])
        assert found["mean_precision"][place] == pytest.approx(average, abs=1e-12)
        f1 = sk.f1_score(targets[rows], logits[rows] > 0, average="macro")
        assert found["f1"][place] == pytest.approx(f1)


def test_the_interval_of_accuracy_is_the_same_on_every_page() -> None:
    """Wilson's, as training reports have it."""
    logits, targets = make(images=800)
    found = compute_metrics(logits, targets, multi_label=False)
    assert found.resamples == 1000
    right = round(found.values["accuracy"] * 800)
    expected = binomtest(right, 800).proportion_ci(method="wilson")
    assert found.intervals["accuracy"] == (expected.low, expected.high)
    assert found.intervals["accuracy"] == wilson_interval(right, 800)
    for name, (low, high) in found.intervals.items():
        assert low < high
        if name != "ece":  # which is biased upwards
            assert low < found.values[name] < high


def test_intervals_come_from_the_seed_alone() -> None:
    logits, targets = make(images=90)
    first = compute_metrics(logits, targets, multi_label=False, seed=1)
    assert compute_metrics(logits, targets, multi_label=False, seed=1) == first
    assert compute_metrics(logits, targets, multi_label=False, seed=2) != first


def test_one_image_has_numbers_but_no_interval() -> None:
    logits, targets = make(images=1)
    found = compute_metrics(logits, targets, multi_label=False)
    assert found.values["accuracy"] in (0, 1)
    assert found.intervals == {}
