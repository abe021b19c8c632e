"""Scores of a classifier from its logits and the truth."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn import metrics as sk


@dataclass(frozen=True)
class Scores:
    """One label an image: `accuracy` and `top5`; several: `mean_precision`, the mean over classes
    of average precision. `key` names the one that chooses between checkpoints."""

    key: str
    values: dict[str, float]

    @property
    def best(self) -> float:
        return self.values[self.key]


def score(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], *, multi_label: bool
) -> Scores:
    if multi_label:
        present = targets.any(axis=0)
        # scikit-learn refuses what is not finite: NaN ranks last
        ranks = np.nan_to_num(logits, nan=float(np.finfo(np.float32).min))
        average = sk.average_precision_score(
            targets[:, present], ranks[:, present], average="macro"
        )
        exact = ((logits > 0) == (targets > 0.5)).all(axis=1).mean()
        return Scores("mean_precision", {"mean_precision": float(average), "exact": float(exact)})
    truth = targets.argmax(axis=1)
    values = {"accuracy": float((logits.argmax(axis=1) == truth).mean())}
    if logits.shape[1] > 5:
        best = np.argpartition(-logits, 5, axis=1)[:, :5]
        values["top5"] = float((best == truth[:, None]).any(axis=1).mean())
    return Scores("accuracy", values)


def confusion(
    truth: NDArray[np.int64], guess: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """Rows are the truth, columns what was said."""
    cells = np.bincount(truth * classes + guess, minlength=classes**2)
    return cells.reshape(classes, classes)
