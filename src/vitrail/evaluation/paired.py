"""Models compared on the same test images, over several training seeds: means, differences, tests.

Two things are drawn by chance, and both count: the seed of a run (its labelled images, its fresh
weights, the order of its batches) and the test images. A mean over S seeds and N images has the
variance s² / S of the seeds' means plus v / N of the images' means (two crossed random factors;
their interaction is counted with both). An interval reaches as far as Student's intervals of the
two, added in squares (Howe, JASA 1974): with three seeds that differ by much it is wide, and it is
a little too wide rather than too narrow. A p-value is one minus the level at which 0 leaves the
interval.

Two models are compared by the difference of each seed and image. With one seed the test is
McNemar's, exact. p-values of many pairs are corrected by Holm's method.

Few test images may show no variance at all, as where every model is right on all of them. That is
no certainty: a mean has Wilson's interval of one run then, a difference Newcombe's (Statistics in
Medicine 1998, method 10) and the largest of McNemar's p-values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy import optimize, stats  # type: ignore[import-untyped]

from vitrail.evaluation.intervals import LEVEL, wilson_interval

Right = Bool[np.ndarray, "S N"]  # for each seed and test image, whether it is predicted rightly
LOWEST = -100.0  # logarithm of the smallest p-value that is told apart from 0
HOW = (
    "Intervals of 95 % count seeds and test images as chance: Student's intervals of both, added "
    "in squares; of one run Wilson's. Two models are compared by the differences of each seed and "
    "test image, with one seed by McNemar's exact test; p-values are corrected by Holm's method "
    "over all pairs. Where seeds or images do not vary at all, intervals are Wilson's and "
    "Newcombe's of one run, and the p-value is the largest of McNemar's."
)


@dataclass(frozen=True)
class PairedDifference:
    """The accuracy of the first model minus that of the second, its interval and p-value;
    `mcnemar` has the exact p-value of each seed alone."""

    difference: float
    interval: tuple[float, float]
    p_value: float
    mcnemar: tuple[float, ...]


def mean_accuracy(right: Right) -> tuple[float, tuple[float, float]]:
    """The mean over seeds and images, and its interval.

    >>> mean, (low, high) = mean_accuracy(np.array([[True] * 8 + [False] * 2] * 3))
    >>> mean, low < 0.8 < high
    (0.8, True)
    """
    if len(right) == 1:
        return float(right.mean()), wilson_interval(int(right.sum()), right.shape[1])
    mean, parts = crossed_mean(right.astype(np.float64))
    if not varies(parts):
        return mean, one_run_interval(right)
    width = half_width(parts, 1 - LEVEL)
    return mean, (max(mean - width, 0.0), min(mean + width, 1.0))


def one_run_interval(right: Right) -> tuple[float, float]:
    """Wilson's interval of a single run that is right as often as these on average."""
    return wilson_interval(round(float(right.mean()) * right.shape[1]), right.shape[1])


def paired_difference(first: Right, second: Right) -> PairedDifference:
    """Two models with the same seeds in the same order, on the same images."""
    assert first.shape == second.shape, "pairs need the same seeds and images"
    mcnemar = tuple(mcnemar_test(one, two) for one, two in zip(first, second, strict=True))
    mean, parts = crossed_mean(first.astype(np.float64) - second)
    if not varies(parts):
        return PairedDifference(mean, newcombe_interval(first, second), max(mcnemar), mcnemar)
    p_value = mcnemar[0] if len(first) == 1 else p_value_of(mean, parts)
    width = half_width(parts, 1 - LEVEL)
    interval = (max(mean - width, -1.0), min(mean + width, 1.0))
    return PairedDifference(mean, interval, p_value, mcnemar)


def newcombe_interval(first: Right, second: Right) -> tuple[float, float]:
    """The interval of a difference from Wilson's of both; where both are right on the same images,
    from Wilson's of how many they are not.

    >>> low, high = newcombe_interval(np.ones((2, 4), bool), np.ones((2, 4), bool))
    >>> round(low, 2), round(high, 2)
    (-0.49, 0.49)
    """
    if bool((first == second).all()):
        width = wilson_interval(0, first.shape[1])[1]
        return -width, width
    one, two = float(first.mean()), float(second.mean())
    (low_1, high_1), (low_2, high_2) = one_run_interval(first), one_run_interval(second)
    down, up = math.hypot(one - low_1, high_2 - two), math.hypot(high_1 - one, two - low_2)
    return max(one - two - down, -1.0), min(one - two + up, 1.0)


Part = tuple[float, int]  # a variance of the mean, and its degrees of freedom


def varies(parts: Sequence[Part]) -> bool:
    return any(part for part, _ in parts)


def crossed_mean(values: Float[np.ndarray, "S N"]) -> tuple[float, list[Part]]:
    """The mean over seeds and images, and what each of the two adds to its variance.

    >>> crossed_mean(np.array([[0.0, 1.0], [0.0, 1.0]]))
    (0.5, [(0.0, 1), (0.25, 1)])
    """
    parts = [
        (float(values.mean(axis=1 - axis).var(ddof=1)) / count, count - 1)
        for axis, count in enumerate(values.shape)
        if count > 1
    ]
    return float(values.mean()), parts


def half_width(parts: Sequence[Part], outside: float) -> float:
    """Half of an interval's width that leaves this probability outside."""
    squares = [part * float(stats.t.isf(outside / 2, freedom)) ** 2 for part, freedom in parts]
    return math.sqrt(sum(squares))


def p_value_of(mean: float, parts: Sequence[Part]) -> float:
    """The probability that is left outside of the interval that just reaches 0."""
    if mean == 0:
        return 1.0

    def beyond(logarithm: float) -> float:
        return half_width(parts, math.exp(logarithm)) - abs(mean)

    if beyond(LOWEST) < 0:
        return math.exp(LOWEST)
    return math.exp(float(optimize.brentq(beyond, LOWEST, 0.0)))


def mcnemar_test(first: Bool[np.ndarray, " N"], second: Bool[np.ndarray, " N"]) -> float:
    """The exact p-value of two models that are right on the same images equally often.

    >>> mcnemar_test(np.array([True] * 8), np.array([False] * 8))
    0.0078125
    """
    one, two = int((first & ~second).sum()), int((second & ~first).sum())
    return float(stats.binomtest(one, one + two).pvalue) if one + two else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for how many there are: the smallest counts for all, the next for all but
    one, and so on, and none becomes smaller than one before it.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(p_values[place] * (len(p_values) - rank), 1.0))
        corrected[place] = largest
    return corrected
