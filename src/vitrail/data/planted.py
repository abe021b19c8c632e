"""Planted evidence: images of which it is known where their answer lies.

On a canvas of noise at several scales stands one bright handwritten digit, which is the label, and
beside it distractors that say nothing about it: shapes, scrambled digits, dark digits. A map that
explains a model which knows the label has to point at the digit, and `boxes` say where that is.

Every image is a function of (seed, part, index). The handwriting of one part is in no other.
"""

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.randomness import uniform, words
from vitrail.data.sources.digits import read_digits
from vitrail.data.sources.origin import Origin, digest

PARTS = {"train": 40_000, "val": 500, "test": 1_000}  # images that `planted` opens to
RASTER = 8  # cells a side of what is stamped onto a canvas
SIDES, SMALL_SIDES = (0.34, 0.46), (0.26, 0.36)  # of digits and distractors, of the canvas
SCALES = (2, 4, 8, 16, 32)  # cells a side of the noise
LEVELS, CONTRASTS = (0.25, 0.45), (0.03, 0.08)  # mean of a canvas, and its standard deviation
BRIGHT, DARK = (0.9, 1.0), (0.0, 0.1)
INK = 0.25  # of full ink: what counts as part of a digit
TRIES = 24  # places that are tried for a distractor
BLOCKS = 4  # a side, that a scrambled digit is cut into
AT_ONCE = 2048  # random numbers, about as many as an image takes
SMALLEST = 32  # pixels: on less a digit of eight cells cannot be read

Box = tuple[int, int, int]  # top, left and side of a stamp
Raster = Float[np.ndarray, "8 8"]


