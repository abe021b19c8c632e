"""Which images a step sees: a function of (seed, epoch, step), so there is no sampler state to
save or to lose."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.core.randomness import permutation, uniform, words


def epoch_order(
    count: int,
    *,
    seed: int,
    epoch: int,
    repeats: int = 1,
    balance: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Rows of (image, view) in the order of one epoch, `count` of them whatever the options.

    `repeats` shows fewer images, each that many times under different augmentation
    (arXiv:1902.05509); `balance` is the class of every image, and then every class is drawn
    equally often.

    >>> sorted(epoch_order(4, seed=0, epoch=0)[:, 0].tolist())
    [0, 1, 2, 3]
    """
    if balance is not None:
        images = _balanced(balance, count, seed=seed, epoch=epoch)
        return np.stack([images, np.arange(count)], axis=1)
    distinct = -(-count // repeats)
    images = permutation("order", count, seed, epoch)[:distinct].repeat(repeats)[:count]
    views = np.tile(np.arange(repeats), distinct)[:count]
    # the views of an image are spread over the epoch, so that no batch is made of copies
    spread = permutation("spread", count, seed, epoch) if repeats > 1 else np.arange(count)
    return np.stack([images, views], axis=1)[spread]


def _balanced(
    classes: NDArray[np.int64], count: int, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Classes in turn, and within a class a random image."""
    present = np.unique(classes)
    turn = present[permutation("class", count, seed, epoch) % len(present)]
    draws = uniform("member", seed, epoch, np.arange(count))
    images = np.empty(count, dtype=np.int64)
    for label in present:
        members = np.flatnonzero(classes == label)
        mine = turn == label
        images[mine] = members[(draws[mine] * len(members)).astype(np.int64)]
    return images


@dataclass(frozen=True)
class Cut:
    """One batch of an epoch: which samples of its order, and the side of the images; None for the
    model's own."""

    first: int
    last: int
    side: int | None = None


def cut_epoch(
    count: int,
    batch_size: int,
    *,
    sides: Sequence[int] = (),
    usual: int = 0,
    seed: int = 0,
    epoch: int = 0,
) -> list[Cut]:
    """Whole batches of an epoch; a data set smaller than one batch is one batch.

    With `sides` a batch has one of these sizes, all equally often and in an order of the epoch's
    own, and as many images as cost what `batch_size` of the usual side do (arXiv:2110.02178).

    >>> [(c.last - c.first, c.side) for c in cut_epoch(100, 10, sides=(160, 320), usual=320)]
    [(10, 320), (10, 320), (40, 160), (40, 160)]
    """
    if not sides:
        return [
            Cut(first, min(first + batch_size, count))
            for first in range(0, max(count - batch_size, 0) + 1, batch_size)
        ]
    sizes = [max(round(batch_size * usual**2 / side**2), 1) for side in sides]
    turns, total = 0, 0
    while total + sizes[turns % len(sides)] <= count or not turns:
        total += sizes[turns % len(sides)]
        turns += 1
    chosen = permutation("sides", turns, seed, epoch) % len(sides)
    ends = np.cumsum([sizes[which] for which in chosen])
    return [
        Cut(int(end) - sizes[which], min(int(end), count), sides[which])
        for which, end in zip(chosen.tolist(), ends, strict=True)
    ]


def share_of(samples: NDArray[np.int64], *, rank: int = 0, world: int = 1) -> NDArray[np.int64]:
    """A process's share of a batch; together the shares are the batch."""
    return samples[places_of(len(samples), rank=rank, world=world)]


def places_of(count: int, *, rank: int = 0, world: int = 1) -> NDArray[np.int64]:
    """Where in a batch of `count` samples those of a process stand. The first goes with the last
    and so on, because those are the ones that mixup and cutmix bring together.

    >>> places_of(6, rank=0, world=2)
    array([0, 2, 3, 5])
    """
    place = np.arange(count)
    return np.flatnonzero(np.minimum(place, place[::-1]) % world == rank)


def sample_seeds(
    purpose: str, seed: int, epoch: int, samples: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A seed for every (image, view) of a batch."""
    bits = words(purpose, seed, epoch, samples[:, 0], samples[:, 1])
    return (bits >> np.uint64(1)).astype(np.int64)
