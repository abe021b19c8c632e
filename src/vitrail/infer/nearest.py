"""Which pictures are alike: cosines between embeddings, a block at a time."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from vitrail.core.errors import UserError
from vitrail.infer.parts import blocks, places, unit


@dataclass(frozen=True, order=True)
class Match:
    """A picture and how near it is: 1 is the same direction."""

    cosine: float
    id: str


@dataclass(frozen=True)
class Pair:
    """Two pictures that are alike."""

    one: str
    other: str
    cosine: float


def search(folder: Path, query: Float[np.ndarray, " D"], *, count: int) -> list[Match]:
    """The nearest pictures of a directory, the nearest first; of equals the first by name."""
    wanted = unit(query.astype(np.float32)[None])[0].astype(np.float64)
    best: list[tuple[float, str]] = []
    for block in blocks(folder):
        if not block.ids:
            continue
        # summed in float64, so that equal vectors have equal cosines wherever they lie
        cosines = (block.vectors.astype(np.float64) @ wanted).astype(np.float32)
        if len(cosines) > count:  # with all that are as near as the last, so that names decide
            least = np.partition(cosines, -count)[-count]
            few = np.flatnonzero(cosines >= least)
        else:
            few = np.arange(len(cosines))
        near = [(-float(cosines[place]), block.ids[place]) for place in few]
        best = heapq.nsmallest(count, [*best, *near])
    return [Match(-cosine, name) for cosine, name in best]


def duplicates(folder: Path, *, threshold: float) -> Iterator[Pair]:
    """Every two pictures whose cosine is at least the threshold, by blocks against blocks."""
    if not -1 <= threshold <= 1:
        raise UserError(f"the threshold is {threshold}, but a cosine is between -1 and 1")
    every = places(folder)
    for first, place in enumerate(every):
        here = place.read()
        for second in range(first, len(every)):
            there = here if second == first else every[second].read()
            cosines = here.vectors @ there.vectors.T
            for row, column in np.argwhere(cosines >= threshold):
                if second > first or column > row:
                    yield Pair(here.ids[row], there.ids[column], float(cosines[row, column]))
