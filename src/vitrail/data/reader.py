"""The one way in for an image: whatever holds it, to upright pixels and to what a model reads.

Training, evaluation, prediction, explanation and embedding all read their images here.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.native_size import NativeSize
from vitrail.core.passport import Preprocessing
from vitrail.data.images import BadImage, Pixels
from vitrail.data.pixels import (
    ImageSource,
    Item,
    Named,
    Sample,
    is_one_image,
    name_of,
    not_an_image,
    read_pixels,
)
from vitrail.data.preprocess import FAST, at_native_size, normalise, resize_and_crop

__all__ = [  # the door for other rooms; pixels is the part of it that needs no torch
    "ImageSource",
    "Item",
    "Named",
    "Sample",
    "is_one_image",
    "name_of",
    "not_an_image",
    "preprocess",
    "read_image",
    "read_native",
    "read_pixels",
]


def read_image(
    image: ImageSource, preprocessing: Preprocessing, *, exact: bool = True
) -> Shaped[Tensor, "C H W"]:
    """Decoded, turned upright, resized and cropped as the passport says, in the model's order of
    channels; `BadImage` where it cannot be read.

    `exact=False` decodes a large JPEG smaller and resizes by torch instead of Pillow: faster, and
    a few 255ths off (`data/preprocess.py` has the numbers).

    >>> from PIL import Image
    >>> from vitrail.core.passport import Preprocessing
    >>> read_image(Image.new("RGB", (40, 30)), Preprocessing(size=(8, 8))).shape
    torch.Size([3, 8, 8])
    """
    # scaled decoding averages pixels, which only filters that do so too can be compared with
    scaled = not exact and preprocessing.interpolation in FAST
    at_least = (preprocessing.resize or preprocessing.size) if scaled else None
    pixels = read_photo(image, preprocessing, at_least)
    return resize_and_crop(pixels, preprocessing, exact=exact)


def read_native(
    image: ImageSource, preprocessing: Preprocessing, native: NativeSize, *, exact: bool = True
) -> Shaped[Tensor, "C _ _"]:
    """The whole image at its native size, whatever `resize` and `size` of the passport are; filter,
    channels and their order are the passport's.

    >>> from PIL import Image
    >>> from vitrail.core.passport import Preprocessing
    >>> how = Preprocessing(size=(224, 224))
    >>> read_native(Image.new("RGB", (400, 300)), how, NativeSize(16, 196)).shape
    torch.Size([3, 192, 256])
    """
    scaled = not exact and preprocessing.interpolation in FAST
    at_least = native.at_least if scaled else None
    pixels = read_photo(image, preprocessing, at_least)
    how = at_native_size(preprocessing, native, pixels.shape[:2])
    return resize_and_crop(pixels, how, exact=exact)


def read_photo(
    image: ImageSource, preprocessing: Preprocessing, at_least: tuple[int, int] | None
) -> Pixels:
    """The pixels that will be resized; at their own size they are for Pillow."""
    return read_pixels(
        image,
        channels=len(preprocessing.mean),
        at_least=at_least,
        bits=preprocessing.bits,
        padded=at_least is None,
    )


def preprocess(
    images: "ImageSource | Iterable[ImageSource]",
    preprocessing: Preprocessing,
    *,
    exact: bool = True,
) -> Float[Tensor, "B C H W"]:
    """One image or many as the batch that a model reads; `UserError` where one cannot be read.

    >>> from PIL import Image
    >>> from vitrail.core.passport import Preprocessing
    >>> preprocess([Image.new("L", (9, 9))] * 2, Preprocessing(size=(8, 8))).shape
    torch.Size([2, 3, 8, 8])
    """
    many: Any = [images] if is_one_image(images) else images
    if not isinstance(many, Iterable):
        raise not_an_image(images)
    try:
        read = [read_image(image, preprocessing, exact=exact) for image in many]
    except BadImage as problem:
        raise UserError(str(problem)) from None
    if not read:
        raise UserError("images must be at least one, got none")
    return normalise(torch.stack(read), preprocessing, reorder=False)
