"""The headline metrics of a classifier, each with its confidence interval."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]

from vitrail.evaluation.calibration import BINS, bin_indices, brier_scores, confidences, losses
from vitrail.evaluation.intervals import (
    Counts,
    Statistic,
    bootstrap_intervals,
    mean_statistic,
    wilson_interval,
)

RESAMPLES, MIN_RESAMPLES = 1000, 200
MAX_RANKED = 4_000_000_000  # numbers that are ranked in all samples together
SHARES = {"accuracy", "top5", "exact"}  # of images that are right


@dataclass(frozen=True)
class Metrics:
    """Values by name, with intervals where there are any, from `resamples` bootstrap samples. `key`
    names the main one."""

    key: str
    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    resamples: int


def compute_metrics(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    seed: int = 0,
    only: str | None = None,
) -> Metrics:
    """All headline metrics, or `only` one of them.

    One label an image: accuracy, top5 where present are more than five classes, f1 (the mean over
    classes that have images). Several: mean_precision, f1 (at a probability of 0.5) and exact. In
    both cases ece, nll and brier.
    """
    of_labels = multi_label_statistics if multi_label else single_label_statistics
    statistics = of_labels(logits, targets)
    key = next(iter(statistics))
    if only is None:
        statistics |= calibration_statistics(logits, targets, multi_label=multi_label)
    else:
        statistics = {only: statistics[only]}
    once = np.ones((1, len(logits)))
    values = {name: float(statistic(once)[0]) for name, statistic in statistics.items()}
    ranked = logits.size if "mean_precision" in statistics else 1
    resamples = int(np.clip(MAX_RANKED // ranked, MIN_RESAMPLES, RESAMPLES))
    found = bootstrap_intervals(
        list(statistics.values()), len(logits), resamples=resamples, seed=seed
    )
    intervals = dict(zip(statistics, found, strict=True)) if found else {}
    for name in SHARES & intervals.keys():
        intervals[name] = wilson_interval(round(values[name] * len(logits)), len(logits))
    return Metrics(key, values, intervals, resamples)


def single_label_statistics(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"]
) -> dict[str, Statistic]:
    truth, predicted = targets.argmax(axis=1), logits.argmax(axis=1)
    statistics = {"accuracy": mean_statistic(predicted == truth)}
    if logits.shape[1] > 5:
        best = np.argpartition(-logits, 5, axis=1)[:, :5]
        statistics["top5"] = mean_statistic((best == truth[:, None]).any(axis=1))
    return statistics | {"f1": f1_statistic(truth, predicted, logits.shape[1])}


def multi_label_statistics(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"]
) -> dict[str, Statistic]:
    present, predicted = targets > 0.5, logits > 0
    return {
        "mean_precision": mean_precision_statistic(logits, present),
        "f1": multi_label_f1_statistic(present, predicted),
        "exact": mean_statistic((present == predicted).all(axis=1)),
    }


def calibration_statistics(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], *, multi_label: bool
) -> dict[str, Statistic]:
    confidence, right = confidences(logits, targets, multi_label=multi_label)
    return {
        "ece": ece_statistic(confidence, right),
        "nll": mean_statistic(losses(logits, targets, multi_label=multi_label)),
        "brier": mean_statistic(brier_scores(logits, targets, multi_label=multi_label)),
    }


def ece_statistic(confidence: Float[np.ndarray, "..."], right: NDArray[np.bool_]) -> Statistic:
    """Of each image and bin the sum of right - confidence: the error is a sum of these."""
    places = bin_indices(confidence).reshape(len(confidence), -1)
    gaps = (right - confidence).reshape(len(confidence), -1)
    each = np.zeros((len(confidence), BINS))
    np.add.at(each, (np.arange(len(confidence))[:, None], places), gaps)
    return lambda counts: abs(counts @ each).sum(axis=1) / confidence.size


def f1_statistic(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Statistic:
    """The mean over classes that have images of 2 right / (predicted + present)."""
    count = len(truth)

    def one_hot(rows: NDArray[np.bool_], columns: NDArray[np.int64]) -> sparse.csr_array:
        places = np.flatnonzero(rows)
        values = np.ones(len(places))
        return sparse.csr_array((values, (columns[rows], places)), shape=(classes, count))

    every = np.ones(count, dtype=np.bool_)
    known, found = one_hot(every, truth), one_hot(every, predicted)
    right = one_hot(truth == predicted, truth)
    return lambda counts: mean_f1((known @ counts.T).T, (found @ counts.T).T, (right @ counts.T).T)


def multi_label_f1_statistic(present: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> Statistic:
    both = (present & predicted).astype(np.float64)
    one, other = present.astype(np.float64), predicted.astype(np.float64)
    return lambda counts: mean_f1(counts @ one, counts @ other, counts @ both)


def mean_f1(
    present: Float[np.ndarray, "b K"],
    predicted: Float[np.ndarray, "b K"],
    right: Float[np.ndarray, "b K"],
) -> Float[np.ndarray, " b"]:
    f1 = 2 * right / np.maximum(present + predicted, 1)
    known = present > 0
    return np.where(known, f1, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)


def mean_precision_statistic(
    logits: Float[np.ndarray, "N K"], present: NDArray[np.bool_]
) -> Statistic:
    """The mean over classes that have images of average precision: of each image of the class, the
    share of the class among all that rank as high or higher."""
    order = np.argsort(-logits, axis=0, kind="stable")
    ends = []  # of each place in the order the last one that has the same logit
    for column in range(logits.shape[1]):
        ranked = logits[order[:, column], column]
        ends.append(len(ranked) - 1 - np.searchsorted(ranked[::-1], ranked, side="left"))

    def statistic(counts: Counts) -> Float[np.ndarray, " b"]:
        total, classes = np.zeros(len(counts)), np.zeros(len(counts))
        for column, last in enumerate(ends):
            drawn = counts[:, order[:, column]]
            hits = drawn * present[order[:, column], column]
            before = np.maximum(np.cumsum(drawn, axis=1), 1)
            precision = (np.cumsum(hits, axis=1) / before)[:, last]
            images = hits.sum(axis=1)
            total += (hits * precision).sum(axis=1) / np.maximum(images, 1)
            classes += images > 0
        return total / np.maximum(classes, 1)

    return statistic
