"""The runs of the ViT paper (arXiv:2010.11929): table 3's pre-training, and fine-tuning (B.1.1)."""

from dataclasses import dataclass
from typing import Literal

from vitrail.data.augment import Augmentation
from vitrail.recipes.choice import Choice, canonical, row_of
from vitrail.training.recipe import Optimiser, Recipe, Schedule

# Inception's crop and a mirror, for pre-training (google-research/vision_transformer issue 103) and
# for fine-tuning (its input_pipeline.py)
AUGMENTATION = Augmentation(crop=(0.05, 1.0), flip=0.5)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of table 3."""

    lr: float
    epochs: float
    shorter: float | None = None  # the paper's other run of this model


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """What table 3 says for all models on one data set, and its rows."""

    decay: Literal["linear", "cosine"]
    weight_decay: float
    dropout: float
    clip: float | None = None
    rows: dict[str, Row]


JFT = Pretraining(
    decay="linear",
    weight_decay=0.1,
    dropout=0.0,
    rows={
        "vit_b_16": Row(lr=8e-4, epochs=7),
        "vit_b_32": Row(lr=8e-4, epochs=7),
        "vit_l_16": Row(lr=4e-4, epochs=14, shorter=7),
        "vit_l_32": Row(lr=6e-4, epochs=7),
        "vit_h_14": Row(lr=3e-4, epochs=14),
        "vit_r50_b_16": Row(lr=8e-4, epochs=7),
        "vit_r50_b_32": Row(lr=8e-4, epochs=7),
        "vit_r50_l_16": Row(lr=4e-4, epochs=14, shorter=7),
        "vit_r50_l_32": Row(lr=2e-4, epochs=7),
    },
)
IMAGENET_21K = Pretraining(
    decay="linear",
    weight_decay=0.03,
    dropout=0.1,
    rows={
        "vit_b_16": Row(lr=1e-3, epochs=90),
        "vit_b_32": Row(lr=1e-3, epochs=90),
        "vit_l_16": Row(lr=1e-3, epochs=90, shorter=30),
        "vit_l_32": Row(lr=1e-3, epochs=90, shorter=30),
    },
)
IMAGENET_1K = Pretraining(
    decay="cosine",
    weight_decay=0.3,
    dropout=0.1,
    clip=1.0,
    rows={  # "ViT-*" in the table: the models of table 1
        name: Row(lr=3e-3, epochs=300)
        for name in ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
    },
)


def imagenet1k(choice: Choice) -> Recipe:
    """Pre-train on ImageNet-1k.

        vitrail train imagenet --recipe imagenet1k --model vit_b_16

    Then `finetune`, 384 pixels, top-1: B/16 77.91, B/32 73.38, L/16 76.53, L/32 71.16 % (table 5).
    """
    return pretrain("imagenet1k", IMAGENET_1K, choice)


def imagenet21k(choice: Choice) -> Recipe:
    """Pre-train on ImageNet-21k.

        vitrail train imagenet21k --recipe imagenet21k --model vit_l_16

    L/16 took 230 TPUv3-core-days (table 2). Then `finetune` on ImageNet-1k, 384 pixels, top-1: B/16
    83.97, B/32 81.28, L/16 85.15, L/32 80.99 % (table 5).
    """
    return pretrain("imagenet21k", IMAGENET_21K, choice)


def jft(choice: Choice) -> Recipe:
    """Pre-train on hundreds of millions of images, as the paper does on JFT-300M.

        vitrail train MANY --recipe jft --model vit_h_14

    H/14 took 2,500 TPUv3-core-days, L/16 680; fine-tuned on ImageNet-1k at 518 and 512 pixels, with
    averaged weights, they reach 88.55 and 87.76 % top-1 (table 2).
    """
    return pretrain("jft", JFT, choice)


BATCH, WARM_UP = 4096, 10_000


def pretrain(name: str, how: Pretraining, choice: Choice) -> Recipe:
    """Table 3 and its caption: Adam, batches of 4,096, 10,000 steps of warm-up, 224 pixels, and a
    head with a hidden layer."""
    model = choice.model or "vit_b_16"
    row = row_of(how.rows, model, name)
    batch = choice.batch_size or BATCH
    steps = choice.steps(row.epochs, batch)
    # on fewer images than the paper's the rate would else never reach its peak
    warmup = min(WARM_UP, steps // 4)
    reasons = [
        f"arXiv:2010.11929, table 3: lr {row.lr:g}, {how.decay} decay, weight decay "
        f"{how.weight_decay:g}, dropout {how.dropout:g}, {row.epochs:g} epochs for {model}",
        f"{choice.count:,} images in batches of {batch:,} are {steps:,} steps, the first "
        f"{warmup:,} of them warm-up" + ("" if warmup == WARM_UP else f" (paper: {WARM_UP:,})"),
    ]
    if batch != BATCH:
        reasons.append(f"the paper's lr is for batches of {BATCH:,}; it is not scaled")
    if row.shorter:
        reasons.append(f"the paper has a shorter run of {model} too, of {row.shorter:g} epochs")
    if batch > 512 and batch % 32 == 0:
        reasons.append("if a batch does not fit into memory, set accumulate to 32 to split it")
    return Recipe(
        data=choice.data,
        val_share=0.01,
        model=model,
        fields=choice.fields(image_size=(224, 224), head="pretrain", dropout=how.dropout),
        start=choice.start,
        optimiser=Optimiser(lr=row.lr, weight_decay=how.weight_decay, clip=how.clip),
        schedule=Schedule(kind=how.decay, epochs=row.epochs, warmup=warmup),
        augmentation=AUGMENTATION,
        batch_size=batch,
        reasons=tuple(reasons),
    )


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """How the paper fine-tunes on one of its data sets (table 4), for sets of that size."""

    least: int  # images
    like: str
    steps: int
    lr: float
    why: str
    held_out: float = 0.1


def tried(*rates: float) -> str:
    """Why 0.03, where the paper tried several rates."""
    *most, last = (f"{rate:g}" for rate in rates)
    return (
        f"as in the authors' code; the paper tried {', '.join(most)} and {last}, choosing "
        "the best on held-out images"
    )


SOME, MORE = tried(0.001, 0.003, 0.01, 0.03), tried(0.003, 0.01, 0.03, 0.06)
ONE = "the paper's one rate for VTAB"
ELSE = "VTAB; none of its data sets has this size"
TRANSFERS = (
    Transfer(least=500_000, like="ImageNet", steps=20_000, lr=0.03, why=MORE, held_out=0.01),
    Transfer(least=25_000, like="CIFAR", steps=10_000, lr=0.03, why=SOME, held_out=0.02),
    Transfer(least=5_000, like=ELSE, steps=2_500, lr=0.01, why=ONE),
    Transfer(least=1_500, like="Pets and Flowers", steps=500, lr=0.03, why=SOME),
    Transfer(least=0, like="VTAB", steps=2_500, lr=0.01, why=ONE),
)
SIDES = {"vit_h_14": 518}  # table 2: its patches do not divide 384


def finetune(choice: Choice) -> Recipe:
    """Fine-tune a pre-trained ViT on labelled images as the paper does.

        vitrail train pets --recipe finetune --from B_16.npz

    From ImageNet-21k to ImageNet-1k, top-1: B/16 83.97, B/32 81.28, L/16 85.15 % (table 5, without
    the averaged weights that table 2 has).
    """
    start = choice.checkpoint("finetune")
    row = next(row for row in TRANSFERS if choice.count >= row.least)
    side = SIDES.get(canonical(choice.model or ""), 384)
    batch = choice.batch_size or 512
    return Recipe(
        data=choice.data,
        val_share=row.held_out,
        model=choice.model,
        fields=choice.fields(image_size=(side, side), head="linear"),
        start=start,
        optimiser=Optimiser(name="sgd", lr=row.lr, momentum=0.9, weight_decay=0.0, clip=1.0),
        # 500 steps of warm-up and parts of a batch: the authors' configs/common.py
        schedule=Schedule(kind="cosine", steps=row.steps, warmup=min(500, row.steps // 10)),
        augmentation=AUGMENTATION,
        batch_size=batch,
        accumulate=1 if batch % 8 else 8,
        ema_decay=0.9999,
        reasons=(
            f"{choice.count:,} images: the {row.steps:,} steps that arXiv:2010.11929, table 4, "
            f"has for {row.like}",
            f"lr {row.lr:g}: {row.why}",
            f"SGD without weight decay in batches of {batch}, {side} pixels, and a new linear head "
            "initialised to zero (B.1.1)",
            "averaged weights (Polyak, 0.9999), as for table 2",
        ),
    )
