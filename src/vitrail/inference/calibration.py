"""Images that int8 is calibrated and measured on: real ones, given by the user, with labels where
their folders are named after the model's classes."""

import hashlib
from collections.abc import Iterable, Sequence
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
    """Images as the model reads them, as its graph reads them, and their classes if known."""

    images: Float[Tensor, "B C H W"]
    fed: NDArray[np.generic]
    labels: NDArray[np.int64] | None = None
    argument: str = "images="  # with which they are given

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
        return Samples(self.images[torch.from_numpy(which)], self.fed[which], labels, self.argument)


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


def sample_calibration(model: Model, images: Sequence[ImageSource]) -> Samples:
    """At most 320 images, evenly from all, without those that cannot be read."""
    count = min(MAX_SAMPLED, len(images))
    chosen = [images[place * len(images) // count] for place in range(count)]
    pixels = list(readable(model, chosen))
    if not pixels:
        raise UserError("int8 is calibrated on real images, but none can be read: use calibrate=")
    floats = normalise(torch.stack(pixels), model.passport.preprocessing, reorder=False)
    return Samples(floats, floats.numpy(), argument="calibrate=")


def readable(model: Model, images: Iterable[ImageSource]) -> Iterable[UInt8[Tensor, "C H W"]]:
    for image in images:
        try:
            yield read_image(image, model.passport.preprocessing)
        except BadImage:
            continue  # whoever computes with it reports it


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
