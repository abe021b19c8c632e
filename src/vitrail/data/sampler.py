"""Which images a step sees: a function of (seed, epoch, step), so there is no sampler state to
save or to lose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.randomness import permutation, uniform
from vitrail.data.feistel import FeistelPermutation

LARGE = 2**22  # images from which on the order of an epoch is computed rather than kept


def epoch_order(
    count: int,
    *,
    seed: int,
    epoch: int,
    repeats: int = 1,
    balance: NDArray[Any] | None = None,
    images: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Rows of (image, view) in the order of one epoch, `count` of them whatever the options; the
    `images` may have an order of their own.

    `repeats` shows fewer images, each that many times under different augmentation, one view after
    the other, so that they meet in a batch (arXiv:1902.05509); `balance` are the targets of every
    image, and then every class is drawn equally often.

    >>> sorted(epoch_order(4, seed=0, epoch=0)[:, 0].tolist())
    [0, 1, 2, 3]
    """
    distinct = -(-count // repeats)
    if balance is not None:  # which may draw an image again: every sample is a view of its own
        images = _balanced(balance, distinct, seed=seed, epoch=epoch)
        views = np.arange(count)
    else:
        if images is None:
            images = permutation("order", count, seed, epoch)
        images = images[:distinct]
        views = np.tile(np.arange(repeats), distinct)[:count]
    images = images.repeat(repeats)[:count]
    return np.stack([images, views], axis=1)


class LargeOrder:
    """The same for data sets that are too large for a table: rows are computed where they are asked
    for, in memory of their own size.

    >>> LargeOrder(10**12, seed=0, epoch=0)[:2].shape
    (2, 2)
    """

    def __init__(self, count: int, *, seed: int, epoch: int, repeats: int = 1) -> None:
        self.count, self.repeats = count, repeats
        self.images = FeistelPermutation("order", count, seed, epoch)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: slice) -> NDArray[np.int64]:
        places = np.arange(*rows.indices(self.count))
        views = places % self.repeats
        return np.stack([self.images(places // self.repeats), views], axis=1)


def _balanced(targets: NDArray[Any], count: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Classes in turn, and of each a random image; one with several labels is an image of each of
    them, one without labels of none."""
    if targets.ndim == 2:
        members = [np.flatnonzero(column) for column in targets.T if column.any()]
    else:
        members = [np.flatnonzero(targets == label) for label in np.unique(targets)]
    if not members:
        raise UserError("goal.balance must be off for images that have no labels")
    turn = permutation("class", count, seed, epoch) % len(members)
    draws = uniform("member", seed, epoch, np.arange(count))
    images = np.empty(count, dtype=np.int64)
    for number, mine in enumerate(members):
        turns = turn == number
        images[turns] = mine[(draws[turns] * len(mine)).astype(np.int64)]
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


def side_at(epoch: int, epochs: float, progressive: Sequence[int]) -> int | None:
    """The side of the images of an epoch: `progressive` ones in equal shares of the run, then the
    model's own (None) for as long.

    >>> [side_at(epoch, 6, (96, 128)) for epoch in range(6)]
    [96, 96, 128, 128, None, None]
    """
    stage = int(epoch / max(epochs, 1) * (len(progressive) + 1))
    return progressive[stage] if stage < len(progressive) else None


def share_of(samples: NDArray[np.int64], *, rank: int = 0, world: int = 1) -> NDArray[np.int64]:
    """A process's share of a batch; together the shares are the batch."""
    return samples[places_of(len(samples), rank=rank, world=world)]


def places_of(count: int, *, rank: int = 0, world: int = 1) -> NDArray[np.int64]:
    """Where in a batch of `count` samples those of a process stand. The first goes with the last
    and so on, because those are the ones that mixup and cutmix bring together.

    >>> places_of(6, rank=0, world=2)
    array([0, 2, 3, 5])
    """
    return np.flatnonzero(ranks_of(count, world=world) == rank)


def ranks_of(count: int, *, world: int) -> NDArray[np.int64]:
    """Which process has each sample of a batch of `count`: all have equally many if `count` is a
    multiple of twice the processes.

    >>> ranks_of(6, world=2)
    array([0, 1, 0, 0, 1, 0])
    """
    place = np.arange(count)
    return np.minimum(place, place[::-1]) % world
