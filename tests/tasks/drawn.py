"""Outputs at random, and a source whose images are drawn when they are read."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.pages.html import NASTY
from vitrail.core.outputs import Outputs
from vitrail.data.images import BadImage
from vitrail.data.source import Raw


class Drawn:
    """Images of one colour each; those in `gone` cannot be read."""

    uniform = True

    def __init__(
        self, labels: tuple[str, ...], targets: NDArray[Any] | None, gone: tuple[int, ...] = ()
    ) -> None:
        self.labels, self.targets, self.gone = labels, targets, gone

    def __len__(self) -> int:
        return 10_000

    def name(self, index: int) -> str:
        return f"photos/{NASTY}/{index}.png"

    def read(self, index: int) -> Raw:
        if index in self.gone:
            raise BadImage(self.name(index), "is gone")
        return np.full((80, 90, 3), index % 256, dtype=np.uint8)


def random_outputs(
    images: int = 200, classes: int = 5, *, several: bool = False, skill: float = 2.0
) -> Outputs:
    """Random outputs that are right now and then; the last class has no image."""
    random = np.random.default_rng(images + classes)
    truth = random.integers(0, classes - 1, images)
    targets = np.eye(classes, dtype=np.float32)[truth]
    if several:
        targets[:, :-1] += random.random((images, classes - 1)) < 0.3
        targets = np.minimum(targets, 1)
    logits = random.normal(size=(images, classes)) + skill * targets - several
    return Outputs(
        labels=tuple(f"class {number}" for number in range(classes)),
        logits=logits.astype(np.float32),
        targets=targets,
        indices=np.arange(images) + 1000,
        multi_label=several,
        split="val",
    )
