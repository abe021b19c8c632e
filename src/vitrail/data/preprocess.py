"""From a decoded picture to a model's input, as its passport says and in no other way."""

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def prepare(picture: Image.Image, how: Preprocessing) -> Float[Tensor, "C H W"]:
    """Resize, crop, scale to [0, 1] and normalise one picture.

    >>> prepare(Image.new("RGB", (500, 375)), model.passport.preprocessing).shape
    torch.Size([3, 224, 224])
    """
    pixels = np.asarray(frame(in_channels(picture, len(how.mean)), how), dtype=np.float32) / 255
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if how.channel_order == "bgr":
        pixels = pixels[..., ::-1]
    mean, std = (np.asarray(values, dtype=np.float32) for values in (how.mean, how.std))
    return torch.from_numpy(((pixels - mean) / std).transpose(2, 0, 1).copy())


def frame(picture: Image.Image, how: Preprocessing) -> Image.Image:
    """The part of the picture that the model sees, at the size at which it sees it."""
    height, width = how.size
    resample = FILTERS[how.interpolation]
    if how.resize is None:
        return picture.resize((width, height), resample)
    picture = picture.resize(cover(picture.size, how.resize), resample)
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    return picture.crop((left, top, left + width, top + height))


def cover(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """(width, height) after scaling until the picture just covers the target (height, width).

    The side that decides is met exactly, the other is cut down to whole pixels, as torchvision
    does.
    """
    width, height = size
    if width * target[0] <= height * target[1]:
        return target[1], max(int(target[1] * height / width), target[0])
    return max(int(target[0] * width / height), target[1]), target[0]


def in_channels(picture: Image.Image, channels: int) -> Image.Image:
    modes = {1: "L", 3: "RGB"}
    if channels not in modes:
        raise UserError(
            f"the model reads {channels} channels, but a picture has 1 or 3: give it "
            "tensors instead"
        )
    return picture.convert(modes[channels])
