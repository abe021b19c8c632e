"""From a recipe to a task: the data opened, the model made or loaded, the objective around it."""

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.deferred_init import deferred_init
from vitrail.core.errors import UserError
from vitrail.core.memory import return_freed_memory
from vitrail.data.cache import Decoding, cached, room_for
from vitrail.data.loader import needed_size
from vitrail.data.source import Source, Splits
from vitrail.models.model import Model
from vitrail.objectives.asymmetric import Asymmetric
from vitrail.objectives.objective import Objective
from vitrail.objectives.packed import PackedSupervised
from vitrail.objectives.supervised import Distilled, Supervised
from vitrail.training.fresh import fresh_model, with_bands
from vitrail.training.goal import Labels, Masked
from vitrail.training.lora import adapt
from vitrail.training.progressive import allow_sides
from vitrail.training.recipe import Recipe
from vitrail.training.task import Scorer, Task
from vitrail.training.unlabelled import prepare_unlabelled, score_by_loss
from vitrail.training.world import World
from vitrail.weights.load import load


def prepare_task(recipe: Recipe, splits: Splits, scorer: Scorer, *, deferred: bool = False) -> Task:
    """Everything a run needs; the same recipe and data give the same fresh weights. `scorer` is for
    runs that learn labels; the others are scored by their loss. With `deferred` fresh weights take
    no memory until the processes have shared the model, and are the same bits then."""
    train, (_, val) = splits["train"], validation_split(splits, recipe.data)
    if recipe.has_labels and train.targets is None:
        raise UserError(f"{recipe.data}: its images have no labels: expected a folder a class")
    deferred = deferred and can_defer(recipe)
    if deferred:
        return_freed_memory()  # each tensor is drawn once to move the generator on, and freed
    with deferred_init() if deferred else nullcontext() as filling:
        objective = prepare_objective(recipe, train)
    if filling is not None:
        filling.name_tensors(objective)
    check_sides(recipe, objective.model)
    if isinstance(recipe.goal, Masked) and recipe.augmentation.progressive:
        raise UserError(
            f"augmentation.progressive does not apply to {recipe.goal.objective}: leave it out"
        )
    if recipe.has_labels:
        allow_sides(objective.model, recipe)
    return Task(
        recipe=recipe,
        objective=objective,
        train=train,
        val=val,
        scorer=scorer if recipe.has_labels else score_by_loss(objective),
        deferred=filling,
    )


def prepare_objective(recipe: Recipe, train: Source) -> Objective:
    if isinstance(recipe.goal, Masked):
        return prepare_unlabelled(recipe, recipe.goal)
    return make_objective(make_model(recipe, train), recipe, train)


def can_defer(recipe: Recipe) -> bool:
    """Whether nothing of a run's objective comes from a file."""
    goal = recipe.goal
    beside = goal.tokenizer if isinstance(goal, Masked) else getattr(goal, "teacher", None)
    return recipe.start is None and beside is None


def check_sides(recipe: Recipe, model: Model) -> None:
    if recipe.augmentation.sides and not model.any_size:
        raise UserError(
            f"{model.passport.family} models read one image size: augmentation.sides is for those "
            "that read any"
        )


def validation_split(splits: Splits, data: str) -> tuple[str, Source]:
    """Name and images of the part by which weights are chosen."""
    for name in ("val", "test"):
        if name in splits.parts:
            return name, splits[name]
    raise UserError(
        f"{data}: no validation images: add a val folder or more images, or raise val_share"
    )


def with_cache(task: Task, directory: Path, world: World) -> tuple[Task, int]:
    """The task with training images that are decoded once, on first use, where that is worth it,
    and the bytes that this may take; one process begins the file, and all fill it."""
    how, augmentation = task.objective.model.passport.preprocessing, task.recipe.augmentation
    size = needed_size(augmentation, how, task.objective.native)
    decoding = Decoding(size, len(how.mean), how.bits)
    room = room_for(task.train, decoding) if task.recipe.cache and world.is_main else None
    room = world.gather(room)[0]
    if room is None:
        return task, 0
    if not world.is_main:
        world.wait()
    train = cached(task.train, directory, decoding, room.slot)
    if world.is_main:
        world.wait()
    return replace(task, train=train), room.total


def make_model(recipe: Recipe, train: Source) -> Model:
    """A fresh model, or a checkpoint with a new head, that answers with the labels of the data."""
    torch.manual_seed(recipe.seed)
    fields: dict[str, Any] = {"num_classes": len(train.labels), **recipe.fields}
    if recipe.start is not None:
        model = load(recipe.start, model=recipe.model, **fields)
        if model.passport.labels not in (None, train.labels):
            model.new_head()  # as many classes, but others
        with_bands(model, recipe)
    else:
        model = fresh_model(recipe, fields)
    multi_label = train.targets is not None and np.ndim(train.targets) == 2
    model.passport = replace(
        model.passport, labels=train.labels, multi_label=multi_label, config=asdict(model.config)
    )
    if recipe.lora is not None:
        adapt(model, recipe.lora)
    return model


def make_objective(model: Model, recipe: Recipe, train: Source) -> Supervised:
    goal = recipe.goal
    assert not isinstance(goal, Masked)
    multi_label = train.targets is not None and np.ndim(train.targets) == 2
    if multi_label and goal.loss == "softmax":
        raise UserError(
            "goal.loss must be sigmoid, asymmetric or auto where images have several labels, got "
            "softmax: its probabilities add up to one"
        )
    loss: Any = goal.loss if goal.loss != "auto" else "sigmoid" if multi_label else "softmax"
    if goal.loss == "asymmetric":
        loss = Asymmetric(
            gamma_negative=goal.gamma_negative,
            gamma_positive=goal.gamma_positive,
            negative_clip=goal.negative_clip,
        )
    weights = class_weights(train) if goal.class_weights == "balanced" else None
    if recipe.native_resolution:
        options: dict[str, Any] = {"smoothing": goal.smoothing, "weights": weights}
        return PackedSupervised(model, max_tokens=recipe.max_tokens, loss=loss, **options)
    if isinstance(goal, Labels):
        return Supervised(model, loss=loss, smoothing=goal.smoothing, weights=weights)
    if goal.teacher is None:
        raise UserError("distillation needs a teacher: set goal.teacher to a checkpoint")
    teacher = load(goal.teacher)
    if teacher.config.num_classes != model.config.num_classes:
        raise UserError(
            f"{goal.teacher}: the teacher has {teacher.config.num_classes} classes, the data has "
            f"{model.config.num_classes}"
        )
    return Distilled(
        model,
        teacher,
        kind=goal.distillation,
        share=goal.share,
        temperature=goal.temperature,
        loss=loss,
        smoothing=goal.smoothing,
        weights=weights,
    )


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
