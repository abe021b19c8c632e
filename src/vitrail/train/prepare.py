"""From a recipe to a task: the data opened, the model made or loaded, the objective around it."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitrail.core.errors import UserError
from vitrail.data.source import Source, Splits
from vitrail.models.catalogue import build, change, find
from vitrail.models.model import Model
from vitrail.objectives.supervised import Distilled, Supervised
from vitrail.train.loop import Judge, Task
from vitrail.train.recipe import Goal, Recipe
from vitrail.weights.load import load


def prepare_task(recipe: Recipe, splits: Splits, judge: Judge) -> Task:
    """Everything a run needs; the same recipe and data give the same fresh weights."""
    train, val = splits["train"], splits.parts.get("val", splits.parts.get("test"))
    if val is None:
        raise UserError(f"{recipe.data}: no validation images: add a val folder, or more images")
    if train.targets is None:
        raise UserError(f"{recipe.data}: its images have no labels: expected a folder a class")
    model = make_model(recipe, train)
    return Task(
        recipe=recipe,
        objective=make_objective(model, recipe.goal, train),
        train=train,
        val=val,
        judge=judge,
    )


def make_model(recipe: Recipe, train: Source) -> Model:
    """A fresh model, or a checkpoint with a new head, that answers with the labels of the data."""
    torch.manual_seed(recipe.seed)
    fields: dict[str, Any] = {"num_classes": len(train.labels), **recipe.fields}
    if recipe.start is not None:
        model = load(recipe.start, **fields)
    else:
        model = build(change(find(recipe.model), fields))
    model.passport = replace(model.passport, labels=train.labels, config=asdict(model.config))
    if recipe.checkpointing:
        checkpoint_blocks(model)
    return model


def checkpoint_blocks(model: Model) -> None:
    """Keep what goes into each block, not what happens inside it; the model does not know."""
    for block in getattr(model, "blocks", ()):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def make_objective(model: Model, goal: Goal, train: Source) -> Supervised:
    several = train.targets is not None and np.ndim(train.targets) == 2
    loss = goal.loss if goal.loss != "auto" else "sigmoid" if several else "softmax"
    if goal.teacher is not None:
        teacher = load(goal.teacher)
        if teacher.config.num_classes != model.config.num_classes:
            raise UserError(
                f"{goal.teacher}: the teacher knows {teacher.config.num_classes} classes, the data "
                f"has {model.config.num_classes}"
            )
        return Distilled(
            model,
            teacher,
            kind=goal.distillation,
            share=goal.share,
            temperature=goal.temperature,
            smoothing=goal.smoothing,
        )
    weights = class_weights(train) if goal.class_weights == "balanced" else None
    return Supervised(model, loss=loss, smoothing=goal.smoothing, weights=weights)


def class_weights(train: Source) -> Tensor:
    """N / (K · count) for each class, scikit-learn's "balanced"; a class without images counts
    0."""
    targets: NDArray[Any] = np.asarray(train.targets)
    counts = (
        targets.sum(axis=0)
        if targets.ndim == 2
        else np.bincount(targets, minlength=len(train.labels))
    )
    share = len(targets) / (len(train.labels) * np.maximum(counts, 1))
    return torch.from_numpy(np.where(counts > 0, share, 0.0)).float()
