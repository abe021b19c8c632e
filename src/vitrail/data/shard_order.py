"""The order of an epoch over shards in remote storage: whole shards one after another, shuffled.

Shards are dealt in an order of the epoch's own to `LANES` lanes; a lane reads one shard after
another, its samples shuffled, and a batch takes from all lanes in turn. So 64 shards are mixed at
any time, and each is read once an epoch. Samples of a lane stand at places of the batch that one
process computes, if the number of processes divides that of lanes or is a multiple of it: then a
process reads its own shards alone. The order itself knows nothing of processes.
"""

import numpy as np
from numpy.typing import NDArray

from vitrail.core.randomness import permutation, words
from vitrail.data.cache import Cached
from vitrail.data.source import Source
from vitrail.data.sources.origin import Subset

LANES = 64


def shards_of(source: Source) -> NDArray[np.int64] | None:
    """The shard that each image is in, where shards should be read one after another; None where
    any image is as near as any other."""
    if isinstance(source, Subset):
        found = shards_of(source.whole)
        return None if found is None else found[source.indices]
    if isinstance(source, Cached):
        return shards_of(source.source)
    shards: NDArray[np.int64] | None = getattr(source, "remote_shards", None)
    return shards


def shard_order(
    shards: NDArray[np.int64], batch_size: int, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Every sample once, from the shard that each is in.

    >>> sorted(shard_order(np.array([0, 0, 1, 1, 2]), 2, seed=0, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    count = len(shards)
    if not count:
        return np.empty(0, dtype=np.int64)
    numbers = int(shards.max()) + 1
    turn = np.empty(numbers, dtype=np.int64)
    turn[permutation("shards", numbers, seed, epoch)] = np.arange(numbers)
    lane = turn[shards] % LANES
    draws = words("within shard", seed, epoch, np.arange(count))
    by_lane = np.lexsort((draws, turn[shards], lane))  # a lane's shards in turn, shuffled each
    starts = np.searchsorted(lane[by_lane], np.arange(LANES))
    depth = np.arange(count) - starts[lane[by_lane]]
    order = by_lane[np.lexsort((lane[by_lane], depth))]  # one of each lane, then the next of each
    for first in range(0, count, batch_size):
        part = order[first : first + batch_size]
        order[first : first + batch_size] = arrange(part, lane[part])
    return order


def arrange(samples: NDArray[np.int64], lanes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The samples of a batch at places where those of a lane are computed together: a place and the
    one as far from the other end belong to one process (`sampler.places_of`)."""
    place = np.arange(len(samples))
    pair = np.minimum(place, place[::-1])
    placed = np.empty_like(samples)
    placed[np.argsort(pair % LANES, kind="stable")] = samples[np.argsort(lanes, kind="stable")]
    return placed
