"""3-Augment (DeiT III, arXiv:2204.07118): grey, solarised or blurred, one of the three for every
image. DeiT III adds colour jitter of 0.3, which is an option of its own (`jitter`)."""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter, ImageOps

LEAST_BLUR, MOST_BLUR = 0.1, 2.0  # the radius in pixels
SOLARIZED = 128  # values from here on are inverted


@dataclass(frozen=True)
class ThreeAugment:
    """One of three operators, chosen by a seed."""

    def __call__(self, image: Image.Image, seed: int) -> Image.Image:
        draw = np.random.default_rng(seed)
        choice, strength = int(draw.integers(3)), float(draw.random())
        if choice == 0:
            return image.convert("L").convert(image.mode)
        if choice == 1:
            return ImageOps.solarize(image, SOLARIZED)
        radius = LEAST_BLUR + (MOST_BLUR - LEAST_BLUR) * strength
        return image.filter(ImageFilter.GaussianBlur(radius))
