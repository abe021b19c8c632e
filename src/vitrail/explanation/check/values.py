"""Whether two tensors are the same, and in which order their rows are."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from torch import Tensor

# How far apart the same value may come out, as a share of the largest: constants of a person's
# code may be rounded to float32.
NEAR = 1e-6
NEAR_FLOAT32 = 1e-4

Rows: TypeAlias = Literal["images first", "tokens first"]


def same(theirs: Tensor, ours: Tensor) -> bool:
    """Equal up to rounding."""
    if theirs.shape != ours.shape:
        return False
    near = NEAR if ours.element_size() == 8 else NEAR_FLOAT32
    return apart(theirs, ours) <= near


def apart(theirs: Tensor, ours: Tensor) -> float:
    """The largest difference as a share of the largest value."""
    if not ours.numel():
        return 0.0
    largest = float(ours.abs().max())
    return float((theirs - ours).abs().max()) / max(largest, 1e-30)


def arrange(theirs: Tensor, batch: int, rows: Rows) -> Tensor:
    """The rows of a layer as (images, tokens, width)."""
    width = theirs.shape[-1]
    if rows == "images first":
        return theirs.reshape(batch, -1, width)
    return theirs.reshape(-1, batch, width).transpose(0, 1)


def match_rows(theirs: Tensor, ours: Tensor) -> Rows | None:
    """The order of rows in which a layer read `ours`, if it did."""
    if theirs.numel() != ours.numel() or theirs.shape[-1] != ours.shape[-1]:
        return None
    orders: Iterator[Rows] = iter(("images first", "tokens first"))
    return next((rows for rows in orders if same(arrange(theirs, len(ours), rows), ours)), None)
