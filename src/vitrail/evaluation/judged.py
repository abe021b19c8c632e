"""What a model says of labelled images, and what follows from it: scores of each class, and which
classes are taken for which."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics as sk

from vitrail.data.source import Source
from vitrail.evaluation.answers import Answers
from vitrail.evaluation.classify import Scores, confusion, score

MOST_MARKED = 5  # classes that are pointed out as the worst


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a model says of the images of one part. `logits` and `targets` are (N, K); `indices`
    (N,) are places in `source`; `broken` says by name why other images cannot be read."""

    labels: tuple[str, ...]
    logits: NDArray[np.float32]
    targets: NDArray[np.float32]
    indices: NDArray[np.int64]
    source: Source
    part: str
    broken: Mapping[str, str]

    @property
    def images(self) -> int:
        return len(self.logits)

    @cached_property
    def multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        known = self.source.targets
        rows = known is not None and known.ndim == 2
        return rows or bool((self.targets.sum(axis=1) != 1).any())

    @cached_property
    def not_numbers(self) -> int:
        """Images for which the model's answer is not finite, as after training went astray."""
        return int((~np.isfinite(self.logits).all(axis=1)).sum())

    @cached_property
    def answers(self) -> NDArray[np.float32]:
        """The logits, or zeros where they are not numbers."""
        return np.nan_to_num(self.logits) if self.not_numbers else self.logits

    @cached_property
    def scores(self) -> Scores | None:
        """None where there is nothing to compare with."""
        if not self.targets.any():
            return None
        return score(self.answers, self.targets, multi_label=self.multi_label)

    @cached_property
    def truth(self) -> NDArray[np.int64]:
        """(N,) for one label an image."""
        return self.targets.argmax(axis=1)

    @cached_property
    def guess(self) -> NDArray[np.int64]:
        """(N,) for one label an image."""
        return self.answers.argmax(axis=1)

    @cached_property
    def wrong(self) -> NDArray[np.int64]:
        """Rows that are answered wrongly; of several labels, those with any that is."""
        if self.multi_label:
            return np.flatnonzero(wrong_labels(self.answers, self.targets).any(axis=1))
        return np.flatnonzero(self.guess != self.truth)

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """(K, K), for one label an image."""
        return confusion(self.truth, self.guess, len(self.labels))


def judged_answers(answers: Answers, source: Source, part: str) -> Judged:
    """What follows from the answers of a model to the images of `source`."""
    return Judged(
        labels=source.labels,
        logits=answers.logits,
        targets=answers.targets,
        indices=answers.indices,
        source=source,
        part=part,
        broken=answers.broken,
    )


@dataclass(frozen=True)
class ClassScore:
    """One class: NaN where a number would be a division by zero. `average_precision` is of several
    labels an image; `marked` tells one of the worst."""

    label: str
    precision: float
    recall: float
    f1: float
    average_precision: float
    images: int
    marked: bool


@dataclass(frozen=True)
class Confused:
    """How many images of one class are said to be another, and which share of that class."""

    truth: str
    said: str
    images: int
    share: float


def class_scores(judged: Judged) -> list[ClassScore]:
    """In the order of the classes."""
    count = len(judged.labels)
    truth: NDArray[Any] = judged.targets > 0.5 if judged.multi_label else judged.truth
    guess: NDArray[Any] = judged.answers > 0 if judged.multi_label else judged.guess
    precision, recall, f1, images = sk.precision_recall_fscore_support(
        truth, guess, labels=np.arange(count), zero_division=np.nan
    )
    average = average_precision(judged) if judged.multi_label else np.full(count, np.nan)
    worst = lowest(average if judged.multi_label else f1, images > 0)
    return [
        ClassScore(
            label=judged.labels[place],
            precision=float(precision[place]),
            recall=float(recall[place]),
            f1=float(f1[place]),
            average_precision=float(average[place]),
            images=int(images[place]),
            marked=place in worst,
        )
        for place in range(count)
    ]


def average_precision(judged: Judged) -> NDArray[np.float64]:
    """(K,), NaN for a class without images."""
    present = np.flatnonzero(judged.targets.any(axis=0))
    values = np.full(len(judged.labels), np.nan)
    values[present] = sk.average_precision_score(
        judged.targets[:, present], judged.answers[:, present], average=None
    )
    return values


def lowest(values: NDArray[np.float64], known: NDArray[np.bool_]) -> set[int]:
    """Places of the few lowest values, with those as low: a quarter, and none that is perfect.

    >>> sorted(lowest(np.array([0.5, 1, 0.9, 0.4, 1, 1, 0.5, 0]), np.arange(8) < 7))
    [0, 3, 6]
    """
    candidates = known & (values < 1)
    if not candidates.any():
        return set()
    most = min(MOST_MARKED, -(-len(values) // 4), int(candidates.sum()))
    limit = np.sort(values[candidates])[most - 1]
    return set(np.flatnonzero(candidates & (values <= limit)).tolist())


def most_confused(judged: Judged, most: int) -> list[Confused]:
    """The most frequent confusions."""
    matrix = judged.confusion.copy()
    images = matrix.sum(axis=1)
    np.fill_diagonal(matrix, 0)
    order = np.argsort(-matrix, axis=None, kind="stable")[:most]
    pairs = zip(*np.unravel_index(order, matrix.shape), strict=True)
    return [
        Confused(
            judged.labels[truth],
            judged.labels[said],
            int(matrix[truth, said]),
            float(matrix[truth, said] / images[truth]),
        )
        for truth, said in pairs
        if matrix[truth, said]
    ]


def wrong_labels(answers: NDArray[np.float32], targets: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(N, K): said though it is not there, or missed."""
    wrong: NDArray[np.bool_] = (answers > 0) != (targets > 0.5)
    return wrong
