"""What an evaluation adds up over images, batches and processes: hits of each score, and a loss.

Every sum is of whole numbers below 2^53, losses in units of 2^-24, so that it does not depend on
who computed which image, nor in which order: one process and 1,024 give the same score, and no
process ever holds the outputs of all images.
"""

import math
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from vitrail.training.progress import Values

UNIT = 2.0**24  # a loss of 1
MAX_LOSS = 2.0**16  # of one image: what is larger counts as much
LOSS, IMAGES, NOT_FINITE = "val_loss", "images", "not finite"


@runtime_checkable
class CountedScorer(Protocol):
    """A scorer whose scores are shares of images: `metric` chooses the weights, and `hits` says for
    how many images each score holds."""

    metric: str
    names: tuple[str, ...]

    def hits(
        self, logits: Float[np.ndarray, "S K"], targets: Float[np.ndarray, "S K"]
    ) -> dict[str, int]: ...


class Counts:
    """Sums over the images of one process, by name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.sums = dict.fromkeys((*names, LOSS, NOT_FINITE, IMAGES), 0)

    def add(
        self, hits: dict[str, int], losses: Float[np.ndarray, " S"] | None, images: int
    ) -> None:
        """Those of a batch.

        >>> counts = Counts(("accuracy",))
        >>> counts.add({"accuracy": 3}, np.array([0.5, 1.5, 0.0, 0.0]), 4)
        >>> counts.values()
        {'accuracy': 0.75, 'val_loss': 0.5}
        """
        for name, number in hits.items():
            self.sums[name] += int(number)
        if losses is not None:
            finite = np.isfinite(losses)
            units = np.rint(losses[finite].astype(np.float64).clip(0, MAX_LOSS) * UNIT)
            self.sums[LOSS] += int(units.sum())
            self.sums[NOT_FINITE] += int((~finite).sum())
        self.sums[IMAGES] += images

    def values(self) -> Values:
        """The shares, and the mean loss; NaN where a loss was not finite."""
        images = max(self.sums[IMAGES], 1)
        shares = {
            name: number / images
            for name, number in self.sums.items()
            if name not in (LOSS, NOT_FINITE, IMAGES)
        }
        loss = math.nan if self.sums[NOT_FINITE] else self.sums[LOSS] / UNIT / images
        return {**shares, LOSS: loss}
