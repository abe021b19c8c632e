"""Which images a step sees: a function of (seed, epoch, step), so there is no sampler state to
save or to lose."""

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


def batch_at(
    order: NDArray[np.int64], batch_size: int, batch: int, *, rank: int = 0, world: int = 1
) -> NDArray[np.int64]:
    """This process's share of one batch of the epoch; together the shares are the batch."""
    return order[batch * batch_size : (batch + 1) * batch_size][rank::world]


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Whole batches; a data set smaller than one batch is one batch."""
    return max(count // batch_size, 1)


def sample_seeds(
    purpose: str, seed: int, epoch: int, samples: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A seed for every (image, view) of a batch."""
    bits = words(purpose, seed, epoch, samples[:, 0], samples[:, 1])
    return (bits >> np.uint64(1)).astype(np.int64)
