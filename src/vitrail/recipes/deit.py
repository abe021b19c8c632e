"""DeiT (arXiv:2012.12877, table 9): a ViT from ImageNet-1k alone, with or without a teacher."""

from dataclasses import replace

from vitrail.data.augment import Augmentation
from vitrail.recipes.choice import Choice
from vitrail.training.goal import Distil, Labels
from vitrail.training.recipe import Optimiser, Recipe, Schedule

# timm's rand-m9-mstd0.5-inc1, and erasing by noise (its mode "pixel")
AUGMENTATION = Augmentation(
    crop=(0.08, 1.0),
    flip=0.5,
    policy="randaugment",
    operations=2,
    magnitude=9,
    magnitude_std=0.5,
    operation_prob=0.5,
    erase=0.25,
    erase_fill="noise",
    mixup=0.8,
    cutmix=1.0,
)
BATCH = 1024
EPOCHS, WARM_UP = 300, 5


def deit(choice: Choice) -> Recipe:
    """Train a ViT from scratch on a million images.

        vitrail train imagenet --recipe deit --model deit_s_16

    The paper's B/16 took 53 hours on eight GPUs. Top-1 on ImageNet-1k: Ti 72.2, S 79.9, B 82.0 %
    (timm's results-imagenet.csv).
    """
    batch = choice.batch_size or BATCH
    lr = rate_for(batch)
    warmup = choice.steps(WARM_UP, batch)
    return Recipe(
        data=choice.data,
        model=choice.model or "deit_s_16",
        fields=choice.fields(image_size=(224, 224), drop_path=0.1),
        start=choice.start,
        goal=Labels(smoothing=0.1),
        optimiser=Optimiser(lr=lr, weight_decay=0.05, clip=None),
        schedule=Schedule(epochs=EPOCHS, warmup=warmup, floor=0.01),  # from 1e-3 to 1e-5
        augmentation=replace(AUGMENTATION, repeats=3),
        batch_size=batch,
        ema_decay=0.99996,
        reasons=(
            "arXiv:2012.12877, table 9: 300 epochs of AdamW with weight decay 0.05, stochastic "
            "depth 0.1, RandAugment, mixup, cutmix, erasing and repeated augmentation",
            f"lr 5e-4 for 512 images, so {lr:g} for batches of {batch:,}",
            f"{choice.count:,} images: the 5 epochs of warm-up are {warmup:,} steps",
        ),
    )


def deit_distilled(choice: Choice) -> Recipe:
    """The same with a distillation token that learns from a teacher.

        vitrail train imagenet --recipe deit_distilled --set goal.teacher=CHECKPOINT

    Top-1 on ImageNet-1k, hard labels of a RegNetY-16GF: Ti 74.5, S 81.2, B 83.4 % (timm's
    results-imagenet.csv).
    """
    recipe = deit(choice)
    return replace(
        recipe,
        model=choice.model or "deit_s_16_distilled",
        goal=Distil(smoothing=0.1, distillation="hard", share=0.5, temperature=1.0),
        reasons=(
            *recipe.reasons,
            "half of the loss is hard distillation from the checkpoint goal.teacher; "
            "goal.distillation may be set to soft",
        ),
    )


def rate_for(batch: int) -> float:
    """The peak learning rate, in proportion to the batch.

    >>> rate_for(1024)
    0.001
    """
    return 5e-4 * batch / 512
