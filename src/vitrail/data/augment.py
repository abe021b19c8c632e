"""Augmentation of single images: Pillow's and torchvision's operators, with every draw decided by
the sample and not by its worker. `warp` does the same for whole batches of small images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.native_size import NativeSize
from vitrail.core.passport import Preprocessing
from vitrail.core.randomness import seed_of, uniform
from vitrail.core.ranges import check, check_count
from vitrail.core.torchvision import mend_torchvision
from vitrail.data.draws import Draw, draws_for
from vitrail.data.geometry import draw_crop, draw_mirror, draw_motion
from vitrail.data.preprocess import (
    FILTERS,
    at_native_size,
    resize_and_crop_torch,
    to_16_bits,
    to_pillow,
)
from vitrail.data.randaugment import Canvas, RandAugment
from vitrail.data.three_augment import ThreeAugment


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to a training image. `crop` is the range of the area that a random resized crop
    keeps, None for the evaluation frame; `shift` and `zoom` are shares of the side. RandAugment is
    timm's: `magnitude` is of 10, with normal noise of `magnitude_std`, and each of `operations` is
    applied with `operation_prob`."""

    crop: tuple[float, float] | None = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    rotate: float = 0.0  # degrees either way
    shift: float = 0.0
    zoom: float = 0.0
    policy: Literal["none", "randaugment", "trivialaugment", "augmix", "3augment"] = "none"
    operations: int = 2
    magnitude: float = 9.0
    magnitude_std: float = 0.5
    operation_prob: float = 0.5
    jitter: float = 0.0  # brightness, contrast and saturation
    erase: float = 0.0  # probability
    erase_fill: Literal["mean", "noise"] = "mean"
    mixup: float = 0.0  # the alpha of its Beta distribution
    cutmix: float = 0.0
    mix_off_epochs: float = 0.0  # at the end of the run, without mixup and cutmix
    repeats: int = 1  # views of an image in a batch
    sides: tuple[int, ...] = ()  # a batch has one of these sizes, and more images if it is small
    progressive: tuple[int, ...] = ()  # sides of the first epochs, in equal shares of the run

    def __post_init__(self) -> None:
        for name in ("flip", "erase", "operation_prob", "shift"):
            check(f"augmentation.{name}", getattr(self, name), at_least=0, at_most=1)
        for name in ("jitter", "mixup", "cutmix", "magnitude_std", "mix_off_epochs"):
            check(f"augmentation.{name}", getattr(self, name), at_least=0)
        check("augmentation.rotate", self.rotate, at_least=0, at_most=180)
        check("augmentation.zoom", self.zoom, at_least=0, below=1)
        check("augmentation.magnitude", self.magnitude, at_least=0, at_most=10)
        check_count("augmentation.operations", self.operations, at_least=1)
        check_count("augmentation.repeats", self.repeats, at_least=1)
        for name in ("sides", "progressive"):
            for side in getattr(self, name):
                check_count(f"augmentation.{name}", side, at_least=1)
        if self.sides and self.progressive:
            raise UserError("augmentation.sides must be empty with augmentation.progressive")
        if list(self.progressive) != sorted(set(self.progressive)):
            raise UserError(
                f"augmentation.progressive must grow from side to side, got {self.progressive}"
            )
        low, high = self.aspect
        check("augmentation.aspect", low, above=0)
        check("augmentation.aspect", high, at_least=low)
        if self.crop is not None:
            check("augmentation.crop", self.crop[0], above=0, at_most=1)
            check("augmentation.crop", self.crop[1], at_least=self.crop[0], at_most=1)


NOTHING = Augmentation(crop=None, flip=0.0)


