"""Which images show the same thing: resized, compressed again, brightened or slightly cropped.

Two steps, both on grey thumbnails of 32 x 32:

1. A perceptual hash: the signs of the 64 lowest frequencies of the cosine transform, the mean aside
   (as pHash, Zauner 2010, but in zigzag order and against zero). Pairs that differ in at most 11
   bits are found without comparing all: two hashes that close agree but for two bits in at least
   one of their four quarters (multi-index hashing, Norouzi et al. 2012).
2. Each pair is laid on top of each other, allowing for a crop of up to 15 % (a few steps of Lucas
   and Kanade 1981), and its fine detail is correlated: thumbnails minus their local mean. A copy
   reaches 0.9 and more, two photos of alike scenes rarely 0.6.

Tiny images have little detail to tell them apart: below 64 pixels 4 bits and 0.97 are required.
"""

import time
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 32
BITS = 64
QUARTER = BITS // 4
RADIUS, TINY_RADIUS = 11, 4
ALIKE, TINY_ALIKE = 0.85, 0.97
TINY_PROMISING = 0.7  # where tiny images agree less than that as they lie, moving does not help
TINY = 64
FLAT = 2.0  # a thumbnail with less contrast than this shows nothing to compare
MOST_PAIRS = 200_000  # that are aligned: the closest
BLOCK = 1024  # pairs that are compared at once
BATCH = 2**21  # pairs of hashes that are compared at once
STEPS, REACH, MARGIN = 8, 0.15, 2

Thumbs = NDArray[np.uint8]
Floats = NDArray[np.float32]
Pairs = NDArray[np.int64]


def thumbnail(image: Image.Image) -> Thumbs:
    """Grey, 32 x 32.

    >>> thumbnail(Image.new("RGB", (300, 200))).shape
    (32, 32)
    """
    # made small before it is made grey, because that is the smaller work
    small = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(small.convert("L"))


def look_alikes(
    thumbs: Thumbs, smallest: NDArray[np.int64], *, seconds: float | None = None
) -> tuple[Pairs, Floats, int]:
    """Pairs (P, 2) of images that look alike and how much, and how many pairs were not compared.

    `thumbs` (N, 32, 32), `smallest` (N,): the shorter side of each image. Pairs are compared in the
    order of their distance until all are, MOST_PAIRS were aligned or the time is up.
    """
    tiny = smallest < TINY
    shows = np.flatnonzero(thumbs.reshape(-1, SIDE * SIDE).std(axis=1) >= FLAT)
    radius = TINY_RADIUS if tiny.all() else RADIUS
    pairs, distances = close_pairs(perceptual_hash(thumbs[shows]), radius)
    pairs = shows[pairs]
    small = tiny[pairs[:, 0]] | tiny[pairs[:, 1]]
    near = np.flatnonzero(~small | (distances <= TINY_RADIUS))
    closest = near[np.argsort(distances[near], kind="stable")]
    end = None if seconds is None else time.monotonic() + seconds
    alike, scores = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.float32)]
    compared = aligned = 0
    while compared < len(closest) and aligned < MOST_PAIRS:
        if end is not None and time.monotonic() > end:
            break
        block = closest[compared : compared + BLOCK]
        compared += len(block)
        promising = ~small[block]
        promising[small[block]] = agreement(thumbs, pairs[block[small[block]]]) >= TINY_PROMISING
        block = block[promising]
        aligned += len(block)
        found = agreement(thumbs, pairs[block], aligned=True)
        enough = found >= np.where(small[block], TINY_ALIKE, ALIKE)
        alike.append(block[enough])
        scores.append(found[enough])
    return pairs[np.concatenate(alike)], np.concatenate(scores), len(closest) - compared


def perceptual_hash(thumbs: Thumbs) -> NDArray[np.uint64]:
    """64 bits (N,) for each thumbnail."""
    place = np.arange(SIDE)
    cosines = np.cos(np.pi / (2 * SIDE) * (2 * place + 1) * place[:BITS, None]).astype(np.float32)
    rows, columns = zip(*_zigzag(), strict=True)
    hashes = []
    for start in range(0, len(thumbs), 4096):
        block = thumbs[start : start + 4096].astype(np.float32)
        signs = (cosines @ block @ cosines.T)[:, rows, columns] > 0
        hashes.append(np.ascontiguousarray(np.packbits(signs, axis=1)).view(np.uint64)[:, 0])
    return np.concatenate(hashes) if hashes else np.empty(0, dtype=np.uint64)


def _zigzag() -> list[tuple[int, int]]:
    """The lowest frequencies, dealt out to the quarters in turn, so that each has some of all."""
    order = sorted(
        ((i, j) for i in range(SIDE) for j in range(SIDE)), key=lambda ij: (sum(ij), ij)
    )[1 : BITS + 1]
    return [ij for quarter in range(4) for ij in order[quarter::4]]


def close_pairs(
    hashes: NDArray[np.uint64], radius: int = RADIUS
) -> tuple[Pairs, NDArray[np.uint8]]:
    """All pairs (P, 2) that differ in at most `radius` bits, up to 11, and in how many.

    >>> close_pairs(np.array([0, 7, 2**64 - 1], dtype=np.uint64))
    (array([[0, 1]]), array([3], dtype=uint8))
    """
    found = [np.empty((0, 2), dtype=np.int64)]
    for quarter in range(4):
        keys = (hashes >> np.uint64(QUARTER * quarter)).astype(np.uint16)
        for pairs in _neighbours(keys, radius // 4):
            different = np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]])
            found.append(pairs[different <= radius])
    pairs = np.unique(np.concatenate(found), axis=0)
    return pairs, np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]])


