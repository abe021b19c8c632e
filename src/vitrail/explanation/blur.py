"""A Gaussian blur whose width is a share of the image's sides."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def gaussian_blur(
    images: Float[Tensor, "B C H W"],
    share: float,
    *,
    beyond: Literal["zeros", "reflect"] = "reflect",
) -> Float[Tensor, "B C H W"]:
    """Blurred along each side by a deviation that is `share` of it, cut at two deviations; what
    lies beyond the border is nothing, or the image once more."""
    for axis, length in ((2, images.shape[2]), (3, images.shape[3])):
        reach = min(math.ceil(2 * share * length), length - 1)
        if not reach:
            continue
        place = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
        kernel = torch.exp(-((place / (share * length)) ** 2) / 2)
        weights = (kernel / kernel.sum()).view(1, 1, *((-1, 1) if axis == 2 else (1, -1)))
        margin = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
        how = "constant" if beyond == "zeros" else "reflect"
        flat = F.pad(images, margin, mode=how).flatten(0, 1)[:, None]
        images = F.conv2d(flat, weights)[:, 0].unflatten(0, images.shape[:2])
    return images
