"""The random numbers of samples: the same for a sample computed alone or in a batch."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrail.core.randomness import uniform

# (B, count) numbers in [0, 1) for a purpose: `count` for each sample.
Draw: TypeAlias = "Callable[[str, int], NDArray[np.float64]]"


def draws_for(seed: int, epoch: int, samples: NDArray[np.int64]) -> Draw:
    """`samples` are rows of (image, view).

    >>> draws_for(0, 0, np.array([[3, 0], [4, 0]]))("flip", 1).shape
    (2, 1)
    """
    image, view = samples[:, :1], samples[:, 1:]

    def draw(purpose: str, count: int) -> NDArray[np.float64]:
        return uniform(purpose, seed, epoch, image, view, np.arange(count))

    return draw


def draws_of_each(seed: int, epochs: NDArray[np.int64], samples: NDArray[np.int64]) -> list[Draw]:
    """The draws of every sample by itself, hashed for all of them at once, which takes a tenth of
    the time.

    >>> one, two = draws_of_each(0, np.array([0, 1]), np.array([[3, 0], [4, 0]]))
    >>> two("flip", 1) == draws_for(0, 1, np.array([[4, 0]]))("flip", 1)
    array([[ True]])
    """

    @cache
    def together(purpose: str, count: int) -> NDArray[np.float64]:
        keys = (epochs[:, None], samples[:, :1], samples[:, 1:], np.arange(count))
        return uniform(purpose, seed, *keys)

    def of(row: int) -> Draw:
        return lambda purpose, count: together(purpose, count)[row : row + 1]

    return [of(row) for row in range(len(samples))]
