"""Upright pixels of an image, whatever holds it: a file, an address, bytes, an array, a data set.
Nothing here needs torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.data.bands import KINDS, Values, decode_bands, from_array, is_array_file
from vitrail.data.framing import MODES, to_array
from vitrail.data.images import BadImage, Pixels, decode, from_pillow
from vitrail.data.paths import is_address
from vitrail.data.source import Source
from vitrail.data.sources.places import image_bytes


@dataclass(frozen=True)
class Named:
    """An image in memory, and what it is called."""

    name: str
    image: "bytes | Image.Image | NDArray[Any]"


@dataclass(frozen=True)
class Sample:
    """One image of a data set."""

    source: Source
    index: int


Item: TypeAlias = str | Named  # a path or an address is its own name
ImageSource: TypeAlias = str | Path | bytes | Image.Image | NDArray[Any] | Named | Sample


def name_of(image: ImageSource) -> str:
    """What a person would call an image.

    >>> name_of("cat.jpg"), name_of(np.zeros((4, 4), dtype=np.uint8))
    ('cat.jpg', 'image')
    """
    match image:
        case str() | Path():
            return str(image)
        case Named():
            return image.name
        case Sample():
            return image.source.name(image.index)
        case _:
            return "image"


def read_pixels(
    image: ImageSource,
    *,
    channels: int = 3,
    at_least: tuple[int, int] | None = None,
    bits: int = 8,
    padded: bool = False,
) -> Pixels:
    """Upright pixels (H, W, C) with this many channels, or `BadImage`. A large JPEG may be decoded
    smaller where `at_least` (height, width) allows it, and with `padded` its pixels may lie four
    bytes apart, which Pillow resizes without a copy. Other numbers of channels than 1 and 3, and
    16 `bits`, are bands: `data/bands.py`.

    >>> Image.new("L", (4, 3), 128).save("grey.png")
    >>> read_pixels("grey.png").shape
    (3, 4, 3)
    """
    name = name_of(image)
    match image:
        case Sample():
            raw = image.source.read(image.index)
            if not isinstance(raw, bytes):
                return _with_channels(raw, channels, bits, name)
            return _decode(raw, name, at_least, channels, bits, padded)
        case Named():
            held = image.image
        case str() | Path():
            held = file_bytes(name)
        case _:
            held = image
    match held:
        case bytes():
            return _decode(held, name, at_least, channels, bits, padded)
        case Image.Image() if bits == 16 and held.mode.startswith("I"):
            return from_array(np.asarray(held), name, bands=channels, bits=bits)
        case Image.Image():
            if bits == 16 or channels not in MODES:
                raise BadImage(
                    name, f"a photo of 8 bits, the model reads {channels} bands of {bits} bits"
                )
            return from_pillow(held, name, channels=channels)
        case np.ndarray():
            if 0 in held.shape[:2]:
                raise BadImage(name, f"it has no pixels: its shape is {held.shape}")
            return to_array(held, channels, bits, name)
    raise not_an_image(held)


def is_one_image(images: object) -> TypeGuard[ImageSource]:
    """Whether this is an image rather than several; an array of four axes is several."""
    kinds = (str, Path, bytes, Image.Image, Named, Sample)
    return isinstance(images, kinds) or (isinstance(images, np.ndarray) and images.ndim < 4)


def not_an_image(value: object) -> UserError:
    return UserError(
        "images must be a path, an address, bytes, a PIL image, a uint8 array or an iterable of "
        f"these, got {type(value).__name__}"
    )


def file_bytes(path: str) -> bytes:
    """The bytes of an image as they are in its file or at its address, or `BadImage`."""
    if not is_address(path):
        return image_bytes(path)
    from vitrail.data.download import download  # here: few need it, and it is slow to import

    return download(path)


def _decode(
    data: bytes,
    name: str,
    at_least: tuple[int, int] | None,
    channels: int,
    bits: int,
    padded: bool,
) -> Pixels:
    if bits == 16 or channels not in MODES or is_array_file(data):
        return decode_bands(data, name, bands=channels, bits=bits)
    return decode(data, name, at_least=at_least, channels=channels, padded=padded)


def _with_channels(pixels: Values, channels: int, bits: int, name: str) -> Pixels:
    """An array of a data set: grey becomes RGB, anything else has to be what the model reads."""
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.itemsize * 8 != bits:
        raise UserError(
            f"{name} has {pixels.itemsize * 8}-bit values, the model reads {bits}-bit values: save "
            f"it as {KINDS[bits]}, or train a model on it"
        )
    if pixels.shape[2] == 1 and channels == 3:
        return pixels.repeat(3, axis=2)
    if pixels.shape[2] != channels:
        raise UserError(
            f"{name} has {pixels.shape[2]} channels, the model reads {channels}: "
            f"create it with channels={pixels.shape[2]}"
        )
    return pixels
