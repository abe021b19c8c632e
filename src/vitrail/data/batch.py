"""What one step reads: pixels as workers hand them over, and a batch as the model gets it."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage
from vitrail.data.source import Source


@dataclass(frozen=True)
class Loaded:
    """What a worker made of the keys of a batch: the pixels of those that could be read as one
    tensor, because every tensor on its way between processes is an open file; the places of their
    keys among all; and what went wrong. Images of different sizes have their `shapes`, and their
    pixels one after another."""

    images: Shaped[Tensor, "B C H W"] | Shaped[Tensor, "pixels"]
    rows: list[int]
    shapes: list[torch.Size] | None = None
    broken: tuple[BadImage, ...] = ()
    mistake: UserError | None = None

    def pin_memory(self) -> "Loaded":
        """In memory that a GPU copies from while the processor goes on; called by torch's thread
        for that."""
        return replace(self, images=self.images.pin_memory())

    def to(self, device: torch.device) -> "Loaded":
        """On its way to a device, without waiting until it is there."""
        if device.type == "cpu":
            return self
        return replace(self, images=self.images.to(device, non_blocking=True))

    def each(self) -> list[Shaped[Tensor, "C _ _"]]:
        """Every image by itself."""
        if self.shapes is None:
            return list(self.images)
        parts = torch.split(self.images, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class Batch:
    """Images, their targets, which images of the source they are, in which round through it, and
    which were broken. Of the `planned` images of a step, those of all processes and the broken ones
    among them, these have their `places`. Targets are class numbers (B,), or rows (B, K) where an
    image may have several labels; `dense_targets` makes rows of them where they are mixed."""

    images: Any  # Float[Tensor, "B C H W"], or at native sizes an ImageList
    targets: Shaped[Tensor, " B"] | Shaped[Tensor, "B K"]
    indices: NDArray[np.int64]
    broken: tuple[BadImage, ...] = ()
    epoch: int = 0
    places: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    planned: int = 0

    def partners(self) -> Int64[Tensor, " B"]:
        """Which row each image is mixed with: the one that stands as far from the other end of the
        step's images, or itself where that one is broken."""
        row_at = np.full(self.planned, -1)
        row_at[self.places] = np.arange(len(self.places))
        other = row_at[self.planned - 1 - self.places]
        return torch.from_numpy(np.where(other < 0, np.arange(len(other)), other))

    def parts(self, count: int) -> list[int]:
        """How many of the images are in each of `count` parts of the step: the same parts whoever
        computes them, so that a process may have none of one."""
        part = self.places * count // max(self.planned, 1)
        return np.bincount(part, minlength=count).tolist()


def targets_of(
    source: Source, indices: NDArray[np.int64], device: torch.device | None = None
) -> Shaped[Tensor, " B"] | Shaped[Tensor, "B K"]:
    """Class numbers, or rows of zeros and ones as the source has them; no labels, no columns."""
    if source.targets is None:
        return torch.zeros(len(indices), 0, device=device)
    chosen = np.asarray(source.targets[indices])
    if chosen.ndim == 1:
        chosen = chosen.astype(np.int64)
    return torch.from_numpy(chosen).to(device or "cpu", non_blocking=True)


def dense_targets(
    targets: Shaped[Tensor, " B"] | Shaped[Tensor, "B K"], classes: int
) -> Float[Tensor, "B K"]:
    """Rows of zeros and ones, where the targets are: a batch of class numbers is a few bytes on its
    way to a device, and rows of 21,841 classes are not.

    >>> dense_targets(torch.tensor([1, 0]), 2)
    tensor([[0., 1.],
            [1., 0.]])
    """
    if targets.ndim == 2:
        return targets.float()
    rows = torch.zeros(len(targets), classes, device=targets.device)
    return rows.scatter_(1, targets[:, None], 1.0)
