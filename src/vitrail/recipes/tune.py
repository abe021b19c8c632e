"""`tune`: fine-tune any checkpoint on what one has, from a hundred images to a million."""

import math

from vitrail.data.findings import count as count_of
from vitrail.recipes.choice import Choice
from vitrail.recipes.small import augmentation_for, size_of
from vitrail.training.goal import Labels
from vitrail.training.recipe import Optimiser, Recipe, Schedule

LAYER_DECAY = 0.75


def tune(choice: Choice) -> Recipe:
    """Fine-tune a checkpoint at its own image size; epochs, batch and lr follow from the number of
    images.

        vitrail train pets --from hf-hub:timm/vit_base_patch16_224.augreg_in21k

    Every choice comes with its reason, in `recipe.reasons`.
    """
    start = choice.checkpoint("tune")
    count, classes = choice.count, count_of(len(choice.train.labels), "class")
    epochs, batch = epochs_for(count), choice.batch_size or batch_for(count)
    steps, lr = choice.steps(epochs, batch), rate_for(batch)
    side, channels = size_of(choice.train)
    mirrored = channels == 3
    return Recipe(
        data=choice.data,
        model=choice.model,
        fields=choice.fields(),
        start=start,
        goal=Labels(smoothing=0.1),
        optimiser=Optimiser(lr=lr, weight_decay=0.05, clip=1.0, layer_decay=LAYER_DECAY),
        schedule=Schedule(epochs=epochs, warmup=steps // 10),
        augmentation=augmentation_for(side, mirrored=mirrored),
        batch_size=batch,
        ema_decay=0.999,
        reasons=(
            f"{count:,} images of {classes}: batches of {batch}",
            f"{epochs:g} epochs: {steps:,} steps; ten times the images take twice the steps",
            f"lr {lr:g}: 1e-4 for 16 images, growing with the square root of the batch "
            "(arXiv:2205.10287)",
            f"each block learns {LAYER_DECAY:g} times as fast as the one above it "
            "(arXiv:2106.08254), which preserves the general features of the checkpoint",
            "training photos are flipped left to right at random"
            if mirrored
            else "no flips: mirrored images of one channel may belong to another class",
        ),
    )


def epochs_for(count: int) -> float:
    """From 100 for a hundred images to 5 for a million: half as many for ten times the images.

    >>> [epochs_for(count) for count in (100, 1_000, 10_000, 100_000, 1_000_000)]
    [100.0, 46.0, 22.0, 10.0, 5.0]
    """
    return float(min(max(round(100 * (100 / max(count, 1)) ** (1 / 3)), 3), 100))


def batch_for(count: int) -> int:
    """From 16 for a hundred images to 256 for a million: twice as large for ten times the images.

    >>> [batch_for(count) for count in (100, 1_000, 10_000, 100_000, 1_000_000)]
    [16, 32, 64, 128, 256]
    """
    power = round(math.log2(16 * (max(count, 1) / 100) ** (1 / 3)))
    return min(max(2**power, 16), 256)


def rate_for(batch: int) -> float:
    """The peak learning rate, to two digits.

    >>> [rate_for(batch) for batch in (16, 64, 100, 256)]
    [0.0001, 0.0002, 0.00025, 0.0004]
    """
    return float(f"{1e-4 * math.sqrt(batch / 16):.2g}")