class Planted:
    """A source of such images, (side, side) uint8, one channel, and of the `boxes` around their
    digits: top, left, bottom and right in pixels, the last two not included.

    >>> source = Planted(100, "test")
    >>> source.read(3).shape, source.labels[source.targets[3]], source.boxes[3].tolist()
    ((64, 64), '1', [1, 14, 29, 36])
    """

    uniform = True

    def __init__(
        self, count: int, part: str = "train", side: int = 64, seed: int = 0, distractors: int = 2
    ) -> None:
        if part not in PARTS:
            raise UserError(f"planted has no split {part!r}: use {', '.join(PARTS)}")
        if side < SMALLEST or count < 0 or distractors < 0:
            raise UserError(
                f"planted evidence of {count} images, {side} pixels and {distractors} "
                f"distractors: expected no negative number, and at least {SMALLEST} pixels"
            )
        self.arguments = (count, part, side, seed, distractors)
        self.part, self.side, self.distractors = part, side, distractors
        self.keys = (seed, list(PARTS).index(part))
        self.labels = tuple("0123456789")
        self.rasters, classes = handwriting(part)
        every = np.arange(count)
        self.digits = (words("planted digit", *self.keys, every) % len(classes)).astype(np.int64)
        self.targets: NDArray[Any] | None = classes[self.digits]
        chances = uniform("planted place", *self.keys, every[:, None], np.arange(3))
        self.places = place(chances, side, SIDES)
        self.boxes = boxes_of(self.rasters[self.digits], self.places)
        self.drawn: dict[int, NDArray[np.uint8]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Planted, self.arguments

    def __len__(self) -> int:
        return self.arguments[0]

    def read(self, index: int) -> NDArray[np.uint8]:
        index = range(len(self))[index]
        if index not in self.drawn:  # a training run asks for each many times
            self.drawn[index] = self.draw(index)
        return self.drawn[index].copy()  # whoever gets it may write to it

    def name(self, index: int) -> str:
        return f"planted/{self.part}[{range(len(self))[index]}]"

    def key(self, index: int) -> str:
        return f"{self.part}/{index}"

    def fingerprint(self) -> str:
        first = b"".join(self.read(index).tobytes() for index in range(min(len(self), 4)))
        return digest(repr(self.arguments).encode(), first)

    def draw(self, index: int) -> NDArray[np.uint8]:
        """The texture, the digit, then as many distractors as find a place of their own."""
        chances = Chances(*self.keys, index)
        canvas = texture(self.side, chances)
        taken = [as_box(self.places[index])]
        stamp(canvas, self.rasters[self.digits[index]], taken[0], between(BRIGHT, chances))
        for _ in range(self.distractors):
            raster, levels = self.distractor(chances)
            level = between(levels, chances)
            spots = place(chances.draw(3 * TRIES).reshape(TRIES, 3), self.side, SMALL_SIDES)
            free = next((box for box in map(as_box, spots) if is_free(box, taken)), None)
            if free is not None:
                stamp(canvas, raster, free, level)
                taken.append(free)
        return np.rint(255 * canvas.clip(0, 1)).astype(np.uint8)

    def distractor(self, chances: "Chances") -> tuple[Raster, tuple[float, float]]:
        """What carries no label, and how bright that is."""
        kind, which = chances.draw(2)
        order = chances.draw(BLOCKS * BLOCKS).argsort(kind="stable")
        raster: Raster = self.rasters[int(which * len(self.rasters))]
        match int(kind * 3):
            case 0:
                return shapes()[int(which * len(shapes()))], BRIGHT
            case 1:
                return scrambled(raster, order), BRIGHT
            case _:
                return raster, DARK


class Chances:
    """The random numbers of one image, handed out one after another."""

    def __init__(self, *keys: int) -> None:
        self.keys, self.taken = keys, 0
        # the purpose is part of the seed: another word would draw other images
        self.numbers = uniform("planted picture", *keys, np.arange(AT_ONCE))

    def draw(self, count: int) -> Float[np.ndarray, "count"]:
        first, self.taken = self.taken, self.taken + count
        while self.taken > len(self.numbers):
            next_ones = np.arange(len(self.numbers), len(self.numbers) + AT_ONCE)
            more = uniform("planted picture", *self.keys, next_ones)
            self.numbers = np.concatenate([self.numbers, more])
        return self.numbers[first : self.taken]


def open_planted() -> dict[str, Origin]:
    """Training, validation and test images.

    >>> {name: len(part) for name, part in open_planted().items()}
    {'train': 40000, 'val': 500, 'test': 1000}
    """
    return {part: Planted(count, part) for part, count in PARTS.items()}


@cache
def handwriting(part: str) -> tuple[Float[np.ndarray, "N 8 8"], NDArray[np.int64]]:
    """Ink from 0 to 1 and class of the digits of one part: of five digits of each class in turn,
    one is for val and one for test."""
    from sklearn.datasets import load_digits

    classes = load_digits().target.astype(np.int64)
    rank = np.zeros_like(classes)
    for label in range(10):
        rank[classes == label] = np.arange((classes == label).sum())
    home = np.array([0, 0, 0, 1, 2])[rank % 5]
    chosen = home == list(PARTS).index(part)
    return read_digits()[chosen] / 255, classes[chosen]


@cache
def shapes() -> Float[np.ndarray, "S 8 8"]:
    """Cross, plus, disc, triangle and stripes: none that is some hand's 0 or 1."""
    y, x = np.mgrid[:RASTER, :RASTER] - (RASTER - 1) / 2
    drawn = (
        abs(abs(x) - abs(y)) < 1,
        np.minimum(abs(x), abs(y)) < 1,
        x**2 + y**2 < 10,
        (abs(x) <= (y + 4) / 2) & (y < 3),
        (x + y) % 4 < 2,
    )
    return np.stack(drawn).astype(np.float64)


def scrambled(raster: Raster, order: Int[np.ndarray, "16"]) -> Raster:
    """The same ink in other places: blocks of two by two cells, in another order."""
    cells = RASTER // BLOCKS
    blocks = raster.reshape(BLOCKS, cells, BLOCKS, cells).swapaxes(1, 2).reshape(-1, cells, cells)
    mixed = blocks[order].reshape(BLOCKS, BLOCKS, cells, cells)
    return mixed.swapaxes(1, 2).reshape(RASTER, RASTER)


def texture(side: int, chances: Chances) -> Float[np.ndarray, "side side"]:
    """Noise at several scales, each as strong as chance will have it."""
    canvas = np.zeros((side, side))
    for scale, share in zip(SCALES, chances.draw(len(SCALES)), strict=True):
        noise = chances.draw(scale * scale).reshape(scale, scale) - 0.5
        grow = stretch_to_edge(scale, side)
        canvas += (0.1 + share) * (grow @ noise @ grow.T)
    level, contrast = between(LEVELS, chances), between(CONTRASTS, chances)
    return level + contrast * (canvas - canvas.mean()) / max(float(canvas.std()), 1e-9)


def between(ends: tuple[float, float], chances: Chances) -> float:
    return ends[0] + float(chances.draw(1)[0]) * (ends[1] - ends[0])


def place(
    chances: Float[np.ndarray, "N 3"], side: int, shares: tuple[float, float]
) -> Int[np.ndarray, "N 3"]:
    """Top, left and side of stamps on a canvas of that side, a pixel or more from its border."""
    low, high = (round(share * side) for share in shares)
    length = low + (chances[:, 2] * (high - low + 1)).astype(np.int64)
    corner = 1 + (chances[:, :2] * (side - length - 1)[:, None]).astype(np.int64)
    return np.concatenate([corner, length[:, None]], axis=1)


def stamp(canvas: Float[np.ndarray, "H W"], raster: Raster, box: Box, level: float) -> None:
    """Ink of one level, as dense as the raster says, onto the canvas."""
    top, left, side = box
    grow = stretch(RASTER, side)
    density = (grow @ raster @ grow.T).clip(0, 1)
    part = canvas[top : top + side, left : left + side]
    part += density * (level - part)


@cache
def stretch(coarse: int, fine: int) -> Float[np.ndarray, "fine coarse"]:
    """Linear interpolation from coarse cells to fine ones; beyond the border there is nothing."""
    centre = (np.arange(fine) + 0.5) * coarse / fine - 0.5
    return (1 - abs(centre[:, None] - np.arange(coarse))).clip(0)


@cache
def stretch_to_edge(coarse: int, fine: int) -> Float[np.ndarray, "fine coarse"]:
    """The same, but what lies beyond the border is like what lies at it."""
    weights = stretch(coarse, fine)
    return weights / weights.sum(axis=1, keepdims=True)


def boxes_of(
    rasters: Float[np.ndarray, "N 8 8"], places: Int[np.ndarray, "N 3"]
) -> Int[np.ndarray, "N 4"]:
    """Top, left, bottom and right of the cells that have ink."""
    edges = []
    for axis, start in ((2, places[:, 0]), (1, places[:, 1])):
        inked: NDArray[np.bool_] = np.any(rasters > INK, axis=axis)
        first, last = inked.argmax(axis=1), RASTER - inked[:, ::-1].argmax(axis=1)
        cell = places[:, 2] / RASTER
        edges.append((start + np.floor(first * cell), start + np.ceil(last * cell)))
    (top, bottom), (left, right) = edges
    return np.stack([top, left, bottom, right], axis=1).astype(np.int64)


def as_box(place: Int[np.ndarray, "3"]) -> Box:
    top, left, side = place.tolist()
    return top, left, side


def is_free(box: Box, taken: list[Box]) -> bool:
    """Whether a stamp lies beside all others."""
    top, left, side = box
    return all(
        top + side <= other[0]
        or other[0] + other[2] <= top
        or left + side <= other[1]
        or other[1] + other[2] <= left
        for other in taken
    )
