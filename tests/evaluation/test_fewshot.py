"""The few-shot protocol: its constants, its closed form, its draws."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge as Peer

from vitrail import UserError
from vitrail.evaluation import fewshot
from vitrail.evaluation.fewshot import draw_orders, few_shot, fit_ridge

CLASSES = 5


def data(images: int, width: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features of unlike scales, with a class somewhere in them."""
    generator = np.random.default_rng(seed)
    targets = np.arange(images) % CLASSES
    centres = np.random.default_rng(99).normal(size=(CLASSES, width))
    features = centres[targets] + generator.normal(size=(images, width))
    return (features * np.linspace(0.1, 30, width) + 7).astype(np.float32), targets


def whitened(features: NDArray[np.float32]) -> NDArray[np.float64]:
    x = features.astype(np.float64)
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5)
    return np.hstack([x, np.full((len(x), 1), 100.0)])


def test_the_constants_are_those_of_the_paper() -> None:
    assert fewshot.SHOTS == (1, 5, 10, 25)
    assert fewshot.SEEDS == 3
    assert fewshot.PENALTY == 1024
    assert fewshot.BIAS == 100
    assert fewshot.EPSILON == 1e-5


# the features have a bias beside them: 20 images of 19 features make a square matrix
@pytest.mark.parametrize(("images", "width"), [(12, 40), (20, 20), (20, 19), (20, 18), (200, 30)])
def test_weights_are_the_direct_solution(images: int, width: int) -> None:
    features, targets = data(images, width)
    x, y = whitened(features), 2.0 * np.eye(CLASSES)[targets] - 1
    direct = np.linalg.solve(x.T @ x + 1024 * np.eye(width + 1), x.T @ y)
    ridge = fit_ridge(features, targets, CLASSES)
    np.testing.assert_allclose(ridge.weights, direct, rtol=0, atol=1e-8)
    np.testing.assert_allclose(ridge.scores(features), x @ direct, rtol=0, atol=1e-8)
    peer = Peer(alpha=1024.0, fit_intercept=False, solver="cholesky").fit(x, y)
    np.testing.assert_allclose(ridge.weights, peer.coef_.T, rtol=0, atol=1e-8)


def test_test_images_are_whitened_by_the_few_training_images() -> None:
    features, targets = data(30, 8)
    other, _ = data(17, 8, seed=1)
    x = features.astype(np.float64)
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-5
    ridge = fit_ridge(features, targets, CLASSES)
    by_hand = (other - mean) / deviation @ ridge.weights[:-1] + 100 * ridge.weights[-1]
    np.testing.assert_allclose(ridge.scores(other), by_hand, rtol=0, atol=1e-8)


def test_a_feature_that_never_changes_does_no_harm() -> None:
    features, targets = data(40, 6)
    features[:, 2] = 3.0
    assert np.isfinite(fit_ridge(features, targets, CLASSES).weights).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_protocol_as_it_is_written_down(seed: int) -> None:
    train, train_targets = data(150, 12)
    test, test_targets = data(90, 12, seed=5)
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(np.where(train_targets == k)[0]) for k in range(CLASSES)]
    expected = []
    for shots in (1, 5, 10, 25):
        chosen = np.concatenate([order[:shots] for order in orders])
        x, y = whitened(train[chosen]), 2.0 * np.eye(CLASSES)[train_targets[chosen]] - 1
        weights = np.linalg.solve(x.T @ x + 1024 * np.eye(13), x.T @ y)
        few = train[chosen].astype(np.float64)
        white = (test - few.mean(axis=0)) / (few.std(axis=0) + 1e-5)
        guess = (np.hstack([white, np.full((90, 1), 100.0)]) @ weights).argmax(axis=1)
        expected.append(float((guess == test_targets).mean()))
    found = few_shot(train, train_targets, test, test_targets, classes=CLASSES, seeds=[seed])
    assert [one.accuracies for one in found] == [(accuracy,) for accuracy in expected]
    assert [one.images for one in found] == [5, 25, 50, 125]
    assert expected[-1] > expected[0]


def test_the_seeds_draw_other_images_and_the_spread_over_them_is_told() -> None:
    train, train_targets = data(150, 12)
    test, test_targets = data(90, 12, seed=5)
    (one,) = few_shot(train, train_targets, test, test_targets, classes=CLASSES, shots=[1])
    assert len(one.accuracies) == 3
    assert len(set(one.accuracies)) > 1
    assert one.mean == pytest.approx(sum(one.accuracies) / 3)
    assert one.deviation == pytest.approx(np.std(one.accuracies))


def test_a_class_with_fewer_images_gives_all_it_has() -> None:
    targets = np.array([0] * 10 + [1] * 3 + [3] * 2)
    orders = draw_orders(targets, 4, seed=0)
    assert [len(order) for order in orders] == [10, 3, 0, 2]
    features = np.random.default_rng(0).normal(size=(15, 4)).astype(np.float32)
    (one,) = few_shot(features, targets, features, targets, classes=4, shots=[5])
    assert one.images == 5 + 3 + 0 + 2


def test_shots_that_no_class_has_images_for_are_left_out() -> None:
    features, targets = data(60, 6)
    most = int(np.bincount(targets).max())
    found = few_shot(features, targets, features, targets, classes=CLASSES, shots=[most, most + 1])
    assert [one.shots for one in found] == [most]
    with pytest.raises(UserError, match="must be at most"):
        few_shot(features, targets, features, targets, classes=CLASSES, shots=[most + 1])


def test_scoring_in_parts_is_scoring_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = data(60, 6)
    other, other_targets = data(47, 6, seed=2)
    ridge = fit_ridge(features, targets, CLASSES)
    at_once = ridge.accuracy(other, other_targets)
    monkeypatch.setattr(fewshot, "ROWS", 10)
    assert ridge.accuracy(other, other_targets) == at_once


def test_no_shots_and_no_seeds_are_mistakes() -> None:
    features, targets = data(10, 4)
    with pytest.raises(UserError, match="shots must be at least 1"):
        few_shot(features, targets, features, targets, classes=CLASSES, shots=[0])
    with pytest.raises(UserError, match="at least one"):
        few_shot(features, targets, features, targets, classes=CLASSES, seeds=[])
