"""How far a number can be trusted: the headline numbers, and their intervals.

A share of images that are right (accuracy, top5, exact) has Wilson's interval, here and on every
page, so that 54 of 100 means the same everywhere. All other numbers have the bootstrap's: images
are drawn again and again with replacement, as many as there are, from all classes together (not
class by class: how often a class occurs is chance too), and each number is computed anew. The
middle 95 % of what comes out is the interval. A number here is a function of counts (b, N), how
often each image was drawn in each of b samples, so that many samples are one matrix product.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import sparse, stats  # type: ignore[import-untyped]

from vitrail.core.randomness import seed_of
from vitrail.evaluation.calibration import BINS, bins_of, brier_scores, confidences, losses

LEVEL = 0.95
RESAMPLES, FEWEST = 1000, 200
MOST_WORK = 4_000_000_000  # numbers that are ranked in all samples together
SHARES = {"accuracy", "top5", "exact"}  # of images that are right
AT_ONCE = 8_000_000  # counts held at a time

Counts: TypeAlias = "Float[np.ndarray, 'b N']"
Number: TypeAlias = Callable[[Counts], "Float[np.ndarray, ' b']"]


@dataclass(frozen=True)
class Measured:
    """The headline numbers, each with its interval where there is one, and from how many samples.
    `key` names the one that says most."""

    key: str
    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    resamples: int


def measure(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    seed: int = 0,
    only: str | None = None,
) -> Measured:
    """All headline numbers, or `only` one of them.

    One label an image: accuracy, top5 where there are more than five classes, f1 (the mean over
    classes that have images). Several: mean_precision, f1 (at a probability of 0.5) and exact. In
    both cases ece, nll and brier.
    """
    numbers = (
        numbers_of_several(logits, targets) if multi_label else numbers_of_one(logits, targets)
    )
    key = next(iter(numbers))
    numbers |= calibration_numbers(logits, targets, multi_label=multi_label) if only is None else {}
    if only is not None:
        numbers = {only: numbers[only]}
    once = np.ones((1, len(logits)))
    values = {name: float(number(once)[0]) for name, number in numbers.items()}
    ranked = logits.size if "mean_precision" in numbers else 1
    resamples = int(np.clip(MOST_WORK // ranked, FEWEST, RESAMPLES))
    found = bootstrap(list(numbers.values()), len(logits), resamples=resamples, seed=seed)
    intervals = dict(zip(numbers, found, strict=True)) if found else {}
    for name in SHARES & intervals.keys():
        intervals[name] = accuracy_interval(round(values[name] * len(logits)), len(logits))
    return Measured(key, values, intervals, resamples)


def accuracy_interval(right: int, images: int) -> tuple[float, float]:
    """Wilson's interval of a share.

    >>> [round(end, 3) for end in accuracy_interval(54, 100)]
    [0.443, 0.634]
    """
    low, high = stats.binomtest(right, images).proportion_ci(LEVEL, method="wilson")
    return float(low), float(high)


def bootstrap(
    numbers: list[Number], images: int, *, resamples: int, seed: int
) -> list[tuple[float, float]]:
    """(low, high) of each number; none where a single image leaves nothing to draw."""
    if images < 2:
        return []

    def statistic(drawn: NDArray[np.int64], axis: int) -> NDArray[np.float64]:
        counts = how_often(drawn.reshape(-1, images))
        return np.stack([number(counts) for number in numbers]).reshape(-1, *drawn.shape[:-1])

    found = stats.bootstrap(
        (np.arange(images),),
        statistic,
        vectorized=True,
        n_resamples=resamples,
        batch=max(AT_ONCE // images, 1),
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed_of("bootstrap", seed)),
    ).confidence_interval
    return [(float(low), float(high)) for low, high in zip(found.low, found.high, strict=True)]


def how_often(drawn: Int[np.ndarray, "b N"]) -> Counts:
    """
    >>> how_often(np.array([[0, 0, 2]])).tolist()
    [[2.0, 0.0, 1.0]]
    """
    samples, images = drawn.shape
    places = drawn + images * np.arange(samples)[:, None]
    counted = np.bincount(places.reshape(-1), minlength=samples * images)
    return counted.reshape(samples, images).astype(np.float64)


def numbers_of_one(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"]
) -> dict[str, Number]:
    truth, guess = targets.argmax(axis=1), logits.argmax(axis=1)
    numbers = {"accuracy": mean_of(guess == truth)}
    if logits.shape[1] > 5:
        best = np.argpartition(-logits, 5, axis=1)[:, :5]
        numbers["top5"] = mean_of((best == truth[:, None]).any(axis=1))
    return numbers | {"f1": f1_of(truth, guess, logits.shape[1])}


def numbers_of_several(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"]
) -> dict[str, Number]:
    there, said = targets > 0.5, logits > 0
    return {
        "mean_precision": mean_precision_of(logits, there),
        "f1": f1_of_several(there, said),
        "exact": mean_of((there == said).all(axis=1)),
    }


def calibration_numbers(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], *, multi_label: bool
) -> dict[str, Number]:
    confidence, right = confidences(logits, targets, multi_label=multi_label)
    return {
        "ece": calibration_error_of(confidence, right),
        "nll": mean_of(losses(logits, targets, multi_label=multi_label)),
        "brier": mean_of(brier_scores(logits, targets, multi_label=multi_label)),
    }


def mean_of(values: NDArray[np.bool_] | NDArray[np.float64]) -> Number:
    return lambda counts: counts @ values.astype(np.float64) / len(values)


def calibration_error_of(confidence: Float[np.ndarray, "..."], right: NDArray[np.bool_]) -> Number:
    """Of each image and bin the sum of right - confidence: the error is a sum of these."""
    places = bins_of(confidence).reshape(len(confidence), -1)
    gaps = (right - confidence).reshape(len(confidence), -1)
    each = np.zeros((len(confidence), BINS))
    np.add.at(each, (np.arange(len(confidence))[:, None], places), gaps)
    return lambda counts: abs(counts @ each).sum(axis=1) / confidence.size


def f1_of(truth: NDArray[np.int64], guess: NDArray[np.int64], classes: int) -> Number:
    """The mean over classes that have images of 2 right / (said + there)."""
    count = len(truth)

    def marks(rows: NDArray[np.bool_], columns: NDArray[np.int64]) -> sparse.csr_array:
        places = np.flatnonzero(rows)
        values = np.ones(len(places))
        return sparse.csr_array((values, (columns[rows], places)), shape=(classes, count))

    every = np.ones(count, dtype=np.bool_)
    there, said, right = marks(every, truth), marks(every, guess), marks(truth == guess, truth)
    return lambda counts: mean_f1((there @ counts.T).T, (said @ counts.T).T, (right @ counts.T).T)


def f1_of_several(there: NDArray[np.bool_], said: NDArray[np.bool_]) -> Number:
    both = (there & said).astype(np.float64)
    one, other = there.astype(np.float64), said.astype(np.float64)
    return lambda counts: mean_f1(counts @ one, counts @ other, counts @ both)


def mean_f1(
    there: Float[np.ndarray, "b K"], said: Float[np.ndarray, "b K"], right: Float[np.ndarray, "b K"]
) -> Float[np.ndarray, " b"]:
    f1 = 2 * right / np.maximum(there + said, 1)
    present = there > 0
    return np.where(present, f1, 0).sum(axis=1) / np.maximum(present.sum(axis=1), 1)


def mean_precision_of(logits: Float[np.ndarray, "N K"], there: NDArray[np.bool_]) -> Number:
    """The mean over classes that have images of average precision: of each image of the class, the
    share of the class among all that are put as high or higher."""
    order = np.argsort(-logits, axis=0, kind="stable")
    ends = []  # of each place in the order the last one that has the same logit
    for column in range(logits.shape[1]):
        ranked = logits[order[:, column], column]
        ends.append(len(ranked) - 1 - np.searchsorted(ranked[::-1], ranked, side="left"))

    def number(counts: Counts) -> Float[np.ndarray, " b"]:
        total, present = np.zeros(len(counts)), np.zeros(len(counts))
        for column, last in enumerate(ends):
            drawn = counts[:, order[:, column]]
            hits = drawn * there[order[:, column], column]
            before = np.maximum(np.cumsum(drawn, axis=1), 1)
            precision = (np.cumsum(hits, axis=1) / before)[:, last]
            images = hits.sum(axis=1)
            total += (hits * precision).sum(axis=1) / np.maximum(images, 1)
            present += images > 0
        return total / np.maximum(present, 1)

    return number
