"""Nearest neighbours and near duplicates: cosines between embeddings, a block at a time."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from vitrail.core.ranges import check
from vitrail.inference.parts import Block, normalise_rows, read_blocks, row_groups

EQUAL = 1e-3  # a distance between unit vectors that float16 and another batch can make
ROUNDED = 1 - EQUAL**2 / 2  # its cosine
FEWEST = 8  # images from which a usual cosine can be estimated
FAR = 3.5  # robust deviations: the usual limit of outlier tests (Iglewicz and Hoaglin 1993)
LEAST_DEVIATION = 0.1  # of the log: distances that are all alike make no outlier of a near one
MOST_BLOCKS = 16  # that are compared with all others, to learn what is usual


@dataclass(frozen=True, order=True)
class Match:
    """An image and its cosine to the query: 1 is the same direction."""

    cosine: float
    id: str


@dataclass(frozen=True)
class Pair:
    """Two images that are nearly the same."""

    one: str
    other: str
    cosine: float


def find_nearest(folder: Path, query: Float[np.ndarray, " D"], *, k: int) -> list[Match]:
    """The nearest images of a directory, the nearest first; of equals the first by name."""
    return nearest_in(read_blocks(folder), query, k=k)


def nearest_in(blocks: Iterable[Block], query: Float[np.ndarray, " D"], *, k: int) -> list[Match]:
    """The same of blocks that have been read."""
    wanted = normalise_rows(query.astype(np.float32)[None])[0].astype(np.float64)
    best: list[tuple[float, str]] = []
    for block in blocks:
        if not block.ids:
            continue
        # summed in float64, so that equal vectors have equal cosines wherever they lie
        cosines = (block.vectors.astype(np.float64) @ wanted).astype(np.float32)
        if len(cosines) > k:  # with all that are as near as the last, so that names decide
            least = np.partition(cosines, -k)[-k]
            few = np.flatnonzero(cosines >= least)
        else:
            few = np.arange(len(cosines))
        near = [(-float(cosines[place]), block.ids[place]) for place in few]
        best = heapq.nsmallest(k, [*best, *near])
    return [Match(-cosine, name) for cosine, name in best]


@dataclass(frozen=True)
class Duplicates:
    """All pairs, the most alike first, then by name; the least cosine of a pair, and where that
    comes from."""

    pairs: tuple[Pair, ...]
    threshold: float
    threshold_source: str


def find_duplicates(folder: Path, *, threshold: float | None = None) -> Duplicates:
    """Every two images whose cosine is at least the threshold; without one, it is chosen from the
    data (`choose_threshold`)."""
    source = "given"
    if threshold is None:
        threshold = choose_threshold(nearest_cosines(folder))
        usual = threshold < ROUNDED
        source = "chosen from the data" if usual else "equal to within rounding"
    check("threshold", threshold, at_least=-1, at_most=1)
    found = sorted(pairs_of(folder, threshold), key=lambda one: (-one.cosine, one.one, one.other))
    return Duplicates(tuple(found), threshold, source)


def pairs_of(folder: Path, threshold: float) -> Iterator[Pair]:
    """Blocks against blocks, so that memory holds two."""
    every = row_groups(folder)
    for first, place in enumerate(every):
        here = place.read()
        for second in range(first, len(every)):
            there = here if second == first else every[second].read()
            cosines = here.vectors @ there.vectors.T
            for row, column in np.argwhere(cosines >= threshold):
                if second > first or column > row:
                    yield Pair(here.ids[row], there.ids[column], float(cosines[row, column]))


def nearest_cosines(folder: Path) -> Float[np.ndarray, " N"]:
    """Of every image, or of some that are spread over all, the cosine to the nearest other."""
    every = row_groups(folder)
    step = max(1, -(-len(every) // MOST_BLOCKS))
    found = []
    for first in range(0, len(every), step):
        here = every[first].read()
        best = np.full(len(here.ids), -1.0, dtype=np.float32)
        for second, place in enumerate(every):
            there = here if second == first else place.read()
            cosines = here.vectors @ there.vectors.T
            if second == first:
                np.fill_diagonal(cosines, -1)
            if cosines.size:
                best = np.maximum(best, cosines.max(axis=1))
        found.append(best)
    return np.concatenate([np.empty(0, np.float32), *found])


def choose_threshold(nearest: Float[np.ndarray, " N"]) -> float:
    """The cosine from which two images are nearer than images of these data ever are by chance.

    Features of one model may all lie close together, so that no fixed cosine fits. Here the logs of
    distances to the nearest neighbour say what is usual: an image is a duplicate where that log
    lies `FAR` robust deviations (1.4826 times the median absolute one) below the median. What is
    equal to within rounding is a duplicate whatever is usual.

    >>> usual = 1 - np.linspace(0.1, 0.3, 50) ** 2 / 2
    >>> 0.996 < choose_threshold(np.append(usual, 0.9999)) < 0.9999
    True
    """
    distances = np.sqrt(np.maximum(2 - 2 * nearest.astype(np.float64), 0))
    apart = distances[distances > EQUAL]
    if len(apart) < FEWEST:
        return ROUNDED
    logs = np.log(apart)
    middle = np.median(logs)
    deviation = 1.4826 * np.median(abs(logs - middle))
    distance = max(np.exp(middle - FAR * max(deviation, LEAST_DEVIATION)), EQUAL)
    return float(1 - distance**2 / 2)
