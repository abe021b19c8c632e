"""The passport: what has to travel with weights for them to mean the same thing elsewhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitrail.core.errors import UserError

ResizeMethod = Literal["paper", "timm", "hf", "torchvision", "dinov2", "dinov2_registers"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

MOST_PIXELS = 2**15  # a side; an image is not scaled to more, whatever a file says
INCEPTION = (0.5, 0.5, 0.5)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """From a decoded image to the model's input, as the weights were trained to see it.

    The image is scaled, keeping its shape, until it just covers `resize`, and its centre is
    cropped to `size`; with `squeeze` it is made to fill `resize` exactly instead; without `resize`
    the whole image is squeezed into `size`. Where half of a margin is no whole number the crop
    begins at it `rounded` to even (torchvision, timm) or `floored` (transformers). Sizes are
    (height, width). Values of 8 or 16 `bits` are brought to [0, 1], then (value - mean) / std per
    channel.
    """

    size: tuple[int, int]
    resize: tuple[int, int] | None = None
    squeeze: bool = False
    crop: Literal["rounded", "floored"] = "rounded"
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = INCEPTION
    std: tuple[float, ...] = INCEPTION
    channel_order: Literal["rgb", "bgr"] = "rgb"
    bits: Literal[8, 16] = 8

    def __post_init__(self) -> None:
        for sides in (self.size, self.resize or self.size):
            if not 1 <= min(sides) <= max(sides) <= MOST_PIXELS:
                raise UserError(f"image size must be 1 to {MOST_PIXELS} pixels a side, got {sides}")
        if len(self.mean) != len(self.std):
            raise UserError(
                f"mean and std must have the same number of channels, got {len(self.mean)} and "
                f"{len(self.std)}"
            )
        if 0 in self.std:
            raise UserError(f"std must not be 0 in any channel, got {self.std}")

    @property
    def max_value(self) -> int:
        """The largest value of a pixel."""
        return 2**self.bits - 1

    @property
    def is_photo(self) -> bool:
        """Whether images are grey or RGB of 8 bits, as Pillow reads them."""
        return self.bits == 8 and len(self.mean) in (1, 3)

    def normalised_by(self, mean: Sequence[float], std: Sequence[float]) -> "Preprocessing":
        """With another mean and standard deviation, where any is given: one number, or one for each
        channel.

        >>> Preprocessing(size=(32, 32)).normalised_by((0.1,), ()).mean
        (0.1, 0.1, 0.1)
        """
        channels = len(self.mean)
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (0, 1, channels):
                raise UserError(
                    f"{name} must have 1 or {channels} numbers, one for each channel, got "
                    f"{len(values)}"
                )
        return replace(
            self,
            mean=tuple(mean) * (channels if len(mean) == 1 else 1) or self.mean,
            std=tuple(std) * (channels if len(std) == 1 else 1) or self.std,
        )

    def in_words(self) -> str:
        """
        >>> Preprocessing(size=(32, 32)).in_words()
        'stretched to 32x32 (aspect ratio not kept), bilinear'
        >>> Preprocessing(size=(224, 224), resize=(256, 256)).in_words()
        'resized to cover 256x256 (aspect ratio kept), centre crop of 224x224, bilinear'
        """
        cut, scaled = (f"{high}x{wide}" for high, wide in (self.size, self.resize or self.size))
        if self.resize is None or self.squeeze:
            words = f"stretched to {scaled} (aspect ratio not kept)"
        else:
            words = f"resized to cover {scaled} (aspect ratio kept)"
        if scaled != cut or (self.resize is not None and not self.squeeze):
            words += f", centre crop of {cut}"
        return f"{words}, {self.interpolation}"

    @property
    def crop_share(self) -> float:
        """`size` as a share of `resize`, by which others say the same: floor(size / share)."""
        if self.resize is None:
            return 1.0
        share = self.size[0] / self.resize[0]
        while math.floor(self.size[0] / share) < self.resize[0]:
            share = math.nextafter(share, 0)
        return share


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where weights come from, and what was done to them on the way."""

    source: str = "fresh"
    dialect: str = "vitrail"
    licence: str | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Passport:
    """Everything but the tensors: which model, how to feed it, what it answers, where it comes
    from.

    `config` is the family's own record as plain values (LayerNorm eps and the kind of GELU are in
    there); `resize` says how its positions were meant to be resized.
    """

    family: str
    config: dict[str, Any]
    preprocessing: Preprocessing
    labels: tuple[str, ...] | None = None
    multi_label: bool = False  # an image may have more than one of the labels
    resize: ResizeMethod = "paper"
    origin: Origin = field(default_factory=Origin)
    provenance: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
