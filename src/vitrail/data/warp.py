"""Geometric augmentation of a whole batch at once, for images that are already of the model's size.

Crop, flip, rotation, shift and zoom are one affine map, so they cost one resampling; every sample's
draws are its own, as in `augment`, whoever computes the batch.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.passport import Preprocessing
from vitrail.core.randomness import uniform
from vitrail.data.augment import Augmentation

Draw: TypeAlias = "Callable[[str], NDArray[np.float64]]"  # one number a sample, for a purpose


def fits(augmentation: Augmentation) -> bool:
    """Whether all that is asked for can be done to a batch at once."""
    return augmentation.policy == "none" and augmentation.jitter == 0


def warp(
    images: UInt8[Tensor, "B C H W"],
    samples: NDArray[np.int64],
    augmentation: Augmentation,
    how: Preprocessing,
    *,
    seed: int,
    epoch: int,
) -> Float[Tensor, "B C H W"]:
    """Augmented and normalised images; `samples` are rows of (image, view)."""

    def draw(purpose: str) -> NDArray[np.float64]:
        return uniform(purpose, seed, epoch, samples[:, 0], samples[:, 1])

    pixels = images.float().div_(255)
    maps = affine(augmentation, draw)
    if maps is not None:
        grid = F.affine_grid(
            torch.from_numpy(maps).float(), list(images.shape), align_corners=False
        )
        # bilinear would blur every training image and none that is judged: on 8x8 digits that cost
        # two points of accuracy
        pixels = F.grid_sample(pixels, grid, mode="bicubic", align_corners=False).clamp_(0, 1)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (how.mean, how.std))
    pixels = pixels.sub_(mean).div_(std)
    if augmentation.erase:
        erase_(pixels, augmentation.erase, draw)
    return pixels


def affine(augmentation: Augmentation, draw: Draw) -> NDArray[np.float64] | None:
    """For every sample the 2 x 3 matrix from output to input coordinates, both in [-1, 1]."""
    turning = (augmentation.rotate, augmentation.shift, augmentation.zoom, augmentation.flip)
    if augmentation.crop is None and not any(turning):
        return None
    count = len(draw("size"))
    wide = high = np.ones(count)
    if augmentation.crop is not None:
        low, top = augmentation.crop
        area = low + (top - low) * draw("area")
        small, large = np.log(augmentation.aspect)
        aspect = np.exp(small + (large - small) * draw("aspect"))
        wide = np.minimum(np.sqrt(area * aspect), 1)
        high = np.minimum(np.sqrt(area / aspect), 1)
    zoom = 1 + augmentation.zoom * (2 * draw("zoom") - 1)
    angle = np.deg2rad(augmentation.rotate) * (2 * draw("angle") - 1)
    mirror = np.where(draw("flip") < augmentation.flip, -1.0, 1.0)
    cos, sin = np.cos(angle) / zoom, np.sin(angle) / zoom
    reach = 2 * augmentation.shift  # the side is 2 long in these coordinates
    right = (1 - wide) * (2 * draw("column") - 1) + reach * (2 * draw("right") - 1)
    down = (1 - high) * (2 * draw("row") - 1) + reach * (2 * draw("down") - 1)
    maps = np.empty((count, 2, 3))
    maps[:, 0] = np.stack([wide * cos * mirror, -high * sin, right], axis=1)
    maps[:, 1] = np.stack([wide * sin * mirror, high * cos, down], axis=1)
    return maps


def erase_(pixels: Float[Tensor, "B C H W"], probability: float, draw: Draw) -> None:
    """Random erasing (arXiv:1708.04896): with some probability, a rectangle of 2 to 33 % becomes
    0."""
    height, width = pixels.shape[2:]
    chosen = draw("erase") < probability
    area = 0.02 + 0.31 * draw("erased area")
    aspect = np.exp(np.log(0.3) + (np.log(1 / 0.3) - np.log(0.3)) * draw("erased aspect"))
    rows = np.clip(np.sqrt(area * aspect) * height, 1, height).astype(int)
    columns = np.clip(np.sqrt(area / aspect) * width, 1, width).astype(int)
    tops = (draw("erased row") * (height - rows + 1)).astype(int)
    lefts = (draw("erased column") * (width - columns + 1)).astype(int)
    for i in np.flatnonzero(chosen):
        pixels[i, :, tops[i] : tops[i] + rows[i], lefts[i] : lefts[i] + columns[i]] = 0
