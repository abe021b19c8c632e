"""From a decoded image to a model's input, as its passport says and in no other way.

There are two ways to resize. The exact one is Pillow's, by which timm, torchvision and the PIL
processors of transformers measured their weights: pixels agree to 1e-5. The fast one is torch's
own for 8-bit pixels, by which transformers' other processors work, at a fifth of the time. It is
within 1/255 of Pillow's where the filter is bilinear, and 2/255 where it is bicubic, but for a few
pixels at hard edges (8/255 was seen) where the two round in another order. It is taken only where
asked for.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.native_size import NativeSize
from vitrail.core.passport import Preprocessing
from vitrail.data.framing import (
    FILTERS,
    MODES,
    cover_size,
    crop_start,
    frame_image,
    normalisation_factors,
    resize_and_crop_pillow,
    resized_size,
    to_array,
    to_pillow,
)

__all__ = [  # what other rooms find here; framing is the part of it that needs no torch
    "FAST",
    "FILTERS",
    "MODES",
    "at_native_size",
    "cover_size",
    "crop_start",
    "denormalise",
    "normalise",
    "prepare",
    "resize_and_crop",
    "resize_and_crop_pillow",
    "resize_and_crop_torch",
    "resized_size",
    "to_array",
    "to_pillow",
]

FAST = ("bilinear", "bicubic")


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
) -> Shaped[Tensor, "C H W"]:
    """The part of an image that the model sees, at its size and in its order of channels, still in
    bytes: a quarter of the memory. `exact=False` resizes by torch instead of Pillow where the
    filter is bilinear or bicubic; this file's first lines compare the two."""
    if exact or preprocessing.interpolation not in FAST:
        framed = frame_image(image, preprocessing)
        if preprocessing.channel_order == "bgr":  # torch knows no negative strides
            framed = framed.copy()
        return torch.from_numpy(framed)
    pixels = to_array(image, len(preprocessing.mean), preprocessing.bits)
    pixels_CHW = resize_and_crop_torch(pixels, preprocessing)
    return pixels_CHW.flip(0) if preprocessing.channel_order == "bgr" else pixels_CHW


def at_native_size(
    preprocessing: Preprocessing, native: NativeSize, size: Sequence[int]
) -> Preprocessing:
    """The same preparation for the whole of an image of this size (height, width), at its native
    one."""
    return replace(preprocessing, size=native.size(*size), resize=None, squeeze=False)


def normalise(
    pixels: Shaped[Tensor, "*B C H W"], preprocessing: Preprocessing, *, reorder: bool = True
) -> Float[Tensor, "*B C H W"]:
    """Pixels of 0 to 255 as the model reads them; `reorder` where they are RGB and it is not."""
    if reorder and preprocessing.channel_order == "bgr":
        pixels = pixels.flip(-3)
    factor, offset = normalisation(preprocessing, pixels.device)
    return pixels.float().mul_(factor).add_(offset)


def denormalise(
    images: Float[Tensor, "B C H W"], preprocessing: Preprocessing
) -> UInt8[Tensor, "B H W C"]:
    """The way back from `normalise`, exact for what came from there: RGB pixels. Of 16 bits it is
    something to look at: every band from two standard deviations below its mean to two above."""
    if preprocessing.bits == 16:
        shown = ((images + 2) / 4 * 255).round().clamp(0, 255).to(torch.uint8)
        return shown.permute(0, 2, 3, 1)
    factor, offset = normalisation(preprocessing)
    pixels = ((images - offset) / factor).round().clamp(0, 255).to(torch.uint8)
    rgb = pixels.flip(1) if preprocessing.channel_order == "bgr" else pixels
    return rgb.permute(0, 2, 3, 1)


def are_pixels(images: Float[Tensor, "*B C H W"], preprocessing: Preprocessing) -> bool:
    """Whether `denormalise` gives them back: pixels of 0 to 255 that were normalised, each within
    half a step of its grey level."""
    factor, offset = normalisation(preprocessing)
    pixels = (images - offset) / factor
    return bool(((pixels > -0.5) & (pixels < 255.5)).all())  # False for NaN too


@cache
def normalisation(
    preprocessing: Preprocessing, device: torch.device | None = None
) -> tuple[Float[Tensor, "C 1 1"], Float[Tensor, "C 1 1"]]:
    """A factor and an offset for each channel."""
    factor, offset = map(torch.from_numpy, normalisation_factors(preprocessing))
    return factor.view(-1, 1, 1).to(device), offset.view(-1, 1, 1).to(device)


def resize_and_crop_torch(
    pixels: NDArray[Any], preprocessing: Preprocessing
) -> Shaped[Tensor, "C h w"]:
    """By torch, of pixels (H, W, C)."""
    height, width = preprocessing.size
    # the batch axis comes before the permutation, so that torch sees and keeps channels last
    image_1CHW = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    if preprocessing.bits == 16:
        image_1CHW = image_1CHW.float()  # torch resizes no 16-bit values
    before = (pixels.shape[1], pixels.shape[0])
    size = resized_size(before, preprocessing)
    if size != before:
        image_1CHW = F.interpolate(
            image_1CHW, size[::-1], mode=preprocessing.interpolation, align_corners=False,
            antialias=True,
        )  # fmt: skip
    left, top = crop_start(size, preprocessing)
    seen = image_1CHW[0, :, top : top + height, left : left + width]
    return seen if preprocessing.bits == 8 else to_16_bits(seen)


def to_16_bits(image: Float[Tensor, "*B C H W"]) -> Shaped[Tensor, "*B C H W"]:
    """Whole numbers again, after an operator that gave floats."""
    return image.round().clamp(0, 2**16 - 1).to(torch.uint16)
