"""From an image's source to the pixels that a model will see, or the reason why that cannot be."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.core.passport import Preprocessing
from vitrail.data.images import BadImage, decode, from_pillow, read_image
from vitrail.data.preprocess import FAST, framed
from vitrail.inference.paths import is_address

ImageSource: TypeAlias = str | Path | Image.Image | NDArray[np.uint8]


@dataclass(frozen=True)
class NamedImage:
    """An image in memory, and what it is called."""

    name: str
    image: Image.Image | NDArray[np.uint8]


Item: TypeAlias = str | NamedImage  # a path or an address is its own name


def item_name(item: Item) -> str:
    return item if isinstance(item, str) else item.name


def read_framed(
    item: Item, how: Preprocessing, *, exact: bool
) -> UInt8[Tensor, "C H W"] | BadImage:
    """Decoded, resized and cropped; `exact`: as the weights' authors did."""
    try:
        return framed(read_pixels(item, how, exact=exact), how, fast=not exact)
    except BadImage as problem:
        return problem.with_traceback(None)  # which would keep the file's bytes alive


def read_pixels(
    item: Item, how: Preprocessing, *, exact: bool = True
) -> NDArray[np.uint8] | Image.Image:
    """A file, an address, or an image in memory, upright and decoded, or `BadImage`."""
    channels = len(how.mean)
    # scaled decoding averages pixels, which only filters that do so too can be compared with
    at_least = (how.resize or how.size) if not exact and how.interpolation in FAST else None
    if isinstance(item, NamedImage):
        if isinstance(item.image, Image.Image):
            return from_pillow(item.image, item.name, channels=channels)
        if 0 in item.image.shape[:2]:
            raise BadImage(item.name, f"it has no pixels: its shape is {item.image.shape}")
        return item.image
    if is_address(item):
        from vitrail.inference.download import download  # here: few need it, and it is slow

        return decode(download(item), item, at_least=at_least, channels=channels)
    return read_image(item, at_least=at_least, channels=channels)