class Transform:
    """From a decoded image to an augmented one of the model's size, or of the `native` size of what
    the crop leaves, both in RGB or grey; what chance decides is the sample's own, in any process or
    batch."""

    def __init__(
        self, augmentation: Augmentation, how: Preprocessing, native: NativeSize | None = None
    ) -> None:
        mend_torchvision()
        # torch has no Lanczos for tensors, and the closest that it has is bicubic
        fast = "bicubic" if how.interpolation == "lanczos" else how.interpolation
        self.how = replace(how, interpolation=fast)
        self.augmentation, self.native = augmentation, native
        self.policy = make_policy(augmentation, self.how)

    def __call__(
        self,
        image: Shaped[Tensor, "C H W"],
        *,
        seed: int,
        epoch: int,
        index: int,
        view: int,
        draw: Draw | None = None,
    ) -> Shaped[Tensor, "C h w"]:
        """`draw` are the sample's own draws, if they were computed with those of others."""
        draw = draw or draws_for(seed, epoch, np.array([[index, view]]))
        if self.how.bits == 16:  # which torch neither resizes nor moves
            return to_16_bits(self.apply_geometry(image.float(), draw)).contiguous()
        image = self.apply_geometry(image, draw)
        if self.policy is None and not self.augmentation.jitter:
            return image.contiguous()
        one = seed_of("augment", seed, epoch, index, view)
        with cpu_generator_at(one):  # torchvision draws from torch's own generator
            return self.apply_colour(image, one).contiguous()

    def apply_geometry(self, image: Shaped[Tensor, "C H W"], draw: Draw) -> Shaped[Tensor, "C h w"]:
        """Cropped or framed, mirrored, rotated, shifted and zoomed."""
        from torchvision.transforms.v2 import InterpolationMode, functional

        height, width = image.shape[1:]
        crop = draw_crop(self.augmentation, height, width, draw)
        box = (0, 0, height, width) if crop is None else crop.pixels(height, width)[0].tolist()
        how = self.how if self.native is None else at_native_size(self.how, self.native, box[2:])
        size = list(how.size)
        if crop is None and self.how.bits == 16:
            image = resize_and_crop_torch(to_16_bits(image).permute(1, 2, 0).numpy(), how).float()
        elif crop is None:
            image = resize_and_crop_torch(image.permute(1, 2, 0).numpy(), how)
        else:
            filters = InterpolationMode(how.interpolation)
            image = functional.resized_crop(image, *box, size, filters, antialias=True)
        if draw_mirror(self.augmentation, draw)[0]:
            image = image.flip(2)
        if (motion := draw_motion(self.augmentation, draw)) is not None:
            image = functional.affine(
                image,
                float(motion.angle[0]),
                [float(motion.right[0]) * size[1], float(motion.down[0]) * size[0]],
                float(motion.zoom[0]),
                [0.0],
                InterpolationMode.BILINEAR,
            )
        return image

    def apply_colour(self, image: Shaped[Tensor, "C h w"], seed: int) -> Shaped[Tensor, "C h w"]:
        from torchvision.transforms import v2

        if isinstance(self.policy, RandAugment | ThreeAugment):
            picture = to_pillow(image.permute(1, 2, 0).numpy())
            image = to_tensor(np.array(self.policy(picture, seed)))
        elif self.policy is not None:
            image = self.policy(image)
        if self.augmentation.jitter:
            image = v2.ColorJitter(*[self.augmentation.jitter] * 3)(image)
        return image

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew in another process, where torchvision may not have been mended yet."""
        return Transform, (self.augmentation, self.how, self.native)


@contextmanager
def cpu_generator_at(seed: int) -> Iterator[None]:
    """Torch's own generator of the CPU alone begins at a seed, and is put back afterwards.
    `torch.manual_seed` also visits every other kind of device, which takes milliseconds."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def make_policy(
    augmentation: Augmentation, how: Preprocessing
) -> RandAugment | ThreeAugment | torch.nn.Module | None:
    if augmentation.jitter and not how.is_photo:
        raise UserError(
            f"augmentation.jitter must be 0 for images of {len(how.mean)} channels and {how.bits} "
            f"bits, got {augmentation.jitter:g}: it changes grey and RGB of 8 bits"
        )
    if augmentation.policy == "none":
        return None
    if not how.is_photo:
        raise UserError(
            f"augmentation.policy must be none for images of {len(how.mean)} channels and "
            f"{how.bits} bits, got {augmentation.policy}: its operators know grey and RGB of 8 bits"
        )
    if augmentation.policy == "trivialaugment":
        from torchvision.transforms import v2

        return v2.TrivialAugmentWide()
    if augmentation.policy == "augmix":  # arXiv:1912.02781, without its consistency loss
        from torchvision.transforms import v2

        return v2.AugMix()
    if augmentation.policy == "3augment":
        return ThreeAugment()
    mean = how.mean[::-1] if how.channel_order == "bgr" else how.mean
    canvas = Canvas(FILTERS[how.interpolation], tuple(min(255, round(255 * m)) for m in mean))
    return RandAugment(
        operations=augmentation.operations,
        magnitude=augmentation.magnitude,
        magnitude_std=augmentation.magnitude_std,
        probability=augmentation.operation_prob,
        canvas=canvas,
    )


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
    partners = partners.to(images.device, non_blocking=True)
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
    """A rectangle of about (1 - share) of the image, cut at its border, and the exact share
    left."""
    side = math.sqrt(1 - share)
    row, column = int(generator.integers(height)), int(generator.integers(width))
    half_rows, half_columns = int(height * side) // 2, int(width * side) // 2
    top, bottom = max(row - half_rows, 0), min(row + half_rows, height)
    left, right = max(column - half_columns, 0), min(column + half_columns, width)
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return slice(top, bottom), slice(left, right), share


def to_tensor(pixels: NDArray[Any]) -> Shaped[Tensor, "C H W"]:
    """Decoded pixels (H, W) or (H, W, C) as torch likes them: channels last, and not copied unless
    nobody may write to them."""
    array = pixels[..., None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).permute(2, 0, 1)
