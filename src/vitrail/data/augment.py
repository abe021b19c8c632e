"""Augmentation: torchvision's operators, with every draw decided by the sample and not by its
worker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.core.randomness import seed_of, uniform
from vitrail.core.torchvision import mend_torchvision
from vitrail.data.preprocess import fast_frame


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to a training image. `crop` is the range of the area that a random resized crop
    keeps, None for the evaluation frame; `shift` and `zoom` are shares of the side."""

    crop: tuple[float, float] | None = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    rotate: float = 0.0  # degrees either way
    shift: float = 0.0
    zoom: float = 0.0
    policy: Literal["none", "randaugment", "trivialaugment"] = "none"
    operations: int = 2
    magnitude: int = 9
    jitter: float = 0.0  # brightness, contrast and saturation
    erase: float = 0.0  # probability
    mixup: float = 0.0  # the alpha of its Beta distribution
    cutmix: float = 0.0
    repeats: int = 1
    sides: tuple[int, ...] = ()  # a batch has one of these sizes, and more images if it is small

    def __post_init__(self) -> None:
        for name in ("flip", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}, but a probability is in [0, 1]")
        for name in ("rotate", "shift", "zoom", "jitter", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}, but must not be negative")
        if self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise UserError(f"crop is {self.crop}, expected two shares with 0 < low <= high <= 1")
        if any(side < 1 for side in self.sides):
            raise UserError(f"sides are {self.sides}, but a side has at least one pixel")
        if self.repeats < 1:
            raise UserError(f"repeats is {self.repeats}, but must be at least 1")


NOTHING = Augmentation(crop=None, flip=0.0)


def make_transform(augmentation: Augmentation, how: Preprocessing) -> Seeded:
    """From a decoded image and the seed of its sample to an augmented, normalised tensor."""
    mend_torchvision()
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import InterpolationMode

    filters = InterpolationMode(how.interpolation)
    steps: list[torch.nn.Module] = []
    if augmentation.crop is not None:
        crop, aspect = augmentation.crop, augmentation.aspect
        size = list(how.size)
        steps.append(v2.RandomResizedCrop(size, crop, aspect, filters, antialias=True))
    else:
        steps.append(Frame(how))
    if augmentation.flip:
        steps.append(v2.RandomHorizontalFlip(augmentation.flip))
    if augmentation.rotate or augmentation.shift or augmentation.zoom:
        shift, zoom = augmentation.shift, augmentation.zoom
        steps.append(
            v2.RandomAffine(
                augmentation.rotate,
                translate=(shift, shift),
                scale=(1 - zoom, 1 + zoom),
                interpolation=InterpolationMode.BILINEAR,
            )
        )
    if augmentation.policy == "randaugment":
        steps.append(v2.RandAugment(augmentation.operations, augmentation.magnitude))
    if augmentation.policy == "trivialaugment":
        steps.append(v2.TrivialAugmentWide())
    if augmentation.jitter:
        steps.append(v2.ColorJitter(*[augmentation.jitter] * 3))
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(how.mean, how.std)]
    if augmentation.erase:
        steps.append(v2.RandomErasing(augmentation.erase, value=0))
    return Seeded(v2.Compose(steps), augmentation, how)


@dataclass(frozen=True)
class Seeded:
    """Operators of torchvision, which draw from torch's own generator: seeded for one sample, then
    put back."""

    chain: torch.nn.Module
    augmentation: Augmentation
    how: Preprocessing

    def __call__(self, image: UInt8[Tensor, "C H W"], seed: int) -> Float[Tensor, "C h w"]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backwards = self.how.channel_order == "bgr"
            changed: Tensor = self.chain(image.flip(0) if backwards else image)
            return changed

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew in another process, where torchvision may not have been mended yet."""
        return make_transform, (self.augmentation, self.how)


class Frame(torch.nn.Module):
    """The evaluation frame, by the fast path."""

    def __init__(self, how: Preprocessing) -> None:
        super().__init__()
        self.how = how

    def forward(self, image: UInt8[Tensor, "C H W"]) -> UInt8[Tensor, "C h w"]:
        return fast_frame(image.permute(1, 2, 0).numpy(), self.how)


def mix(
    images: Float[Tensor, "B C H W"],
    targets: Float[Tensor, "B K"],
    augmentation: Augmentation,
    *,
    seed: int,
    step: int,
    partners: Int64[Tensor, " B"] | None = None,
) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B K"]]:
    """Mixup (arXiv:1710.09412) or cutmix (arXiv:1905.04899) of a batch with itself, one or the
    other where both are on; the same for every process that works on this step. `partners` are
    the rows to mix with; by default the first goes with the last, and so on."""
    if not (augmentation.mixup or augmentation.cutmix) or not len(images):
        return images, targets
    if partners is None:
        partners = torch.arange(len(images)).flip(0)
    partners = partners.to(images.device)
    cut = augmentation.cutmix > 0 and (
        augmentation.mixup == 0 or float(uniform("which", seed, step)) < 0.5
    )
    alpha = augmentation.cutmix if cut else augmentation.mixup
    generator = np.random.default_rng(seed_of("beta", seed, step))
    share = float(generator.beta(alpha, alpha))
    others = images[partners]
    if cut:
        rows, columns, share = _box(images.shape[2], images.shape[3], share, generator)
        images = images.clone()
        images[:, :, rows, columns] = others[:, :, rows, columns]
    else:
        images = images.lerp(others, 1 - share)
    return images, targets.lerp(targets[partners], 1 - share)


def _box(
    height: int, width: int, share: float, generator: np.random.Generator
) -> tuple[slice, slice, float]:
    """A rectangle of about (1 - share) of the picture, cut at its border, and the exact share
    left."""
    side = math.sqrt(1 - share)
    row, column = int(generator.integers(height)), int(generator.integers(width))
    half_rows, half_columns = int(height * side) // 2, int(width * side) // 2
    top, bottom = max(row - half_rows, 0), min(row + half_rows, height)
    left, right = max(column - half_columns, 0), min(column + half_columns, width)
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return slice(top, bottom), slice(left, right), share


def as_image(pixels: NDArray[np.uint8]) -> UInt8[Tensor, "C H W"]:
    """Decoded pixels (H, W) or (H, W, C) as torch likes them."""
    array = pixels[..., None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
