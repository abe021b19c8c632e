"""MobileViT (arXiv:2110.02178): small models that see every batch at another size."""

from vitrail.data.augment import Augmentation
from vitrail.recipes.choice import Choice
from vitrail.training.goal import Labels
from vitrail.training.recipe import Optimiser, Recipe, Schedule

SIDES = (160, 192, 256, 288, 320)
BATCH, EPOCHS, WARM_UP = 1024, 300, 20_000


def mobilevit(choice: Choice) -> Recipe:
    """Train a MobileViT from scratch on a million images.

        vitrail train imagenet --recipe mobilevit --model mobilevit_s

    Top-1 on ImageNet-1k: XXS 68.9, XS 74.6, S 78.3 % (timm's results-imagenet.csv).
    """
    batch = choice.batch_size or BATCH
    steps = choice.steps(EPOCHS, batch)
    # on fewer images than ImageNet's the rate would else never reach its peak
    warmup = min(WARM_UP, steps // 4)
    return Recipe(
        data=choice.data,
        model=choice.model or "mobilevit_s",
        fields=choice.fields(image_size=(256, 256), dropout=0.1),
        start=choice.start,
        goal=Labels(smoothing=0.1),
        # its code decays biases and norms too: no_decay_bn_filter_bias is off
        optimiser=Optimiser(lr=2e-3, weight_decay=0.01, decay_all=True, clip=None),
        schedule=Schedule(epochs=EPOCHS, warmup=warmup, floor=0.1),  # from 2e-3 to 2e-4
        augmentation=Augmentation(crop=(0.08, 1.0), flip=0.5, sides=SIDES),
        batch_size=batch,
        ema_decay=1 - 5e-4,
        reasons=(
            "arXiv:2110.02178 and apple/ml-cvnets, mobilevit.yaml: 300 epochs of AdamW, lr 0.002 "
            f"for batches of {BATCH:,}, weight decay 0.01, label smoothing 0.1",
            "batches of 160, 192, 256, 288 or 320 pixels a side, more images if they are small",
            f"{choice.count:,} images in batches of {batch:,}: {warmup:,} steps of warm-up"
            + ("" if warmup == WARM_UP else f" (code: {WARM_UP:,})"),
        ),
    )
