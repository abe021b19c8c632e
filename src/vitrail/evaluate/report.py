"""What there is to say of a training run: scores of each class, confusions, the worst mistakes."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn import metrics as sk

from vitrail.data.findings import Findings
from vitrail.data.images import BadImage, decode
from vitrail.data.likeness import TINY
from vitrail.data.source import Source
from vitrail.evaluate.classify import Scores, confusion, score

THUMBNAIL = 192  # pixels of the longer side: enough to see what was mistaken for what
MOST_MARKED = 5  # classes that are pointed out as the worst


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run in plain values: how it was trained, how it went, and what its best weights say of the
    images of one part. `logits` and `targets` are (N, K); `indices` (N,) are places in `source`."""

    title: str
    recipe: Mapping[str, Any]
    facts: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    labels: tuple[str, ...]
    logits: NDArray[np.float32]
    targets: NDArray[np.float32]
    indices: NDArray[np.int64]
    source: Source
    part: str
    findings: Findings | None
    broken: Mapping[str, str]

    @property
    def images(self) -> int:
        return len(self.logits)

    @cached_property
    def several(self) -> bool:
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
        return score(self.answers, self.targets, several=self.several)

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
        if self.several:
            return np.flatnonzero(wrong_labels(self.answers, self.targets).any(axis=1))
        return np.flatnonzero(self.guess != self.truth)

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """(K, K), for one label an image."""
        return confusion(self.truth, self.guess, len(self.labels))


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
class Mistake:
    """An image of the source, its labels and what was said, each with the model's probability."""

    index: int
    truth: tuple[tuple[str, float], ...]
    said: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Confused:
    """How many images of one class are said to be another, and which share of that class."""

    truth: str
    said: str
    images: int
    share: float


def class_scores(report: Report) -> list[ClassScore]:
    """In the order of the classes."""
    count = len(report.labels)
    truth: NDArray[Any] = report.targets > 0.5 if report.several else report.truth
    guess: NDArray[Any] = report.answers > 0 if report.several else report.guess
    precision, recall, f1, images = sk.precision_recall_fscore_support(
        truth, guess, labels=np.arange(count), zero_division=np.nan
    )
    average = average_precision(report) if report.several else np.full(count, np.nan)
    worst = lowest(average if report.several else f1, images > 0)
    return [
        ClassScore(
            label=report.labels[place],
            precision=float(precision[place]),
            recall=float(recall[place]),
            f1=float(f1[place]),
            average_precision=float(average[place]),
            images=int(images[place]),
            marked=place in worst,
        )
        for place in range(count)
    ]


def average_precision(report: Report) -> NDArray[np.float64]:
    """(K,), NaN for a class without images."""
    present = np.flatnonzero(report.targets.any(axis=0))
    values = np.full(len(report.labels), np.nan)
    values[present] = sk.average_precision_score(
        report.targets[:, present], report.answers[:, present], average=None
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


def most_confused(report: Report, most: int) -> list[Confused]:
    """The most frequent confusions."""
    matrix = report.confusion.copy()
    images = matrix.sum(axis=1)
    np.fill_diagonal(matrix, 0)
    order = np.argsort(-matrix, axis=None, kind="stable")[:most]
    pairs = zip(*np.unravel_index(order, matrix.shape), strict=True)
    return [
        Confused(
            report.labels[truth],
            report.labels[said],
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


def mistakes(report: Report) -> Iterator[Mistake]:
    """All wrong answers, the most confident first."""
    rows = report.wrong
    answers, targets = report.answers[rows], report.targets[rows]
    if report.several:
        doubt = -np.where(wrong_labels(answers, targets), abs(answers), 0).max(axis=1, initial=0)
    else:
        doubt = np.exp(answers - answers.max(axis=1, keepdims=True)).sum(axis=1, dtype=np.float64)
    for place in np.argsort(doubt, kind="stable"):
        row = rows[place]
        chances = probabilities(report.answers[row], several=report.several)
        truth = np.flatnonzero(report.targets[row] > 0.5)
        said = np.flatnonzero(report.answers[row] > 0) if report.several else report.guess[[row]]
        yield Mistake(
            index=int(report.indices[row]),
            truth=named(report.labels, chances, truth),
            said=named(report.labels, chances, said),
        )


def probabilities(answer: NDArray[np.float32], *, several: bool) -> NDArray[np.float64]:
    """(K,): each label for itself, or all of them together 1.

    >>> probabilities(np.zeros(4, dtype=np.float32), several=False).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    wide = answer.astype(np.float64)
    if several:
        return np.asarray(0.5 * (1 + np.tanh(wide / 2)))
    weights = np.exp(wide - wide.max())
    return np.asarray(weights / weights.sum())


def named(
    labels: tuple[str, ...], chances: NDArray[np.float64], places: NDArray[np.int64]
) -> tuple[tuple[str, float], ...]:
    """Labels with their probabilities, the most probable first."""
    ranked = places[np.argsort(-chances[places], kind="stable")]
    return tuple((labels[place], float(chances[place])) for place in ranked)


def thumbnail(source: Source, index: int) -> str | None:
    """A small picture as a data URI; None where the image cannot be read."""
    try:
        raw = source.read(index)
        if isinstance(raw, bytes):
            raw = decode(raw, source.name(index), at_least=(THUMBNAIL, THUMBNAIL))
    except (BadImage, OSError):
        return None
    small = Image.fromarray(raw[..., 0] if raw.shape[2:] == (1,) else raw)
    tiny = min(small.size) < TINY  # small enough to be shown as it is
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
    kind, file = "png" if tiny else "jpeg", BytesIO()
    small.convert("L" if small.mode == "L" else "RGB").save(file, kind, quality=80)
    return f"data:image/{kind};base64,{b64encode(file.getvalue()).decode()}"
