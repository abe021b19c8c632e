"""From a recipe to a task: the data opened, the model made or loaded, the objective around it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.core.errors import UserError
from vitrail.data.cache import Decoding, cached, room_for
from vitrail.data.loader import needed_size
from vitrail.data.source import Source, Splits
from vitrail.models.model import Model
from vitrail.objectives.packed import PackedSupervised
from vitrail.objectives.supervised import Distilled, Supervised
from vitrail.training.fresh import fresh_model
from vitrail.training.goal import Labels, Masked
from vitrail.training.lora import adapt
from vitrail.training.recipe import Recipe
from vitrail.training.task import Scorer, Task
from vitrail.training.unlabelled import prepare_unlabelled, score_by_loss
from vitrail.training.world import World
from vitrail.weights.load import load


def prepare_task(recipe: Recipe, splits: Splits, scorer: Scorer) -> Task:
    """Everything a run needs; the same recipe and data give the same fresh weights. `scorer` is for
    runs that learn labels; the others are scored by their loss."""
    train, (_, val) = splits["train"], validation_split(splits, recipe.data)
    goal = recipe.goal
    if isinstance(goal, Masked):
        objective = prepare_unlabelled(recipe, goal)
        check_sides(recipe, objective.model)
        if recipe.checkpointing:
            checkpoint_blocks(objective.model)
        return Task(
            recipe=recipe,
            objective=objective,
            train=train,
            val=val,
            scorer=score_by_loss(objective),
        )
    if train.targets is None:
        raise UserError(f"{recipe.data}: its images have no labels: expected a folder a class")
    model = make_model(recipe, train)
    check_sides(recipe, model)
    return Task(
        recipe=recipe,
        objective=make_objective(model, recipe, train),
        train=train,
        val=val,
        scorer=scorer,
    )


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
    decoding = Decoding(size, len(how.mean))
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
    else:
        model = fresh_model(recipe, fields)
    multi_label = train.targets is not None and np.ndim(train.targets) == 2
    model.passport = replace(
        model.passport, labels=train.labels, multi_label=multi_label, config=asdict(model.config)
    )
    if recipe.lora is not None:
        adapt(model, recipe.lora)
    if recipe.checkpointing:
        checkpoint_blocks(model)
    return model


def checkpoint_blocks(model: Model) -> None:
    """Keep what goes into each block, not what happens inside it; the model does not know."""
    for block in model.blocks_by_depth().values():
        block.forward = partial(_checkpointed, block, block.forward)


def _checkpointed(block: nn.Module, forward: Callable[..., Any], *args: Any) -> Any:
    if torch.compiler.is_compiling():  # a compiled graph writes statistics once in any case
        return checkpoint(forward, *args, use_reentrant=False)
    return checkpoint(
        forward,
        *args,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _uncounted(block)),  # the first time, the second time
    )


@contextmanager
def _uncounted(block: nn.Module) -> Iterator[None]:
    """Computed a second time, a batch must not count twice in the statistics of batch norms."""
    norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def make_objective(model: Model, recipe: Recipe, train: Source) -> Supervised:
    goal = recipe.goal
    assert not isinstance(goal, Masked)
    multi_label = train.targets is not None and np.ndim(train.targets) == 2
    if multi_label and goal.loss == "softmax":
        raise UserError(
            "goal.loss must be sigmoid or auto where images have several labels, got softmax: "
            "its probabilities add up to one"
        )
    loss = goal.loss if goal.loss != "auto" else "sigmoid" if multi_label else "softmax"
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
