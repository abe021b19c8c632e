"""The first images of a run as the model saw them: augmented, mixed, in the colours of people."""

import numpy as np
from jaxtyping import UInt8

from vitrail.data.augment import mix
from vitrail.training.loop import make_stream
from vitrail.training.parallel import World
from vitrail.training.pictures import as_pixels
from vitrail.training.task import Task


def augmented_preview(task: Task, *, count: int = 16) -> UInt8[np.ndarray, "B H W 3"]:
    """Images of the first step of a run, at most `count`; fewer where some cannot be read."""
    recipe = task.recipe
    batch = next(make_stream(task, World()).batches(0, 1))
    images = batch.images
    if len(images) and recipe.has_labels:
        images, _ = mix(
            images,
            batch.targets,
            recipe.augmentation,
            seed=recipe.seed,
            step=0,
            partners=batch.partners(),
        )
    return as_pixels(images[:count], task.objective.model.passport.preprocessing)
