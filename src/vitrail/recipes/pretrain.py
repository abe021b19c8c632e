"""Learning without labels: a run for each objective, its size chosen from the data.

vitrail pretrain ./photos --objective mae
vitrail train ./photos --from runs/photos-mae/last
"""

import math
from typing import Any

from vitrail.core.errors import UserError
from vitrail.data.augment import Augmentation
from vitrail.models.beit import BeitConfig
from vitrail.models.catalogue import find
from vitrail.recipes.choice import Choice
from vitrail.recipes.small import shape_for, size_of
from vitrail.training.goal import Masked, MaskedObjective
from vitrail.training.recipe import Optimiser, Recipe, Schedule

LOOKS = 600_000  # at images, in all: without labels an image has more to teach
SHORTEST, LONGEST = 10, 400  # epochs

# The model where none is named, and what the objective asks of it.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "masked-patch": ("vit_ti_16", {}),
    "mae": ("vit_ti_16", {}),
    "simmim": ("vit_ti_16", {}),
    "beit": ("beit_b_16", {"relative_bias": "shared", "pool": "cls"}),
    "tokenizer": ("vq_ti_8", {}),
}


def choose_pretraining(
    objective: MaskedObjective, choice: Choice, *, tokenizer: str | None
) -> Recipe:
    """Every choice comes with its reason, in `recipe.reasons`."""
    side, channels = size_of(choice.train)
    wanted = choice.image_size or side
    side = max(choice.image_size or (side,))
    name, fields = MODELS[objective]
    fields = {**fields, "channels": channels}
    if choice.model or choice.start:
        reason = f"{choice.start or choice.model} defines the shape of the model"
        fields = dict(MODELS["beit"][1]) if is_fresh_beit(objective, choice) else {}
    elif objective == "tokenizer":
        shape, _ = plain_shape(wanted, choice.count)
        stages = min(round(math.log2(shape["patch_size"])) + 1, 4)
        cell = 2 ** (stages - 1)
        size = tuple(-(-pixels // cell) * cell for pixels in shape["image_size"])
        fields |= {"image_size": size, "stages": stages}
        reason = f"images of {side} pixels a side, one token for each {cell}x{cell} pixels"
    else:
        shape, reason = plain_shape(wanted, choice.count)
        fields |= shape if objective != "beit" else without(shape, "pool", "class_token")
    batch = choice.batch_size or min(max(choice.count // 24, 16), 128)
    epochs = float(min(max(round(LOOKS / choice.count), SHORTEST), LONGEST))
    steps = choice.steps(epochs, batch)
    return Recipe(
        data=choice.data,
        model=choice.model or (None if choice.start else name),
        fields=choice.fields(**fields),
        start=choice.start,
        goal=Masked(objective=objective, tokenizer=tokenizer),
        optimiser=Optimiser(lr=1e-3, weight_decay=0.05, betas=(0.9, 0.95)),
        schedule=Schedule(epochs=epochs, warmup=steps // 20),
        augmentation=moved(side, mirrored=channels == 3),
        batch_size=batch,
        ema_decay=0.99 if steps < 5_000 else 0.998,
        reasons=(
            f"{choice.count:,} images, whose labels are not used: batches of {batch}",
            f"{epochs:g} epochs: about {LOOKS:,} training samples, within {SHORTEST} to {LONGEST}",
            reason,
        ),
    )


def is_fresh_beit(objective: str, choice: Choice) -> bool:
    """Whether a model is to be made as BEiT pre-trains it; one that is begun from is as it is."""
    if objective != "beit" or choice.start is not None or choice.model is None:
        return False
    if not isinstance(find(choice.model), BeitConfig):
        raise UserError(f"beit pre-trains a BEiT, not {choice.model}: use beit_b_16, or mae")
    return True


def plain_shape(size: int | tuple[int, int], count: int) -> tuple[dict[str, Any], str]:
    """As `small` has it, but without convolutions before the patches: they would look across the
    border of what is hidden."""
    fields, reason = shape_for(size, count)
    if fields.pop("stem", None) is not None:
        fields["patch_size"] *= 4
    return fields, reason.partition("; a convolution")[0]


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def moved(side: int, *, mirrored: bool) -> Augmentation:
    """Crops and mirrors alone: colours are what is to be predicted."""
    flip = 0.5 if mirrored else 0.0
    if side <= 64:
        return Augmentation(crop=None, flip=flip, shift=0.08, zoom=0.08)
    return Augmentation(crop=(0.2, 1.0), flip=flip)
