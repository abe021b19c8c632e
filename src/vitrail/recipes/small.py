"""`small`: the default recipe, chosen from the data, to train from scratch on what one
has."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from vitrail.core.errors import UserError
from vitrail.data.augment import Augmentation
from vitrail.data.findings import count as count_of
from vitrail.data.images import BadImage, header_size
from vitrail.data.source import Source
from vitrail.models.bit import BiTConfig
from vitrail.models.catalogue import find
from vitrail.models.config import Config
from vitrail.models.mobilenetv2 import MobileNetV2Config
from vitrail.models.resnet_v15 import ResNetV15Config
from vitrail.recipes.choice import Choice
from vitrail.training.goal import Labels
from vitrail.training.recipe import Optimiser, Recipe, Schedule

LOOKS, SHORTEST, LONGEST = 150_000, 8, 100  # images in all, and epochs
SHAPE_REASON = "images of"  # how the reason for the model's shape begins
PROBES = 16  # images whose size is read
LARGEST_3X3 = 64  # pixels a side, of images that the stem of a ResNet does not shrink
LEAST_HALVED = 64  # pixels a side, for a network that halves its map five times
PHOTO, LARGEST_SMALL = 224, 128  # pixels a side: of photos, and of what is smaller than they are


def small(choice: Choice) -> Recipe:
    """A plain ViT whose patch, width and depth follow from the side of the images and their number.

        vitrail train digits

    Every choice comes with its reason, in `recipe.reasons`.
    """
    count, classes = choice.count, len(choice.train.labels)
    side, channels = size_of(choice.train)
    fields: dict[str, Any]
    if choice.model or choice.start:
        fields, reason = {}, f"{choice.start or choice.model} defines the shape of the model"
        if choice.model and not choice.start:
            fields, why = convolutional_shape(find(choice.model), choice.image_size, side)
            reason += why
        side = max(choice.image_size or fields.get("image_size") or (side,))
    else:
        stem = not choice.native_resolution
        fields, reason = shape_for(choice.image_size or side, count, stem=stem)
        fields["channels"] = channels
        side = max(fields["image_size"])
    epochs = epochs_for(count)
    batch = choice.batch_size or min(max(count // 24, 16), 64)
    steps = round(epochs * count / batch)
    mirrored = channels == 3
    return Recipe(
        data=choice.data,
        model=choice.model or "vit_ti_16",
        fields=choice.fields(**fields),
        start=choice.start,
        goal=Labels(smoothing=0.1),
        optimiser=optimiser_for(side, count),
        schedule=Schedule(epochs=epochs, warmup=min(500, steps // 10)),
        augmentation=augmentation_for(side, mirrored=mirrored),
        batch_size=batch,
        ema_decay=0.99 if steps < 5_000 else 0.998,
        reasons=(
            f"{count:,} images of {count_of(classes, 'class')}: batches of {batch}",
            f"{epochs:g} epochs: about {LOOKS:,} training samples, within {SHORTEST} to {LONGEST}",
            reason,
            "training photos are flipped left to right at random"
            if mirrored
            else "no flips: mirrored images of one channel may belong to another class",
        ),
    )


def size_of(train: Source) -> tuple[int, int]:
    """Side and channels: of arrays, or of what a few image files have; 224 and 3 for photos, which
    come in every size."""
    sides = []
    for index in np.unique(np.linspace(0, max(len(train) - 1, 0), PROBES).astype(int)).tolist():
        try:
            raw = train.read(index)
            if not isinstance(raw, bytes):
                return max(raw.shape[:2]), raw.shape[2] if raw.ndim == 3 else 1
            sides.append(min(header_size(raw, train.name(index))))
        except BadImage:  # training names it, and the other images tell
            continue
    side = round(float(np.median(sides or [PHOTO])))
    return (side if side <= LARGEST_SMALL else PHOTO), 3


def shape_for(
    size: int | tuple[int, int], count: int, *, stem: bool = True
) -> tuple[dict[str, Any], str]:
    """Model fields: as many patches as an image needs, as much width as the images can teach, and
    a `stem` where it fits. A side is rounded up to whole patches; a size that a person gave is
    kept."""
    if isinstance(size, tuple):
        pixels, patch = size, patch_dividing(size)
    else:
        patch = usual_patch(size)
        pixels = (-(-size // patch) * patch,) * 2
    dim, depth = (48, 4) if count < 5_000 else (96, 4) if count < 200_000 else (192, 9)
    fields: dict[str, Any] = {
        "image_size": pixels,
        "patch_size": patch,
        "dim": dim,
        "depth": depth,
        "heads": 4,
        "mlp_dim": 2 * dim,
        "pool": "mean",
        "class_token": False,
    }
    cells = (pixels[0] // patch) * (pixels[1] // patch)
    reason = (
        f"{SHAPE_REASON} {pixels[0]}x{pixels[1]} pixels: {cells} patches of {patch}x{patch}; width "
        f"{dim}, depth {depth}"
    )
    # the paper's hybrid: a convolution and a pooling, stride 4, then patches
    if stem and patch % 4 == 0:
        fields |= {"stem": {"blocks": ()}, "patch_size": patch // 4}
        reason += (
            "; a convolution of stride 4 comes before the patches, so fields.patch_size is "
            f"{patch // 4} (arXiv:2106.14881)"
        )
    return fields, reason


def convolutional_shape(
    config: Config, given: tuple[int, int] | None, side: int
) -> tuple[dict[str, Any], str]:
    """Fields of a convolutional network, and why: it reads images of any size, but halves them up
    to five times. Nothing for other models, which are made for one size."""
    if not isinstance(config, ResNetV15Config | BiTConfig | MobileNetV2Config):
        return {}, ""
    if isinstance(config, ResNetV15Config):
        pixels = given or (side, side)
        if max(pixels) > LARGEST_3X3:
            return {"image_size": pixels}, f", which reads images of {pixels[0]}x{pixels[1]} pixels"
        return {"image_size": pixels, "stem": "3x3"}, (
            f"; images of {pixels[0]}x{pixels[1]} pixels go through a stem of 3x3 pixels that does "
            "not shrink them (arXiv:1512.03385, 4.2)"
        )
    pixels = given or (max(side, LEAST_HALVED),) * 2
    enlarged = ", enlarged so that its last map has a few cells" if pixels[0] > side else ""
    return {"image_size": pixels}, (
        f", which reads images of {pixels[0]}x{pixels[1]} pixels{enlarged}"
    )


def usual_patch(side: int) -> int:
    known = {8: 2, 16: 2, 28: 4, 32: 4, 64: 8}
    return known.get(side, 16 if side >= 160 else max(side // 8, 1))


def patch_dividing(size: tuple[int, int]) -> int:
    """The patch size nearest to the usual one that divides both sides.

    >>> patch_dividing((224, 224)), patch_dividing((100, 60))
    (16, 10)
    """
    usual = usual_patch(max(size))
    shared = math.gcd(*size)
    fitting = [patch for patch in range(1, shared + 1) if shared % patch == 0]
    nearest = min(fitting, key=lambda patch: (abs(math.log(patch / usual)), patch))
    if not usual / 2 <= nearest <= usual * 2 or max(size) <= nearest:
        near = "x".join(str(max(round(side / usual), 1) * usual) for side in size)
        raise UserError(
            f"image_size must divide into patches of about {usual} pixels, got "
            f"{size[0]}x{size[1]}: use {near}"
        )
    return nearest


def optimiser_for(side: int, count: int) -> Optimiser:
    """Muon learns in fewer steps; a few thousand images are learnt soon enough."""
    if count < 5_000:
        return Optimiser(lr=2e-3 if side <= 32 else 1e-3, weight_decay=0.05)
    return Optimiser(name="muon", lr=3e-3, weight_decay=0.05)


def epochs_for(count: int) -> float:
    """More epochs for fewer images."""
    return float(min(max(round(LOOKS / max(count, 1)), SHORTEST), LONGEST))


def augmentation_for(side: int, *, mirrored: bool) -> Augmentation:
    """Small images are shifted a little; photos are cropped as in the paper, and augmented."""
    plain = Augmentation(crop=None, flip=0.5 if mirrored else 0.0)
    if side <= 16:
        return replace(plain, rotate=12.0, shift=0.08, zoom=0.12)
    if side <= 64:
        return replace(plain, shift=0.08, zoom=0.08, erase=0.1)
    return Augmentation(crop=(0.2, 1.0), flip=0.5, policy="trivialaugment", erase=0.1)
