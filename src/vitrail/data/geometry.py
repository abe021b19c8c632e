"""Where an augmented image lies in its original: crop, mirror, rotation, shift and zoom, drawn once
for both engines, that of single images (`augment`) and that of whole batches (`warp`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.data.draws import Draw

if TYPE_CHECKING:
    from vitrail.data.augment import Augmentation

Numbers = NDArray[np.float64]
ATTEMPTS = 10  # to find a crop that fits, as torchvision and timm have it


@dataclass(frozen=True)
class Crop:
    """A rectangle for each sample, in shares of the image's sides; `row` and `column` are the draws
    that placed it."""

    high: Numbers
    wide: Numbers
    row: Numbers
    column: Numbers

    def pixels(self, height: int, width: int) -> NDArray[np.int64]:
        """(B, 4) whole pixels: top, left, height, width, as torchvision rounds them."""
        high = np.clip(np.rint(self.high * height), 1, height)
        wide = np.clip(np.rint(self.wide * width), 1, width)
        top = np.floor(self.row * (height - high + 1))
        left = np.floor(self.column * (width - wide + 1))
        return np.stack([top, left, high, wide], axis=1).astype(np.int64)


@dataclass(frozen=True)
class Motion:
    """Rotation (degrees, clockwise), zoom, and shifts in shares of the sides, for each sample."""

    angle: Numbers
    zoom: Numbers
    right: Numbers
    down: Numbers


def draw_crop(augmentation: Augmentation, height: int, width: int, draw: Draw) -> Crop | None:
    """A random resized crop (arXiv:1409.4842): the first of ten rectangles that fits, or else the
    largest in the middle whose aspect is allowed. None where the recipe has no crop."""
    if augmentation.crop is None:
        return None
    low, high = augmentation.crop
    area = (low + (high - low) * draw("area", ATTEMPTS)) * (height * width)
    narrow, broad = np.log(augmentation.aspect)
    aspect = np.exp(narrow + (broad - narrow) * draw("aspect", ATTEMPTS))
    wides, highs = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (wides > 0) & (wides <= width) & (highs > 0) & (highs <= height)
    first, rows = fits.argmax(axis=1), np.arange(len(fits))
    any_fits = fits.any(axis=1)
    # unrounded: a batch of tiny images is resampled between its pixels
    wide = np.minimum(np.sqrt(area * aspect)[rows, first] / width, 1)
    high_share = np.minimum(np.sqrt(area / aspect)[rows, first] / height, 1)
    allowed = np.clip(width / height, *augmentation.aspect)
    middle = np.full(len(rows), 0.5)
    return Crop(
        high=np.where(any_fits, high_share, min(width / allowed / height, 1)),
        wide=np.where(any_fits, wide, min(height * allowed / width, 1)),
        row=np.where(any_fits, draw("row", 1)[:, 0], middle),
        column=np.where(any_fits, draw("column", 1)[:, 0], middle),
    )


def draw_mirror(augmentation: Augmentation, draw: Draw) -> NDArray[np.bool_]:
    mirrored: NDArray[np.bool_] = draw("flip", 1)[:, 0] < augmentation.flip
    return mirrored


def draw_motion(augmentation: Augmentation, draw: Draw) -> Motion | None:
    """None where the recipe has neither rotation nor shift nor zoom."""
    if not (augmentation.rotate or augmentation.shift or augmentation.zoom):
        return None

    def either_way(purpose: str, most: float) -> Numbers:
        return most * (2 * draw(purpose, 1)[:, 0] - 1)

    return Motion(
        angle=either_way("angle", augmentation.rotate),
        zoom=1 + either_way("zoom", augmentation.zoom),
        right=either_way("right", augmentation.shift),
        down=either_way("down", augmentation.shift),
    )


def affine_maps(
    augmentation: Augmentation, height: int, width: int, draw: Draw
) -> NDArray[np.float64] | None:
    """For every sample the 2 x 3 matrix from output to input coordinates, both in [-1, 1]: the
    motion, then the mirror, then the crop. None where nothing moves."""
    crop = draw_crop(augmentation, height, width, draw)
    motion = draw_motion(augmentation, draw)
    if crop is None and motion is None and not augmentation.flip:
        return None
    mirror = np.where(draw_mirror(augmentation, draw), -1.0, 1.0)
    maps = np.zeros((len(mirror), 2, 3))
    maps[:, 0, 0] = maps[:, 1, 1] = 1
    if motion is not None:
        angle = np.deg2rad(motion.angle)
        cos, sin = np.cos(angle) / motion.zoom, np.sin(angle) / motion.zoom
        right, down = 2 * motion.right, 2 * motion.down  # a side is 2 long in these coordinates
        sin_x, sin_y = sin * height / width, sin * width / height  # which are not square
        maps[:, 0] = np.stack([cos, sin_x, -cos * right - sin_x * down], axis=1)
        maps[:, 1] = np.stack([-sin_y, cos, sin_y * right - cos * down], axis=1)
    maps[:, 0] *= mirror[:, None]
    if crop is not None:
        maps[:, 0] *= crop.wide[:, None]
        maps[:, 1] *= crop.high[:, None]
        maps[:, 0, 2] += (1 - crop.wide) * (2 * crop.column - 1)
        maps[:, 1, 2] += (1 - crop.high) * (2 * crop.row - 1)
    return maps
