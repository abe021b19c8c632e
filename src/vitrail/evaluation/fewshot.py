"""The paper's few-shot evaluation: regularised least squares from frozen features to {-1, 1}^K.

arXiv:2010.11929, 4.1; the constants are those of big_vision's `fewshot_lsr`. Features are
standardised by the mean and deviation of the few images, and a constant feature of 100 is the bias,
so large that the penalty hardly sees it. The penalty is 1024 whatever the number of images. All of
it is float64. Images are prepared as the model's passport says; big_vision scales them to 256,
crops 224 and draws from the first 65,000 images of ImageNet.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from vitrail.core.errors import UserError

SHOTS = (1, 5, 10, 25)  # images of each class
SEEDS = 3
PENALTY = 2.0**10
BIAS = 100.0
EPSILON = 1e-5  # is added to each deviation
ROWS = 8192  # test images that are scored at once


@dataclass(frozen=True)
class Ridge:
    """A linear classifier of standardised features; the last row of `weights` is for the bias."""

    mean: Float[np.ndarray, " D"]
    deviation: Float[np.ndarray, " D"]
    weights: Float[np.ndarray, "E K"]

    def scores(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N K"]:
        x = (features.astype(np.float64) - self.mean) / self.deviation
        scores: NDArray[np.float64] = with_bias(x) @ self.weights
        return scores

    def accuracy(self, features: Float[np.ndarray, "N D"], targets: Int[np.ndarray, " N"]) -> float:
        right = 0
        for first in range(0, len(features), ROWS):
            predicted = self.scores(features[first : first + ROWS]).argmax(axis=1)
            right += int((predicted == targets[first : first + ROWS]).sum())
        return right / len(features)


@dataclass(frozen=True)
class FewShotResult:
    """Accuracy on all test images after `shots` training images of each class, for each seed;
    `images` is how many were used, less than shots times classes if a class has fewer."""

    shots: int
    images: int
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """Over the seeds."""
        return float(np.std(self.accuracies))


def few_shot(
    train: Float[np.ndarray, "N D"],
    train_targets: Int[np.ndarray, " N"],
    test: Float[np.ndarray, "M D"],
    test_targets: Int[np.ndarray, " M"],
    *,
    classes: int,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = tuple(range(SEEDS)),
) -> list[FewShotResult]:
    """One result for each number of shots that at least one class has images for; fewer shots are
    the first of more."""
    if not shots or min(shots) < 1:
        raise UserError(f"shots must be at least 1, got {tuple(shots)}")
    if not seeds:
        raise UserError("seeds must be at least one, got none")
    most = int(np.bincount(train_targets, minlength=classes).max())
    fitting = [count for count in shots if count <= most]
    if not fitting:
        raise UserError(
            f"shots must be at most {most}, the images of the largest training class, got "
            f"{', '.join(map(str, shots))}"
        )
    drawn = [draw_orders(train_targets, classes, seed) for seed in seeds]
    found = []
    for count in fitting:
        accuracies = []
        for orders in drawn:
            chosen = np.concatenate([order[:count] for order in orders])
            ridge = fit_ridge(train[chosen], train_targets[chosen], classes)
            accuracies.append(ridge.accuracy(test, test_targets))
        found.append(FewShotResult(count, len(chosen), tuple(accuracies)))
    return found


def draw_orders(targets: Int[np.ndarray, " N"], classes: int, seed: int) -> list[NDArray[np.int64]]:
    """The images of each class in an order of their own, by one generator for all classes."""
    generator = np.random.default_rng(seed)
    return [generator.permutation(np.flatnonzero(targets == number)) for number in range(classes)]


def fit_ridge(
    features: Float[np.ndarray, "N D"], targets: Int[np.ndarray, " N"], classes: int
) -> Ridge:
    """The weights W that make |X W - Y|² + 1024 |W|² least.

    W is (XᵀX + λ)⁻¹ Xᵀ Y, which equals Xᵀ (X Xᵀ + λ)⁻¹ Y: the smaller of the two matrices is taken
    apart into eigenvectors.
    """
    features = features.astype(np.float64)
    mean, deviation = features.mean(axis=0), features.std(axis=0) + EPSILON
    x = with_bias((features - mean) / deviation)
    y = 2.0 * (targets[:, None] == np.arange(classes)) - 1.0
    if x.shape[0] >= x.shape[1]:
        values, vectors = np.linalg.eigh(x.T @ x)
        left, right = vectors, vectors.T @ (x.T @ y)
    else:
        values, vectors = np.linalg.eigh(x @ x.T)
        left, right = x.T @ vectors, vectors.T @ y
    return Ridge(mean, deviation, (left / (values + PENALTY)) @ right)


def with_bias(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N E"]:
    return np.pad(x, ((0, 0), (0, 1)), constant_values=BIAS)
