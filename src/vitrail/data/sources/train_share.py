"""A share of the labelled training images, drawn by a seed: to train with fewer labels.

Every image gets a number from (seed, its name within the data set), and of each class the lowest
numbers are kept: as many as its share, rounded, but at least one. So a seed draws the same images
for every model, on every machine, and a smaller share lies within a larger one.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitrail.core.randomness import words
from vitrail.core.ranges import check
from vitrail.data.source import Splits
from vitrail.data.sources.origin import Origin, Subset
from vitrail.data.sources.validation import hashes, strata


def with_train_share(splits: Splits, share: float, seed: int) -> Splits:
    """The same data set with this share of each class of its training images.

    >>> from vitrail.data.sources import open_data
    >>> len(with_train_share(open_data("digits"), 0.01, seed=0)["train"])
    16
    """
    check("train_share", share, above=0, at_most=1)
    if share == 1:
        return splits
    train = splits["train"]
    assert isinstance(train, Origin), "every source that is opened knows its images by name"
    kept = Subset(train, draw_share(train, share, seed))
    return replace(splits, parts={**splits.parts, "train": kept})


def draw_share(train: Origin, share: float, seed: int) -> NDArray[np.int64]:
    """The places of the images that are kept, in their order."""
    numbers, groups = words("train share", seed, hashes(train)), strata(train)
    kept = []
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        count = max(round(share * len(members)), 1)
        kept.append(members[np.argsort(numbers[members], kind="stable")[:count]])
    return np.sort(np.concatenate(kept))