def _neighbours(keys: NDArray[np.uint16], flips: int) -> Iterator[Pairs]:
    """Pairs whose keys differ in at most `bits` bits, a batch at a time."""
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum(np.bincount(keys, minlength=2**QUARTER))
    starts = np.concatenate([[0], ends[:-1]])
    bits = [1 << bit for bit in range(QUARTER)]
    for mask in (sum(flip) for count in range(flips + 1) for flip in combinations(bits, count)):
        partners = keys[order] ^ np.uint16(mask)
        # each pair once: from the lower key or, among equal ones, from the earlier place
        first = np.arange(1, len(keys) + 1) if mask == 0 else starts[partners]
        counts = np.where(partners >= keys[order], ends[partners] - first, 0)
        reach = np.cumsum(counts)
        begin = 0
        while begin < len(keys) and reach[-1] > (done := int(reach[begin - 1]) if begin else 0):
            stop = max(int(np.searchsorted(reach, done + BATCH, side="right")), begin + 1)
            mine = counts[begin:stop]
            left = np.repeat(np.arange(begin, stop), mine)
            offset = np.arange(len(left)) - np.repeat(np.cumsum(mine) - mine, mine)
            right = np.repeat(first[begin:stop], mine) + offset
            yield np.sort(np.stack([order[left], order[right]], axis=1), axis=1)
            begin = stop


def agreement(thumbs: Thumbs, pairs: Pairs, *, aligned: bool = False) -> Floats:
    """How well the fine detail of each pair agrees, from -1 to 1: as they lie, or at their best."""
    one, other = (normalised(thumbs[pairs[:, side]]) for side in (0, 1))
    if aligned:
        other = _resample(other, _align(one, other))
    inner = (slice(None), slice(MARGIN, -MARGIN), slice(MARGIN, -MARGIN))
    one, other = (
        detail(side)[inner].reshape(len(pairs), (SIDE - 2 * MARGIN) ** 2) for side in (one, other)
    )
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    scores: Floats = (one * other).sum(axis=1) / np.maximum(norms, 1e-6)
    return scores


def normalised(thumbs: Thumbs | Floats) -> Floats:
    thumbs = thumbs.astype(np.float32)
    centred: Floats = thumbs - thumbs.mean(axis=(1, 2), keepdims=True)
    return centred / np.maximum(centred.std(axis=(1, 2), keepdims=True), 1e-6)


def detail(thumbs_BHW: Floats) -> Floats:
    """What is left when the mean of the 5 x 5 around each pixel is taken away, edges aside."""
    place = np.arange(SIDE)
    mean = (np.abs(place - place[:, None]) <= MARGIN).astype(np.float32) / (2 * MARGIN + 1)
    return thumbs_BHW - np.matmul(np.matmul(mean, thumbs_BHW), mean, dtype=np.float32)


def _align(one_BHW: Floats, other_BHW: Floats) -> Floats:
    """(B, 4): how the second is stretched and moved, down and across, to lie on the first."""
    moves = np.zeros((len(one_BHW), 4), dtype=np.float32)
    across = _across()
    inner = slice(MARGIN, -MARGIN)
    for _ in range(STEPS):
        moved = normalised(_resample(other_BHW, moves))
        slopes = [slope * (SIDE / 2) for slope in np.gradient(moved, axis=(1, 2))]
        jacobian = np.stack(
            [slopes[0] * across[:, None], slopes[0], slopes[1] * across, slopes[1]], axis=-1
        )[:, inner, inner].reshape(len(moves), -1, 4)
        left = (one_BHW - moved)[:, inner, inner].reshape(len(moves), -1, 1)
        normal = jacobian.mT @ jacobian + 0.1 * np.eye(4, dtype=np.float32)
        moves += np.linalg.solve(normal, jacobian.mT @ left)[..., 0]
        moves = np.clip(moves, -REACH, REACH)
    return moves


def _across() -> Floats:
    """The middles of pixels, from -1 at one edge to 1 at the other."""
    return ((np.arange(SIDE, dtype=np.float32) + 0.5) * (2 / SIDE) - 1).astype(np.float32)


def _resample(thumbs_BHW: Floats, moves_B4: Floats) -> Floats:
    """Thumbnails stretched and moved, down and across, with what lies between pixels."""
    rows = _between(moves_B4[:, 0], moves_B4[:, 1])
    columns = _between(moves_B4[:, 2], moves_B4[:, 3])
    return np.matmul(np.matmul(rows, thumbs_BHW), columns.mT, dtype=np.float32)


def _between(stretch_B: Floats, shift_B: Floats) -> Floats:
    """(B, 32, 32): each row weighs the two pixels between which a moved pixel falls."""
    moved = (1 + stretch_B[:, None]) * _across() + shift_B[:, None]
    places = np.clip((moved + 1) * (SIDE / 2) - 0.5, 0, SIDE - 1).astype(np.float32)
    weights: Floats = 1 - np.abs(places[..., None] - np.arange(SIDE, dtype=np.float32))
    return np.maximum(weights, np.float32(0))
