"""Geometric augmentation of a whole batch at once, for images that are already of the model's size.

Crop, flip, rotation, shift and zoom are one affine map, so they cost one resampling; every sample's
draws are its own, and the same as in `augment`, whoever computes the batch.
"""

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.core.passport import Preprocessing
from vitrail.data.augment import Augmentation
from vitrail.data.draws import draws_for
from vitrail.data.finish import erase_
from vitrail.data.geometry import affine_maps
from vitrail.data.preprocess import normalise


def fits(augmentation: Augmentation) -> bool:
    """Whether all requested operations can be applied to a batch at once."""
    return augmentation.policy == "none" and augmentation.jitter == 0


def warp(
    images: Shaped[Tensor, "B C H W"],
    samples: NDArray[np.int64],
    augmentation: Augmentation,
    how: Preprocessing,
    *,
    seed: int,
    epoch: int,
) -> Float[Tensor, "B C H W"]:
    """Augmented and normalised images; `samples` are rows of (image, view)."""
    pixels = images.float()
    height, width = images.shape[2:]
    maps = affine_maps(augmentation, height, width, draws_for(seed, epoch, samples))
    if maps is not None:
        theta = torch.from_numpy(maps).float().to(images.device, non_blocking=True)
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        # bilinear would blur every training image and none that is judged: on 8x8 digits that cost
        # two points of accuracy
        pixels = F.grid_sample(pixels, grid, mode="bicubic", align_corners=False)
        pixels = pixels.clamp_(0, how.max_value)
    pixels = normalise(pixels, how)
    erase_(pixels, samples, augmentation, seed=seed, epoch=epoch)
    return pixels
