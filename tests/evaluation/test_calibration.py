"""Calibration is torchmetrics' and scikit-learn's, and no image chooses its own temperature."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, softmax  # type: ignore[import-untyped]
from sklearn import metrics as sk

from vitrail.core.randomness import permutation
from vitrail.evaluation.calibration import (
    MAX_TEMPERATURE,
    ROWS,
    bin_indices,
    brier_scores,
    confidences,
    fit_temperature,
    losses,
    reliability,
    scale_temperature,
)

Pair = tuple[NDArray[np.float32], NDArray[np.float32]]


def make(
    images: int = 600, classes: int = 7, *, multi_label: bool = False, scale: float = 2
) -> Pair:
    random = np.random.default_rng(images + classes)
    targets = np.eye(classes)[random.integers(0, classes, images)]
    if multi_label:
        targets = np.maximum(targets, random.random((images, classes)) < 0.2)
    logits = scale * (random.normal(size=(images, classes)) + 1.5 * targets - 0.7 * multi_label)
    return logits.astype(np.float32), targets.astype(np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [0.3, 1, 2, 4])
def test_the_error_of_one_label_is_torchmetrics(scale: float) -> None:
    metrics = pytest.importorskip("torchmetrics.functional.classification")
    logits, targets = make(scale=scale)
    confidence, right = confidences(logits, targets, multi_label=False)
    theirs = metrics.multiclass_calibration_error(
        torch.from_numpy(softmax(logits.astype(np.float64), axis=1)),
        torch.from_numpy(targets.argmax(axis=1)),
        num_classes=7,
        n_bins=15,
        norm="l1",
    )
    # which counts in float32
    assert reliability(confidence, right).ece == pytest.approx(float(theirs), abs=1e-6)


def test_the_error_of_several_labels_is_torchmetrics() -> None:
    metrics = pytest.importorskip("torchmetrics.functional.classification")
    logits, targets = make(multi_label=True)
    confidence, right = confidences(logits, targets, multi_label=True)
    theirs = metrics.binary_calibration_error(
        torch.from_numpy(expit(logits.astype(np.float64)).reshape(-1)),
        torch.from_numpy(targets.astype(int).reshape(-1)),
        n_bins=15,
        norm="l1",
    )
    mine = reliability(confidence.reshape(-1), right.reshape(-1)).ece
    assert mine == pytest.approx(float(theirs), abs=1e-6)


def test_losses_and_brier_scores_are_sklearns() -> None:
    logits, targets = make(images=ROWS + 50)  # more than are computed at once
    truth, chances = targets.argmax(axis=1), softmax(logits.astype(np.float64), axis=1)
    expected = sk.log_loss(truth, chances, labels=range(7))
    assert losses(logits, targets, multi_label=False).mean() == pytest.approx(expected, rel=1e-9)
    expected = sk.brier_score_loss(truth, chances, labels=range(7), scale_by_half=False)
    assert brier_scores(logits, targets, multi_label=False).mean() == pytest.approx(
        expected, rel=1e-9
    )

    logits, targets = make(multi_label=True)
    chances = expit(logits.astype(np.float64))
    by_label = [sk.log_loss(targets[:, k], chances[:, k]) for k in range(7)]
    found = losses(logits, targets, multi_label=True).mean()
    assert found == pytest.approx(np.mean(by_label), rel=1e-9)
    by_label = [sk.brier_score_loss(targets[:, k], chances[:, k]) for k in range(7)]
    found = brier_scores(logits, targets, multi_label=True).mean()
    assert found == pytest.approx(np.mean(by_label), rel=1e-9)


def test_huge_logits_have_finite_losses() -> None:
    logits = np.array([[3000, 0], [-3000, 0]], dtype=np.float32)
    targets = np.array([[1, 0], [1, 0]], dtype=np.float32)
    assert losses(logits, targets, multi_label=False).tolist() == [0, 3000]
    assert losses(logits, targets, multi_label=True).tolist() == [
        np.log(2) / 2,
        1500 + np.log(2) / 2,
    ]


@given(st.lists(st.floats(0, 1), min_size=1), st.integers(1, 20))
def test_every_confidence_has_one_bin(values: list[float], bins: int) -> None:
    places = bin_indices(np.array(values), bins)
    edges = np.linspace(0, 1, bins + 1)
    for value, place in zip(values, places, strict=True):
        assert 0 <= place < bins
        assert edges[place] <= value
        assert value < edges[place + 1] or (value == 1 and place == bins - 1)


@pytest.mark.parametrize("multi_label", [False, True])
def test_the_temperature_undoes_a_scale(multi_label: bool) -> None:
    logits, targets = make(images=4000, multi_label=multi_label, scale=1)
    base = fit_temperature(logits, targets, multi_label=multi_label)
    hot = fit_temperature(3 * logits, targets, multi_label=multi_label)
    assert hot == pytest.approx(3 * base, rel=1e-4)
    least = losses(logits, targets, multi_label=multi_label, temperature=base).mean()
    for factor in (0.98, 1.02):
        assert (
            losses(logits, targets, multi_label=multi_label, temperature=factor * base).mean()
            > least
        )


def test_another_part_chooses_the_temperature() -> None:
    logits, targets = make()
    other, truth = make(images=500, scale=5)
    found = scale_temperature(logits, targets, multi_label=False, held_out=("val", other, truth))
    assert found is not None
    assert found.temperature == fit_temperature(other, truth, multi_label=False)
    assert found.fitted_on == "val, 500 images"
    expected = losses(logits, targets, multi_label=False, temperature=found.temperature).mean()
    assert found.nll == pytest.approx(expected)


def test_without_one_each_half_chooses_for_the_other() -> None:
    logits, targets = make(images=301)
    found = scale_temperature(logits, targets, multi_label=False, seed=4)
    assert found is not None
    first = permutation("halves", 301, 4) % 2 == 0
    total = 0.0
    for half in (first, ~first):
        chosen = fit_temperature(logits[~half], targets[~half], multi_label=False)
        total += losses(logits[half], targets[half], multi_label=False, temperature=chosen).sum()
    assert found.nll == pytest.approx(total / 301)
    assert found.temperature == fit_temperature(logits, targets, multi_label=False)
    other = scale_temperature(logits, targets, multi_label=False, seed=5)
    assert other is not None
    assert other.nll != found.nll


def test_too_few_or_too_good_answers_are_told() -> None:
    logits, targets = make(images=1)
    assert scale_temperature(logits, targets, multi_label=False) is None
    found = scale_temperature(targets - 0.5, targets, multi_label=False)
    assert found is None
    logits, targets = make(images=50)
    assert scale_temperature(targets, targets, multi_label=False) is None, (
        "the colder the better, for ever"
    )
    once = targets.copy()
    once[0] = -once[0]
    assert scale_temperature(once, targets, multi_label=False) is None, (
        "one half has no mistake to learn from"
    )
    assert (
        scale_temperature(-targets, targets, multi_label=False, held_out=("val", targets, targets))
        is None
    )
    hopeless = scale_temperature(-targets, targets, multi_label=False)
    assert hopeless is not None
    assert hopeless.at_limit
    assert hopeless.temperature == pytest.approx(MAX_TEMPERATURE, rel=1e-2)


def test_calibration_gets_better_by_it() -> None:
    logits, targets = make(images=3000, scale=4)
    confidence, right = confidences(logits, targets, multi_label=False)
    before, after = (
        reliability(confidence, right),
        scale_temperature(logits, targets, multi_label=False),
    )
    assert after is not None
    assert after.temperature > 2
    assert after.reliability.ece < before.ece / 2
