"""BEiT (arXiv:2106.08254): fine-tuning what was pre-trained on masked patches, lower layers slower.

The numbers are those of microsoft/unilm, beit/get_started_for_image_classification.md.
"""

from dataclasses import dataclass, replace

from vitrail.recipes.choice import Choice, row_of
from vitrail.recipes.deit import AUGMENTATION
from vitrail.training.goal import Labels
from vitrail.training.recipe import Optimiser, Recipe, Schedule

LOWEST = 1e-6  # where the cosine ends


@dataclass(frozen=True, kw_only=True)
class Row:
    """One of the authors' four commands."""

    lr: float
    layer_decay: float
    drop_path: float
    epochs: int
    warmup: int  # epochs


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What the commands for one kind of checkpoint have in common."""

    after: str
    batch: int
    weight_decay: float
    mixed: bool  # mixup and cutmix
    rows: dict[str, Row]


MASKED = Tuning(
    after="masked patches alone",
    batch=1024,
    weight_decay=0.05,
    mixed=True,
    rows={
        "beit_b_16": Row(lr=4e-3, layer_decay=0.65, drop_path=0.1, epochs=100, warmup=20),
        "beit_l_16": Row(lr=1e-3, layer_decay=0.75, drop_path=0.2, epochs=50, warmup=5),
    },
)
LABELLED = Tuning(
    after="masked patches and the labels of ImageNet-22k",
    batch=512,
    weight_decay=1e-8,
    mixed=False,
    rows={
        "beit_b_16": Row(lr=2e-5, layer_decay=0.85, drop_path=0.1, epochs=30, warmup=5),
        "beit_l_16": Row(lr=2e-5, layer_decay=0.9, drop_path=0.4, epochs=30, warmup=5),
    },
)


def beit(choice: Choice) -> Recipe:
    """Fine-tune a BEiT that has seen no labels yet.

        vitrail train imagenet --recipe beit --from beit_base_patch16_224_pt22k.pth

    Top-1 on ImageNet-1k: B 83.2 % where that is all it was pre-trained on (arXiv:2106.08254).
    """
    return tune_beit("beit", MASKED, choice)


def beit_22k(choice: Choice) -> Recipe:
    """Fine-tune a BEiT that was fine-tuned on ImageNet-22k before.

        vitrail train imagenet --recipe beit_22k --from beit_base_patch16_224_pt22k_ft22k.pth

    Top-1 on ImageNet-1k: B 85.2 %, and 86.8 % at 384 pixels (timm's results-imagenet.csv).
    """
    return tune_beit("beit_22k", LABELLED, choice)


def tune_beit(name: str, how: Tuning, choice: Choice) -> Recipe:
    """The authors' command for this kind of checkpoint and size of model."""
    start = choice.checkpoint(name)
    model = choice.model or "beit_b_16"
    row = row_of(how.rows, model, name)
    batch = choice.batch_size or how.batch
    warmup = choice.steps(row.warmup, batch)
    return Recipe(
        data=choice.data,
        model=model,
        fields=choice.fields(image_size=(224, 224), drop_path=row.drop_path),
        start=start,
        goal=Labels(smoothing=0.1),
        optimiser=Optimiser(
            lr=row.lr,
            weight_decay=how.weight_decay,
            clip=None,
            layer_decay=row.layer_decay,
        ),
        schedule=Schedule(epochs=row.epochs, warmup=warmup, floor=round(LOWEST / row.lr, 6)),
        augmentation=AUGMENTATION if how.mixed else replace(AUGMENTATION, mixup=0.0, cutmix=0.0),
        batch_size=batch,
        reasons=(
            f"the authors' command for {model} after {how.after} (arXiv:2106.08254, "
            f"microsoft/unilm): lr {row.lr:g} for batches of {how.batch:,}",
            f"each block learns {row.layer_decay:g} times as fast as the one above it",
            f"{choice.count:,} images: {row.epochs} epochs, of which {row.warmup} epochs or "
            f"{warmup:,} steps are warm-up",
        ),
    )
