"""Sample photos to begin with: those of scikit-learn, digits for models of one channel, and some of
the data that the service was given."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.data.sources.digits import open_digits
from vitrail.data.sources.validation import with_validation
from vitrail.serving.operations import File
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.data import image_file, picture_file
from vitrail.serving.operations.data_context import DataContext
from vitrail.serving.operations.options import NoOptions, SampleOptions

PHOTOS = {"china": "china.jpg", "flower": "flower.jpg"}
DIGITS = 5
FROM_DATA = 6  # images


@dataclass(frozen=True)
class SamplePhoto:
    """What it is called, and how to get it."""

    name: str
    open: Callable[[], File]


def run_samples(context: Context, image: Image.Image | None, options: NoOptions) -> dict[str, Any]:
    model = quote(context.name, safe="")
    return {
        "samples": [
            {"id": str(number), "name": one.name, "url": f"v1/samples/{number}?model={model}"}
            for number, one in enumerate(samples_of(context))
        ]
    }


def run_sample(context: Context, image: Image.Image | None, options: SampleOptions) -> File:
    every = samples_of(context)
    if not 0 <= options.id < len(every):
        raise UserError(f"id must be from 0 to {len(every) - 1}, got {options.id}")
    return every[options.id].open()


def samples_of(context: Context) -> list[SamplePhoto]:
    """In an order that stays: what is shown first suits the model best."""
    own = [] if context.data is None else data_samples(context.data)
    if len(context.model.passport.preprocessing.mean) == 1:
        return [*own, *digit_samples()]
    photos = [SamplePhoto(name, partial(photo_file, file)) for name, file in PHOTOS.items()]
    return [*own, *photos]


def data_samples(data: DataContext) -> list[SamplePhoto]:
    """A few images of the data, of different labels where there are labels."""
    chosen: dict[Any, int] = {}
    for index in data.order:
        label = data.label(index)
        chosen.setdefault(index if label is None else label, index)
        if len(chosen) == FROM_DATA:
            break
    return [
        SamplePhoto(
            data.label(index) or f"{data.name} {index}",
            partial(image_file, data.source, index, None),
        )
        for index in sorted(chosen.values())
    ]


def digit_samples() -> list[SamplePhoto]:
    """Digits of different classes, from the images that training does not see; never those of a
    folder with this name."""
    source = with_validation(open_digits(), share=0.1, seed=0)["val"]
    assert source.targets is not None
    first = [int(np.flatnonzero(source.targets == digit)[0]) for digit in range(DIGITS)]
    return [
        SamplePhoto(
            f"digit {source.labels[int(source.targets[index])]}",
            partial(image_file, source, index, None),
        )
        for index in first
    ]


def photo_file(name: str) -> File:
    return picture_file(photo_pixels(name), None)


@cache
def photo_pixels(name: str) -> NDArray[np.uint8]:
    from sklearn.datasets import load_sample_image

    pixels: NDArray[np.uint8] = load_sample_image(name)
    return pixels
