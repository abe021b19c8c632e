"""From a decoded picture to a model's input, as its passport says and in no other way.

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
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.images import in_mode

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
    picture: Image.Image | NDArray[np.uint8], how: Preprocessing, *, fast: bool = False
) -> Float[Tensor, "C H W"]:
    """Resize, crop, scale to [0, 1] and normalise one picture: Pillow's, or uint8 pixels of shape
    (H, W) or (H, W, C) as the decoder gives them.

    `fast` resizes by torch instead of Pillow where the filter is bilinear or bicubic; this file's
    first lines compare the two.

    >>> prepare(Image.new("RGB", (500, 375)), model.passport.preprocessing).shape
    torch.Size([3, 224, 224])
    """
    factor, offset = normalisation(how)
    return framed(picture, how, fast=fast).contiguous().float().mul_(factor).add_(offset)


def framed(
    picture: Image.Image | NDArray[np.uint8], how: Preprocessing, *, fast: bool = False
) -> UInt8[Tensor, "C H W"]:
    """As `prepare` begins, up to where bytes become floats: a quarter of the memory."""
    channels = len(how.mean)
    if fast and how.interpolation in FAST:
        pixels_CHW = fast_frame(as_pixels(picture, channels), how)
    else:
        seen = np.array(frame(in_channels(as_picture(picture), channels), how))
        pixels_CHW = torch.from_numpy(seen.reshape(*how.size, channels)).permute(2, 0, 1)
    return pixels_CHW.flip(0) if how.channel_order == "bgr" else pixels_CHW


@cache
def normalisation(how: Preprocessing) -> tuple[Float[Tensor, "C 1 1"], Float[Tensor, "C 1 1"]]:
    """(value / 255 - mean) / std as a factor and an offset: two passes over pixels, not three."""
    mean, std = (np.array(values, dtype=np.float64) for values in (how.mean, how.std))
    factor, offset = (torch.tensor(values).float() for values in (1 / (255 * std), -mean / std))
    return factor.view(-1, 1, 1), offset.view(-1, 1, 1)


def frame(picture: Image.Image, how: Preprocessing) -> Image.Image:
    """The part of the picture that the model sees, at the size at which it sees it."""
    height, width = how.size
    resample = FILTERS[how.interpolation]
    picture = picture.resize(scaled(picture.size, how), resample)
    left, top = middle(picture.width, width, how), middle(picture.height, height, how)
    return picture.crop((left, top, left + width, top + height))


def fast_frame(pixels: NDArray[np.uint8], how: Preprocessing) -> UInt8[Tensor, "C h w"]:
    """As `frame`, of pixels (H, W, C) and resized by torch."""
    height, width = how.size
    # the batch axis comes before the permutation, so that torch sees and keeps channels last
    image_1CHW = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    size = (pixels.shape[1], pixels.shape[0])
    wide, tall = scaled(size, how)
    if (wide, tall) != size:
        image_1CHW = F.interpolate(
            image_1CHW, (tall, wide), mode=how.interpolation, align_corners=False, antialias=True
        )
    left, top = middle(wide, width, how), middle(tall, height, how)
    return image_1CHW[0, :, top : top + height, left : left + width]


def scaled(size: tuple[int, int], how: Preprocessing) -> tuple[int, int]:
    """(width, height) of a picture after scaling and before the crop."""
    if how.resize is None:
        return how.size[1], how.size[0]
    return (how.resize[1], how.resize[0]) if how.squeeze else cover(size, how.resize)


def cover(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """(width, height) after scaling until the picture just covers the target (height, width).

    The side that decides is met exactly, the other is cut down to whole pixels, as torchvision
    does.
    """
    width, height = size
    if width * target[0] <= height * target[1]:
        return target[1], max(int(target[1] * height / width), target[0])
    return max(int(target[0] * width / height), target[1]), target[0]


def middle(have: int, want: int, how: Preprocessing) -> int:
    """Where the centre begins; of two places the even one or the first, as the passport says."""
    return (have - want) // 2 if how.crop == "floored" else round((have - want) / 2)


def in_channels(picture: Image.Image, channels: int) -> Image.Image:
    if channels not in MODES:
        raise UserError(
            f"the model reads {channels} channels, but a picture has 1 or 3: give it "
            "tensors instead"
        )
    return in_mode(picture, MODES[channels])


def refuse_empty(height: int, width: int) -> None:
    if min(height, width) < 1:
        raise UserError(f"an image must have pixels, got one of {width}x{height}")


def as_picture(pixels: Image.Image | NDArray[np.uint8]) -> Image.Image:
    """Pixels as Pillow holds them."""
    if isinstance(pixels, Image.Image):
        refuse_empty(pixels.height, pixels.width)
        return pixels
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in SHAPES:
        raise UserError(
            f"pixels are {pixels.dtype} of shape {pixels.shape}, expected uint8 of shape (H, W), "
            "(H, W, 1) or (H, W, 3)"
        )
    refuse_empty(*pixels.shape[:2])
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def as_pixels(picture: Image.Image | NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """A picture as writable pixels (H, W, C), untouched where it is that already."""
    if isinstance(picture, np.ndarray):
        known = picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == channels
        if known and picture.size and picture.flags.writeable and min(picture.strides) > 0:
            return picture
    converted = in_channels(as_picture(picture), channels)
    return np.array(converted).reshape(converted.height, converted.width, channels)
