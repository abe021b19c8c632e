"""The part of an image that a model sees, by Pillow and in bytes: the exact way, without torch.

By Pillow timm, torchvision and the PIL processors of transformers measured their weights.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.bands import frame_bands, from_array
from vitrail.data.images import convert_mode, padded_buffer

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
MODES: dict[int, Literal["L", "RGB"]] = {1: "L", 3: "RGB"}
SHAPES = ((), (1,), (3,))  # of one pixel


def frame_image(image: Image.Image | NDArray[Any], preprocessing: Preprocessing) -> NDArray[Any]:
    """(C, H, W): resized and cropped, in the model's order of channels.

    >>> frame_image(Image.new("RGB", (500, 375)), Preprocessing(size=(224, 224))).shape
    (3, 224, 224)
    """
    channels = len(preprocessing.mean)
    if not preprocessing.is_photo:
        return frame_bands(to_array(image, channels, preprocessing.bits), preprocessing)
    whole = to_pillow(image)
    if (whole.mode, channels) != ("RGBX", 3):  # which is cheaper to convert once it is small
        whole = convert_channels(whole, channels)
    seen = convert_channels(resize_and_crop_pillow(whole, preprocessing), channels)
    pixels_CHW = np.array(seen).reshape(*preprocessing.size, channels).transpose(2, 0, 1)
    return pixels_CHW[::-1] if preprocessing.channel_order == "bgr" else pixels_CHW


def normalise_pixels(pixels: NDArray[Any], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """(…, C, H, W) in the model's order of channels, as it reads them: equal to the bit to
    `normalise` of `data/preprocess.py`."""
    factor, offset = normalisation_factors(preprocessing)
    return pixels.astype(np.float32) * factor[:, None, None] + offset[:, None, None]


def normalisation_factors(
    preprocessing: Preprocessing,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(value / 255 - mean) / std as a factor and an offset: two passes over pixels, not three; of
    16 bits (value / 65535 - mean) / std."""
    mean, std = np.array([preprocessing.mean, preprocessing.std], dtype=np.float64)
    with np.errstate(over="ignore"):  # the output is infinite then, and reported for each image
        return (1 / (preprocessing.max_value * std)).astype(np.float32), (-mean / std).astype(
            np.float32
        )


def resize_and_crop_pillow(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """By Pillow, in the channels that the image has."""
    (height, width), size = preprocessing.size, resized_size(image.size, preprocessing)
    left, top = crop_start(size, preprocessing)
    image = image.resize(size, FILTERS[preprocessing.interpolation])
    return image.crop((left, top, left + width, top + height))


def resized_size(size: tuple[int, int], preprocessing: Preprocessing) -> tuple[int, int]:
    """(width, height) of an image after resizing and before the crop."""
    target = preprocessing.resize or preprocessing.size
    if preprocessing.resize is None or preprocessing.squeeze:
        return target[1], target[0]
    return cover_size(size, target)


def cover_size(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """(width, height) after scaling until the image just covers the target (height, width).

    The side that decides is met exactly, the other is cut down to whole pixels, as torchvision
    does.
    """
    width, height = size
    if width * target[0] <= height * target[1]:
        return target[1], max(int(target[1] * height / width), target[0])
    return max(int(target[0] * width / height), target[1]), target[0]


def crop_start(size: tuple[int, int], preprocessing: Preprocessing) -> tuple[int, int]:
    """(left, top) of the centre crop of a resized image (width, height); where a margin is odd, the
    half is rounded to even or down, as the passport says."""
    margins = size[0] - preprocessing.size[1], size[1] - preprocessing.size[0]
    if preprocessing.crop == "floored":
        return margins[0] // 2, margins[1] // 2
    return round(margins[0] / 2), round(margins[1] / 2)


def convert_channels(image: Image.Image, channels: int) -> Image.Image:
    if channels not in MODES:
        raise UserError(
            f"the model reads {channels} channels, but a photo has 1 or 3: give it TIFF or NumPy "
            f"files with {channels} bands, arrays or tensors"
        )
    return convert_mode(image, MODES[channels])


def check_not_empty(height: int, width: int) -> None:
    if min(height, width) < 1:
        raise UserError(f"an image must have pixels, got one of {width}x{height}")


def to_pillow(pixels: Image.Image | NDArray[np.uint8]) -> Image.Image:
    """Pixels as Pillow holds them."""
    if isinstance(pixels, Image.Image):
        check_not_empty(pixels.height, pixels.width)
        return pixels
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in SHAPES:
        raise UserError(
            f"pixels are {pixels.dtype} of shape {pixels.shape}, expected uint8 of shape (H, W), "
            "(H, W, 1) or (H, W, 3)"
        )
    check_not_empty(*pixels.shape[:2])
    if (buffer := padded_buffer(pixels)) is not None:
        return Image.frombuffer("RGBX", pixels.shape[1::-1], buffer, "raw", "RGBX", 0, 1)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def to_array(
    image: Image.Image | NDArray[Any], channels: int, bits: int = 8, name: str = "image"
) -> NDArray[Any]:
    """An image as writable pixels (H, W, C), untouched where it is that already."""
    if isinstance(image, np.ndarray) and (bits == 16 or channels not in MODES):
        return from_array(image, name, bands=channels, bits=bits)
    if isinstance(image, np.ndarray):
        known = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == channels
        if known and image.size and image.flags.writeable and min(image.strides) > 0:
            return image
    converted = convert_channels(to_pillow(image), channels)
    return np.array(converted).reshape(converted.height, converted.width, channels)
