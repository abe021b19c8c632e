"""Swin (arXiv:2103.14030) and Swin V2 (arXiv:2111.09883) from scratch on ImageNet-1k."""

from vitrail.recipes.choice import Choice, row_of
from vitrail.recipes.deit import AUGMENTATION, BATCH, EPOCHS, rate_for
from vitrail.training.goal import Labels
from vitrail.training.recipe import Optimiser, Recipe, Schedule

WARM_UP = 20
# Stochastic depth by model (microsoft/Swin-Transformer, configs/)
DROP_PATH = {
    "swin_t": 0.2,
    "swin_s": 0.3,
    "swin_b": 0.5,
    "swinv2_t": 0.2,
    "swinv2_s": 0.3,
    "swinv2_b": 0.5,
}


def swin(choice: Choice) -> Recipe:
    """Train a Swin Transformer from scratch on a million images.

        vitrail train imagenet --recipe swin --model swin_t

    Top-1 on ImageNet-1k: T 81.4, S 83.2, B 83.6 %; V2 with windows of 8: T 81.8, S 83.8, B 84.2 %
    (timm's results-imagenet.csv).
    """
    model = choice.model or "swin_t"
    drop_path = row_of(DROP_PATH, model, "swin")
    batch = choice.batch_size or BATCH
    lr = rate_for(batch)
    warmup = choice.steps(WARM_UP, batch)
    return Recipe(
        data=choice.data,
        model=model,
        fields=choice.fields(drop_path=drop_path),
        start=choice.start,
        goal=Labels(smoothing=0.1),
        optimiser=Optimiser(lr=lr, weight_decay=0.05, clip=5.0),
        schedule=Schedule(epochs=EPOCHS, warmup=warmup, floor=0.01),  # 5e-6 of 5e-4
        augmentation=AUGMENTATION,
        batch_size=batch,
        reasons=(
            "arXiv:2103.14030, 4.1, and the authors' config.py: 300 epochs of AdamW with weight "
            "decay 0.05 and clip 5; DeiT's augmentation without repeats, and no EMA",
            f"stochastic depth {drop_path:g} for {model} (authors' configs)",
            f"lr 5e-4 for 512 images, so {lr:g} for batches of {batch:,}",
            f"{choice.count:,} images: the 20 epochs of warm-up are {warmup:,} steps",
        ),
    )
