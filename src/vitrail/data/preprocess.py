"""From a decoded image to a model's input, as its passport says and in no other way.

There are two ways to resize. The exact one is Pillow's, by which timm, torchvision and the PIL
processors of transformers measured their weights: pixels agree to 1e-5. The fast one is torch's
own for 8-bit pixels, by which transformers' other processors work, at a fifth of the time. It is
within 1/255 of Pillow's where the filter is bilinear, and 2/255 where it is bicubic, but for a few
pixels at hard edges (8/255 was seen) where the two round in another order. It is taken only where
asked for.
"""

from functools import cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.images import convert_mode

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
FAST = ("bilinear", "bicubic")
MODES: dict[int, Literal["L", "RGB"]] = {1: "L", 3: "RGB"}
SHAPES = ((), (1,), (3,))  # of one pixel


def prepare(
    image: Image.Image | NDArray[np.uint8], preprocessing: Preprocessing, *, exact: bool = True
) -> Float[Tensor, "C H W"]:
    """Resize, crop, scale to [0, 1] and normalise one image: Pillow's, or uint8 pixels of shape
    (H, W) or (H, W, C) as the decoder returns them.

    >>> prepare(Image.new("RGB", (500, 375)), model.passport.preprocessing).shape
    torch.Size([3, 224, 224])
    """
    pixels = resize_and_crop(image, preprocessing, exact=exact)
    return normalise(pixels.contiguous(), preprocessing, reorder=False)


def resize_and_crop(
    image: Image.Image | NDArray[np.uint8], preprocessing: Preprocessing, *, exact: bool = True
) -> UInt8[Tensor, "C H W"]:
    """The part of an image that the model sees, at its size and in its order of channels, still in
    bytes: a quarter of the memory. `exact=False` resizes by torch instead of Pillow where the
    filter is bilinear or bicubic; this file's first lines compare the two."""
    channels = len(preprocessing.mean)
    if not exact and preprocessing.interpolation in FAST:
        pixels_CHW = resize_and_crop_torch(to_array(image, channels), preprocessing)
    else:
        seen = resize_and_crop_pillow(convert_channels(to_pillow(image), channels), preprocessing)
        array = np.array(seen).reshape(*preprocessing.size, channels)
        pixels_CHW = torch.from_numpy(array).permute(2, 0, 1)
    return pixels_CHW.flip(0) if preprocessing.channel_order == "bgr" else pixels_CHW


def normalise(
    pixels: Shaped[Tensor, "*B C H W"], preprocessing: Preprocessing, *, reorder: bool = True
) -> Float[Tensor, "*B C H W"]:
    """Pixels of 0 to 255 as the model reads them; `reorder` where they are RGB and it is not."""
    if reorder and preprocessing.channel_order == "bgr":
        pixels = pixels.flip(-3)
    factor, offset = normalisation(preprocessing)
    return pixels.float().mul_(factor).add_(offset)


@cache
def normalisation(
    preprocessing: Preprocessing,
) -> tuple[Float[Tensor, "C 1 1"], Float[Tensor, "C 1 1"]]:
    """(value / 255 - mean) / std as a factor and an offset: two passes over pixels, not three."""
    mean, std = np.array([preprocessing.mean, preprocessing.std], dtype=np.float64)
    factor, offset = (torch.tensor(values).float() for values in (1 / (255 * std), -mean / std))
    return factor.view(-1, 1, 1), offset.view(-1, 1, 1)


def resize_and_crop_pillow(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """By Pillow, in the channels that the image has."""
    (height, width), size = preprocessing.size, resized_size(image.size, preprocessing)
    left, top = crop_start(size, preprocessing)
    image = image.resize(size, FILTERS[preprocessing.interpolation])
    return image.crop((left, top, left + width, top + height))


def resize_and_crop_torch(
    pixels: NDArray[np.uint8], preprocessing: Preprocessing
) -> UInt8[Tensor, "C h w"]:
    """By torch, of pixels (H, W, C)."""
    height, width = preprocessing.size
    # the batch axis comes before the permutation, so that torch sees and keeps channels last
    image_1CHW = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    before = (pixels.shape[1], pixels.shape[0])
    size = resized_size(before, preprocessing)
    if size != before:
        image_1CHW = F.interpolate(
            image_1CHW, size[::-1], mode=preprocessing.interpolation, align_corners=False,
            antialias=True,
        )  # fmt: skip
    left, top = crop_start(size, preprocessing)
    return image_1CHW[0, :, top : top + height, left : left + width]


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
            f"the model reads {channels} channels, but an image has 1 or 3: give it tensors instead"
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
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def to_array(image: Image.Image | NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """An image as writable pixels (H, W, C), untouched where it is that already."""
    if isinstance(image, np.ndarray):
        known = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == channels
        if known and image.size and image.flags.writeable and min(image.strides) > 0:
            return image
    converted = convert_channels(to_pillow(image), channels)
    return np.array(converted).reshape(converted.height, converted.width, channels)
