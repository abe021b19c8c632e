"""Randomness as a function: every draw is decided by (seed, epoch, sample, purpose), by nothing
else.

So it does not matter which worker draws, in which order, or whether the run was stopped in between.
The numbers are SplitMix64's (Steele, Lea, Flood 2014), a hash that passes the usual tests.
"""

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = "NDArray[np.uint64]"

_STEP = np.uint64(0x9E3779B97F4A7C15)


def words(purpose: str, *keys: int | NDArray[Any]) -> Words:
    """64 random bits for every combination of keys, which broadcast like arrays.

    >>> words("crop", 0, 3, np.arange(4)).shape
    (4,)
    """
    value = _begin(purpose)
    with np.errstate(over="ignore"):
        for key in keys:
            value = _mix(value ^ _mix(np.asarray(key).astype(np.uint64) + _STEP))
    return value


def uniform(purpose: str, *keys: int | NDArray[Any]) -> NDArray[np.float64]:
    """A number in [0, 1) for every combination of keys.

    >>> float(uniform("flip", 0, 0, 17)) == float(uniform("flip", 0, 0, 17))
    True
    """
    return (words(purpose, *keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seed_of(purpose: str, *keys: int) -> int:
    """A seed for a library's own generator."""
    return int(words(purpose, *keys)) & (2**63 - 1)


def permutation(purpose: str, count: int, *keys: int) -> NDArray[np.int64]:
    """The numbers below `count` in an order that the keys decide.

    >>> sorted(permutation("order", 5, 0, 1).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(words(purpose, *keys, np.arange(count)), kind="stable")


@lru_cache(maxsize=1024)
def _begin(purpose: str) -> Words:
    state = _mix(np.frombuffer(purpose.encode().ljust(32, b"\0")[:32], dtype=np.uint64))
    return np.bitwise_xor.reduce(state + _STEP * np.arange(4, dtype=np.uint64))


def _mix(value: Words) -> Words:
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
