"""Scores of a classifier from its logits and the truth: overall, by class, and confusions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn import metrics as sk

from vitrail.core.outputs import Outputs

MAX_MARKED = 5  # classes that are pointed out as the worst


@dataclass(frozen=True)
class Scores:
    """One label an image: `accuracy` and `top5`; several: `mean_precision`, the mean over classes
    of average precision. `key` names the one that chooses between checkpoints."""

    key: str
    values: dict[str, float]

    @property
    def best(self) -> float:
        return self.values[self.key]


@dataclass(frozen=True)
class ClassMetrics:
    """One class: NaN where a number would be a division by zero. `average_precision` is of several
    labels an image; `marked`: one of the worst."""

    label: str
    precision: float
    recall: float
    f1: float
    average_precision: float
    images: int
    marked: bool


@dataclass(frozen=True)
class Confusion:
    """How many images of one class are predicted as another, and which share of that class."""

    truth: str
    predicted: str
    images: int
    share: float


def score(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], *, multi_label: bool
) -> Scores:
    """
    >>> score(np.eye(3), np.eye(3), multi_label=False).values
    {'accuracy': 1.0}
    """
    if multi_label:
        present = targets.any(axis=0)
        # scikit-learn refuses what is not finite: NaN ranks last
        ranks = np.nan_to_num(logits, nan=float(np.finfo(np.float32).min))
        average = sk.average_precision_score(
            targets[:, present], ranks[:, present], average="macro"
        )
        exact = ((logits > 0) == (targets > 0.5)).all(axis=1).mean()
        return Scores("mean_precision", {"mean_precision": float(average), "exact": float(exact)})
    hits = LabelScorer(logits.shape[1]).hits(logits, targets)
    return Scores("accuracy", {name: number / len(logits) for name, number in hits.items()})


class LabelScorer:
    """Scores of one label an image as counts, which can be added up batch by batch.

    >>> LabelScorer(3).hits(np.eye(3), np.eye(3))
    {'accuracy': 3}
    """

    metric = "accuracy"

    def __init__(self, classes: int) -> None:
        self.names: tuple[str, ...] = ("accuracy", "top5") if classes > 5 else ("accuracy",)

    def hits(
        self, logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"]
    ) -> dict[str, int]:
        """For how many images the label is the first output, and among the first five."""
        truth = targets.argmax(axis=1)
        found = {"accuracy": int((logits.argmax(axis=1) == truth).sum())}
        if "top5" in self.names:
            best = np.argpartition(-logits, 5, axis=1)[:, :5]
            found["top5"] = int((best == truth[:, None]).any(axis=1).sum())
        return found

    def __call__(
        self, logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"]
    ) -> tuple[str, dict[str, float]]:
        scores = score(logits, targets, multi_label=False)
        return scores.key, scores.values


def score_outputs(outputs: Outputs) -> Scores | None:
    """None where no image has a label."""
    if not outputs.targets.any():
        return None
    return score(outputs.finite_logits, outputs.targets, multi_label=outputs.multi_label)


def confusion_matrix(outputs: Outputs) -> NDArray[np.int64]:
    """(K, K), for one label an image: rows are the truth, columns the prediction."""
    classes = len(outputs.labels)
    cells = np.bincount(outputs.truth * classes + outputs.predicted, minlength=classes**2)
    return cells.reshape(classes, classes)


def class_metrics(outputs: Outputs) -> list[ClassMetrics]:
    """In the order of the classes."""
    count, multi_label = len(outputs.labels), outputs.multi_label
    truth: NDArray[Any] = outputs.targets > 0.5 if multi_label else outputs.truth
    predicted: NDArray[Any] = outputs.finite_logits > 0 if multi_label else outputs.predicted
    precision, recall, f1, images = sk.precision_recall_fscore_support(
        truth, predicted, labels=np.arange(count), zero_division=np.nan
    )
    average = average_precision(outputs) if multi_label else np.full(count, np.nan)
    worst = lowest(average if multi_label else f1, images > 0)
    return [
        ClassMetrics(
            label=outputs.labels[place],
            precision=float(precision[place]),
            recall=float(recall[place]),
            f1=float(f1[place]),
            average_precision=float(average[place]),
            images=int(images[place]),
            marked=place in worst,
        )
        for place in range(count)
    ]


def average_precision(outputs: Outputs) -> NDArray[np.float64]:
    """(K,), NaN for a class without images."""
    present = np.flatnonzero(outputs.targets.any(axis=0))
    values = np.full(len(outputs.labels), np.nan)
    values[present] = sk.average_precision_score(
        outputs.targets[:, present], outputs.finite_logits[:, present], average=None
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
    most = min(MAX_MARKED, -(-len(values) // 4), int(candidates.sum()))
    limit = np.sort(values[candidates])[most - 1]
    return set(np.flatnonzero(candidates & (values <= limit)).tolist())


def top_confusions(outputs: Outputs, most: int) -> list[Confusion]:
    """The most frequent confusions, for one label an image."""
    matrix = confusion_matrix(outputs)
    images = matrix.sum(axis=1)
    np.fill_diagonal(matrix, 0)
    order = np.argsort(-matrix, axis=None, kind="stable")[:most]
    pairs = zip(*np.unravel_index(order, matrix.shape), strict=True)
    return [
        Confusion(
            outputs.labels[truth],
            outputs.labels[predicted],
            int(matrix[truth, predicted]),
            float(matrix[truth, predicted] / images[truth]),
        )
        for truth, predicted in pairs
        if matrix[truth, predicted]
    ]
