"""Confidence intervals: Wilson's for a share of images, the bootstrap's for every other number.

Accuracy, top5 and exact have Wilson's interval, here and on every page, so that 54 of 100 means the
same everywhere. For all other numbers images are drawn again and again with replacement, as many as
there are, from all classes together (not class by class: how often a class occurs is chance too),
and each number is computed anew; the middle 95 % are the interval. A statistic here is a function
of counts (b, N), how often each image was drawn in each of b samples, so that many samples are one
matrix product.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from vitrail.core.randomness import seed_of

LEVEL = 0.95
MAX_COUNTS = 8_000_000  # held in memory at a time
WILSON = ("accuracy", "top5", "exact")  # shares of images; the others are bootstrapped
METHODS = (
    "Accuracy, top5 and exact: Wilson's interval; others: bootstrap, images drawn with replacement "
    "from all classes together"
)

Counts: TypeAlias = "Float[np.ndarray, 'b N']"
Statistic: TypeAlias = Callable[[Counts], "Float[np.ndarray, ' b']"]


def wilson_interval(right: int, images: int) -> tuple[float, float]:
    """The interval of a share.

    >>> [round(end, 3) for end in wilson_interval(54, 100)]
    [0.443, 0.634]
    """
    low, high = stats.binomtest(right, images).proportion_ci(LEVEL, method="wilson")
    return float(low), float(high)


def bootstrap_intervals(
    statistics: list[Statistic], images: int, *, resamples: int, seed: int
) -> list[tuple[float, float]]:
    """(low, high) of each statistic; none where a single image leaves nothing to draw."""
    if images < 2:
        return []

    def compute(drawn: NDArray[np.int64], axis: int) -> NDArray[np.float64]:
        counts = count_draws(drawn.reshape(-1, images))
        values = [statistic(counts) for statistic in statistics]
        return np.stack(values).reshape(-1, *drawn.shape[:-1])

    found = stats.bootstrap(
        (np.arange(images),),
        compute,
        vectorized=True,
        n_resamples=resamples,
        batch=max(MAX_COUNTS // images, 1),
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed_of("bootstrap", seed)),
    ).confidence_interval
    return [(float(low), float(high)) for low, high in zip(found.low, found.high, strict=True)]


def count_draws(drawn: Int[np.ndarray, "b N"]) -> Counts:
    """
    >>> count_draws(np.array([[0, 0, 2]])).tolist()
    [[2.0, 0.0, 1.0]]
    """
    samples, images = drawn.shape
    places = drawn + images * np.arange(samples)[:, None]
    counted = np.bincount(places.reshape(-1), minlength=samples * images)
    return counted.reshape(samples, images).astype(np.float64)


def mean_statistic(values: NDArray[np.bool_] | NDArray[np.float64]) -> Statistic:
    """The mean over images of one value for each."""
    return lambda counts: counts @ values.astype(np.float64) / len(values)


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the mean of a few values by Student's t; None for fewer than two.

    >>> [round(end, 4) for end in t_interval([0.90, 0.92, 0.94]) or ()]
    [0.8703, 0.9697]
    """
    if len(values) < 2:
        return None
    mean, error = float(np.mean(values)), float(stats.sem(values))
    if not error:
        return mean, mean
    low, high = stats.t.interval(LEVEL, len(values) - 1, loc=mean, scale=error)
    return float(low), float(high)
