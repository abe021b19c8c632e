"""How often two outputs of a model give an image the same labels."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.models.model import Model

# One label: the class with the largest value. Several: each label above one half. None: features,
# or a single class, which every image has.
LabelKind = Literal["one", "several"] | None


def label_kind(model: Model, output: str) -> LabelKind:
    """Which labels an output of a model means."""
    if output != "logits" or model.config.num_classes == 0:
        return None
    if model.passport.multi_label:
        return "several"
    return "one" if model.config.num_classes > 1 else None


def share_of_same_labels(
    before: NDArray[np.float32], after: NDArray[np.float32], kind: LabelKind
) -> float | None:
    """Of images with one label, those whose label is the same. Where an image may have several, of
    the labels that it has before or after, those that it has both times; None where it has none.

    >>> before, after = np.float32([[1, -1], [2, 1]]), np.float32([[3, -2], [1, 2]])
    >>> share_of_same_labels(before, after, "one")
    0.5
    >>> share_of_same_labels(before, after, "several")
    1.0
    """
    if kind is None:
        return None
    if kind == "one":
        return float((before.argmax(axis=1) == after.argmax(axis=1)).mean())
    was, now = before > 0, after > 0  # logits: a sigmoid above one half
    either = int((was | now).sum())
    return int((was & now).sum()) / either if either else None
