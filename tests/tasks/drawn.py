"""A source of images that are drawn when they are read, with names that mean harm."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.pages.html import NASTY
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
