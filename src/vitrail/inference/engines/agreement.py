"""Whether an engine computes what PyTorch computes: the same values, and the same labels."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.inference.engines.runner import Plan

TOLERANCE = 1e-4  # of the largest value: ten times what float32 loses in the deepest models


@dataclass(frozen=True)
class Agreement:
    """The largest difference to eager as a share of its largest value, and the share of images with
    the same label."""

    difference: float
    labels: float
    tolerance: float = TOLERANCE

    @property
    def is_close(self) -> bool:
        return self.difference <= self.tolerance and self.labels == 1.0

    def __str__(self) -> str:
        return f"difference {self.difference:.1e}, {self.labels:.0%} of labels agree"


def compare(expected: NDArray[np.float32], found: NDArray[np.float32]) -> Agreement:
    """
    >>> compare(np.float32([[1, 2]]), np.float32([[1, 2]])).is_close
    True
    >>> str(compare(np.float32([[1, 2]]), np.float32([[3, 2]])))
    'difference 1.0e+00, 0% of labels agree'
    """
    if expected.shape != found.shape or not np.isfinite(found).all():
        return Agreement(float("inf"), 0.0)
    largest = float(np.abs(expected).max(initial=0.0)) or 1.0
    difference = float(np.abs(expected - found).max(initial=0.0)) / largest
    return Agreement(difference, share_of_labels(expected, found, TOLERANCE * largest))


def share_of_labels(
    expected: NDArray[np.float32], found: NDArray[np.float32], tolerance: float
) -> float:
    """How often the largest value is at the same place, or at one that is as large to rounding."""
    rows, others = expected.reshape(len(expected), -1), found.reshape(len(found), -1)
    chosen = np.take_along_axis(rows, others.argmax(axis=1)[:, None], axis=1)[:, 0]
    return float((chosen >= rows.max(axis=1) - tolerance).mean())


def sample_images(plan: Plan) -> Float[Tensor, "B C H W"]:
    """Images as a model sees them: a few coarse shapes, with fine noise, always the same."""
    draw = torch.Generator().manual_seed(0)
    batch, channels, height, width = plan.shape
    coarse = torch.randn(batch, channels, 5, 5, generator=draw)
    fine = torch.randn(batch, channels, height, width, generator=draw)
    return F.interpolate(coarse, (height, width), mode="bilinear") + 0.2 * fine
