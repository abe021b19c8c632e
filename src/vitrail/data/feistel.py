"""A permutation without a table: the image at any place of an epoch, in memory that does not grow
with the data set.

A Feistel network of four rounds over 2b bits is a bijection of [0, 4^b), whatever its round
function; here that is the hash of `core/randomness.py`. What falls outside [0, count) goes through
the network again until it is inside (cycle walking), which keeps it a bijection of [0, count). As
4^b < 4 count, that is fewer than four rounds through it on average.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.randomness import words

ROUNDS = 4


class FeistelPermutation:
    """The numbers below `count` in an order that the purpose and the keys decide.

    >>> order = FeistelPermutation("order", 10, 0, 1)
    >>> sorted(order(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, purpose: str, count: int, *keys: int) -> None:
        assert count >= 0
        self.purpose, self.count, self.keys = purpose, count, keys
        self.half = np.uint64(max((max(count - 1, 1).bit_length() + 1) // 2, 1))
        self.mask = np.uint64((1 << int(self.half)) - 1)

    def __call__(self, places: NDArray[Any]) -> NDArray[np.int64]:
        """The numbers at these places, each below `count`."""
        places = np.asarray(places)
        assert not len(places) or (places.min() >= 0 and places.max() < self.count)
        values = self.network(places.astype(np.uint64))
        outside = np.flatnonzero(values >= self.count)
        while len(outside):
            values[outside] = self.network(values[outside])
            outside = outside[values[outside] >= self.count]
        return values.astype(np.int64)

    def network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self.half, values & self.mask
        for number in range(ROUNDS):
            mixed = words(self.purpose, *self.keys, number, right) & self.mask
            left, right = right, left ^ mixed
        found: NDArray[np.uint64] = (left << self.half) | right
        return found
