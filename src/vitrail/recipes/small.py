"""`small`: a recipe chosen from the data when nothing is said, to train from scratch on what one
has."""

from dataclasses import replace
from typing import Any

from vitrail.data.augment import Augmentation
from vitrail.data.source import Source
from vitrail.recipes.choice import Choice
from vitrail.train.recipe import Goal, Optimiser, Recipe, Schedule


def small(choice: Choice) -> Recipe:
    """A plain ViT whose patch, width and depth follow from the side of the images and their number.

        vitrail train digits

    Every choice comes with its reason, in `recipe.reasons`.
    """
    count, classes = choice.count, len(choice.train.labels)
    side, channels = size_of(choice.train)
    if choice.image_size is not None:
        side = max(choice.image_size)
    fields, reason = shape_for(side, count)
    fields["channels"] = channels
    if choice.model or choice.start:
        fields, reason = {}, f"{choice.start or choice.model} has its own shape"
    epochs = epochs_for(count)
    batch = choice.batch_size or min(max(count // 24, 16), 64)
    steps = round(epochs * count / batch)
    mirrored = channels == 3
    return Recipe(
        data=choice.data,
        model=choice.model or "vit_ti_16",
        fields=choice.fields(**fields),
        start=choice.start,
        goal=Goal(smoothing=0.1),
        optimiser=optimiser_for(side, count),
        schedule=Schedule(epochs=epochs, warmup=min(500, steps // 10)),
        augmentation=augmentation_for(side, mirrored=mirrored),
        batch_size=batch,
        average=0.99 if steps < 5_000 else 0.998,
        reasons=(
            f"{count:,} images of {classes} classes: {epochs:g} epochs in batches of {batch}",
            reason,
            "photos are mirrored" if mirrored else "one channel: what is mirrored may mean another",
        ),
    )


def size_of(train: Source) -> tuple[int, int]:
    """Side and channels: of the arrays, or 224 and 3 for photos, which come in every size."""
    first = train.read(0)
    if isinstance(first, bytes):
        return 224, 3
    return max(first.shape[:2]), first.shape[2] if first.ndim == 3 else 1


def shape_for(side: int, count: int) -> tuple[dict[str, Any], str]:
    """Model fields: as many patches as a picture needs, as much width as the images can teach."""
    patch = {8: 2, 16: 2, 28: 4, 32: 4, 64: 8}.get(side, 16 if side >= 160 else max(side // 8, 1))
    pixels = -(-side // patch) * patch
    dim, depth = (48, 4) if count < 5_000 else (96, 4) if count < 200_000 else (192, 9)
    fields: dict[str, Any] = {
        "image_size": (pixels, pixels),
        "patch_size": patch,
        "dim": dim,
        "depth": depth,
        "heads": 4,
        "mlp_dim": 2 * dim,
        "pool": "mean",
        "class_token": False,
    }
    cells = (pixels // patch) ** 2
    reason = f"{side} pixels a side: {cells} patches of {patch}; width {dim}, depth {depth}"
    if patch % 4 == 0:  # the paper's hybrid: a convolution and a pooling, stride 4, then patches
        fields |= {"stem": {"blocks": ()}, "patch_size": patch // 4}
        reason += "; a convolution before the patches knows edges from the start (arXiv:2106.14881)"
    return fields, reason


def optimiser_for(side: int, count: int) -> Optimiser:
    """Muon learns in fewer steps; a few thousand images are learnt soon enough."""
    if count < 5_000:
        return Optimiser(lr=2e-3 if side <= 32 else 1e-3, weight_decay=0.05)
    return Optimiser(name="muon", lr=3e-3, weight_decay=0.05)


def epochs_for(count: int) -> float:
    """More rounds for fewer images: about 150,000 looks, and at least eight rounds."""
    return float(min(max(round(150_000 / count), 8), 100))


def augmentation_for(side: int, *, mirrored: bool) -> Augmentation:
    """Small pictures move a little; photos are cropped as the paper does, and drawn on."""
    plain = Augmentation(crop=None, flip=0.5 if mirrored else 0.0)
    if side <= 16:
        return replace(plain, rotate=12.0, shift=0.08, zoom=0.12)
    if side <= 64:
        return replace(plain, shift=0.08, zoom=0.08, erase=0.1)
    return Augmentation(crop=(0.2, 1.0), flip=0.5, policy="trivialaugment", erase=0.1)
