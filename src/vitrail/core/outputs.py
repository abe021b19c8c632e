"""What a model outputs for the labelled images of one split: one record for every room."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """`logits` and `targets` are (N, K), `labels` the names of the K classes; `indices` (N,) are
    the places of the images in their source. `multi_label`: an image may have several labels, or
    none. `broken` gives the reason for each image that could not be read, by name."""

    labels: tuple[str, ...]
    logits: NDArray[np.float32]
    targets: NDArray[np.float32]
    indices: NDArray[np.int64]
    multi_label: bool = False
    split: str = "test"
    broken: Mapping[str, str] = field(default_factory=dict)

    @property
    def images(self) -> int:
        return len(self.logits)

    @cached_property
    def nonfinite(self) -> int:
        """Images for which an output is NaN or infinite, as after training diverged."""
        return int((~np.isfinite(self.logits).all(axis=1)).sum())

    @cached_property
    def finite_logits(self) -> NDArray[np.float32]:
        """(N, K): the logits, with zeros for NaN."""
        return np.nan_to_num(self.logits) if self.nonfinite else self.logits

    @cached_property
    def truth(self) -> NDArray[np.int64]:
        """(N,): the class of each image, for one label an image."""
        return self.targets.argmax(axis=1)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(N,): the class with the highest logit, for one label an image."""
        return self.finite_logits.argmax(axis=1)

    @cached_property
    def wrong(self) -> NDArray[np.int64]:
        """Rows that are predicted wrongly; of several labels, those with any wrong label."""
        if self.multi_label:
            return np.flatnonzero(self.label_errors.any(axis=1))
        return np.flatnonzero(self.predicted != self.truth)

    @cached_property
    def label_errors(self) -> NDArray[np.bool_]:
        """(N, K): labels that are predicted though absent, or missed."""
        errors: NDArray[np.bool_] = (self.finite_logits > 0) != (self.targets > 0.5)
        return errors
