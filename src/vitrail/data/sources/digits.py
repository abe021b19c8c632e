"""The embedded data set: 1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.arrays import Arrays
from vitrail.data.sources.origin import Origin


def open_digits() -> dict[str, Origin]:
    """All digits as one part.

    >>> source = open_digits()["train"]
    >>> len(source), source.read(0).shape
    (1797, (8, 8))
    """
    _, targets = parse_digits()
    return {"train": Arrays((read_digits, ()), "digits", tuple("0123456789"), targets.copy())}


def read_digits() -> NDArray[Any]:
    return parse_digits()[0].copy()


@cache
def parse_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels, once for each process: the file is text. Its pixels go from 0 to 16, here
    from 0 to 255."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.rint(found.images * (255 / 16)).astype(np.uint8), found.target.astype(np.int64)
