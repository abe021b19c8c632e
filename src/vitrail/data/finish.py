"""Random erasing of normalised batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.randomness import seed_of
from vitrail.data.draws import draws_for

if TYPE_CHECKING:
    from vitrail.data.augment import Augmentation

ATTEMPTS = 10
AREA, ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)


def erase_(
    images: Float[Tensor, "B C H W"],
    samples: NDArray[np.int64],
    augmentation: Augmentation,
    *,
    seed: int,
    epoch: int,
) -> None:
    """Random erasing (arXiv:1708.04896) of normalised images, as timm has it: with some probability
    a rectangle of 2 to 33 % becomes the mean (0), or noise for every pixel."""
    if not augmentation.erase:
        return
    draw = draws_for(seed, epoch, samples)
    height, width = images.shape[2:]
    area = (AREA[0] + (AREA[1] - AREA[0]) * draw("erased area", ATTEMPTS)) * (height * width)
    small, large = np.log(ASPECT)
    aspect = np.exp(small + (large - small) * draw("erased aspect", ATTEMPTS))
    rows, columns = (np.rint(np.sqrt(side)).astype(int) for side in (area * aspect, area / aspect))
    fits = (rows < height) & (columns < width)
    chosen = (draw("erase", 1)[:, 0] < augmentation.erase) & fits.any(axis=1)
    row, column = draw("erased row", 1)[:, 0], draw("erased column", 1)[:, 0]
    for i in np.flatnonzero(chosen).tolist():
        first = int(fits[i].argmax())
        high, wide = int(rows[i, first]), int(columns[i, first])
        top, left = int(row[i] * (height - high + 1)), int(column[i] * (width - wide + 1))
        box = images[i, :, top : top + high, left : left + wide]
        if augmentation.erase_fill == "mean":
            box.zero_()
        else:
            drawn = torch.Generator().manual_seed(seed_of("noise", seed, epoch, *samples[i]))
            noise = torch.empty(box.shape).normal_(generator=drawn)  # equal on every device
            box.copy_(noise, non_blocking=True)
