"""The embedded data set: 1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships."""

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
    from sklearn.datasets import load_digits

    targets = load_digits().target.astype(np.int64)
    return {"train": Arrays((read_digits, ()), "digits", tuple("0123456789"), targets)}


def read_digits() -> NDArray[Any]:
    """Pixels in the file go from 0 to 16, here from 0 to 255."""
    from sklearn.datasets import load_digits

    return np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
