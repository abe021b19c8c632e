"""Images that int8 is calibrated and measured on: real ones, given by the user, with labels where
their folders are named after the model's classes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage
from vitrail.data.preprocess import normalise
from vitrail.data.reader import ImageSource, name_of, read_image
from vitrail.models.model import Model

MIN_IMAGES = 16
MAX_IMAGES = 1024  # more change no figure, and all are in memory
CALIBRATE = 64  # images at most; the others are measured on
MAX_SAMPLED = 320  # of the images of a job, which are calibrated on before it begins


@dataclass(frozen=True)
class Samples:
    """Images as the model reads them, their `pixels` if its graph reads these and normalises them
    itself, and their classes if known."""

    images: Float[Tensor, "B C H W"]
    pixels: NDArray[np.generic] | None = None
    labels: NDArray[np.int64] | None = None
    argument: str = "images="  # with which they are given

    @property
    def inputs(self) -> NDArray[np.generic]:
        """What the graph reads; floats share the memory of the images."""
        return self.images.numpy() if self.pixels is None else self.pixels

    @cached_property
    def digest(self) -> str:
        """The same for the same images."""
        shape = str(tuple(self.images.shape)).encode()
        return hashlib.sha256(shape + self.images.contiguous().numpy().tobytes()).hexdigest()

    def split(self) -> tuple["Samples", "Samples"]:
        """For calibration, taken evenly over all; and the others."""
        self.check_count()
        count = len(self.images)
        chosen = np.zeros(count, dtype=bool)
        chosen[np.linspace(0, count - 1, min(CALIBRATE, count // 2)).round().astype(int)] = True
        return self.rows(chosen), self.rows(~chosen)

    def check_count(self) -> None:
        """Refuse images that are too few to calibrate and measure on."""
        if (count := len(self.images)) < MIN_IMAGES:
            raise UserError(
                f"int8 needs at least {MIN_IMAGES} images to calibrate and measure on, got "
                f"{count}: give more with {self.argument}"
            )

    def rows(self, which: NDArray[np.bool_]) -> "Samples":
        labels = None if self.labels is None else self.labels[which]
        pixels = None if self.pixels is None else self.pixels[which]
        return Samples(self.images[torch.from_numpy(which)], pixels, labels, self.argument)


@dataclass(frozen=True)
class Calibration:
    """That a job computes in int8: the images to calibrate and measure on, and how many percentage
    points of equal labels may be lost on them."""

    samples: Samples
    max_drop: float


def read_calibration(model: Model, images: Sequence[ImageSource]) -> UInt8[Tensor, "B C H W"]:
    """Every image as the passport prepares it; one that cannot be read is named."""
    if not images:
        raise UserError(
            "int8 is calibrated and measured on real images, got none: give some with images="
        )
    try:
        return torch.stack([read_image(one, model.passport.preprocessing) for one in images])
    except BadImage as problem:
        raise UserError(str(problem)) from None


def sample_calibration(model: Model, images: Sequence[ImageSource], *, given: bool) -> Samples:
    """At most 320 images, evenly from all, without those that cannot be read; refused if these are
    too few. `given` says that they are those of `calibrate`, rather than those of the job."""
    count = min(MAX_SAMPLED, len(images))
    pixels, problems = list[Tensor](), list[BadImage]()
    for place in range(count):
        try:
            image = images[place * len(images) // count]
            pixels.append(read_image(image, model.passport.preprocessing))
        except BadImage as problem:  # of the job: whoever computes with it reports it
            problems.append(problem)
    if len(pixels) < MIN_IMAGES:
        raise too_few(len(pixels), count, problems, given=given)
    floats = normalise(torch.stack(pixels), model.passport.preprocessing, reorder=False)
    return Samples(floats, argument="calibrate=")


def too_few(good: int, count: int, problems: Sequence[BadImage], *, given: bool) -> UserError:
    """What to do about images that are too few, and the first that cannot be read."""
    got = f"{good} of {count}; {problems[0]}" if problems else f"{good}"
    if given:
        return UserError(f"calibrate must have at least {MIN_IMAGES} images to read, got {got}")
    return UserError(
        f"int8 needs at least {MIN_IMAGES} images to calibrate and measure on, got {got}: give "
        "others with calibrate="
    )


def labels_of(model: Model, images: Sequence[ImageSource]) -> NDArray[np.int64] | None:
    """The class of each image, where all lie in folders that are named after the model's classes.

    >>> from dataclasses import replace
    >>> model.passport = replace(model.passport, labels=("ant", "bee", "cat"))
    >>> labels_of(model, ["photos/cat/1.jpg", "photos/ant/2.jpg"])
    array([2, 0])
    """
    places = {name: place for place, name in enumerate(model.passport.labels or ())}
    folders = [Path(name_of(one)).parent.name for one in images]
    if not folders or any(folder not in places for folder in folders):
        return None
    return np.array([places[folder] for folder in folders], dtype=np.int64)
