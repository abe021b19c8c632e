"""The images that a model gets wrong: the most confident first, or the least likely truth first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.core.outputs import Outputs
from vitrail.evaluation.calibration import losses

Order = Literal["confidence", "loss"]


@dataclass(frozen=True)
class LabelledPrediction:
    """An image of the source, its labels and the predicted ones, each with the model's
    probability, the most probable first."""

    index: int
    truth: tuple[tuple[str, float], ...]
    predicted: tuple[tuple[str, float], ...]


def mistakes(outputs: Outputs, order: Order = "confidence") -> Iterator[LabelledPrediction]:
    """All wrong predictions: those with the highest confidence first, or with the highest loss."""
    rows = outputs.wrong
    logits, targets = outputs.finite_logits[rows], outputs.targets[rows]
    if order == "loss":
        key = -losses(logits, targets, multi_label=outputs.multi_label)
    elif outputs.multi_label:
        key = -np.where(outputs.label_errors[rows], abs(logits), 0).max(axis=1, initial=0)
    else:
        key = np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, dtype=np.float64)
    for place in np.argsort(key, kind="stable"):
        yield labelled_prediction(outputs, int(rows[place]))


def labelled_prediction(outputs: Outputs, row: int) -> LabelledPrediction:
    """The prediction for one image, right or wrong."""
    logits = outputs.finite_logits[row]
    chances = probabilities(logits, multi_label=outputs.multi_label)
    truth = np.flatnonzero(outputs.targets[row] > 0.5)
    predicted = np.flatnonzero(logits > 0) if outputs.multi_label else outputs.predicted[[row]]

    def with_probabilities(places: NDArray[np.int64]) -> tuple[tuple[str, float], ...]:
        ranked = places[np.argsort(-chances[places], kind="stable")]
        return tuple((outputs.labels[place], float(chances[place])) for place in ranked)

    index = int(outputs.indices[row])
    return LabelledPrediction(index, with_probabilities(truth), with_probabilities(predicted))


def probabilities(logits: NDArray[np.float32], *, multi_label: bool) -> NDArray[np.float64]:
    """(K,): a sigmoid of each, or the softmax.

    >>> probabilities(np.zeros(4, dtype=np.float32), multi_label=False).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    wide = logits.astype(np.float64)
    if multi_label:
        return np.asarray(0.5 * (1 + np.tanh(wide / 2)))
    weights = np.exp(wide - wide.max())
    return np.asarray(weights / weights.sum())
