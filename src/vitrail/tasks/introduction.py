"""What a person should know of a run before its first step, and what a dry run would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.findings import count
from vitrail.data.source import Source, Splits
from vitrail.models.summary import summarise
from vitrail.training.estimate import estimate_seconds, in_words
from vitrail.training.loop import Trainer
from vitrail.training.task import Task
from vitrail.training.world import World

MAX_IGNORED = 5  # names


def introduction(task: Task, splits: Splits) -> Iterator[str]:
    """The model, why the recipe was chosen so, and what is odd about the data."""
    recipe, model = task.recipe, task.objective.model
    yield summarise(model)
    yield from recipe.reasons
    if recipe.lora is not None:
        trained = sum(part.numel() for part in model.parameters() if part.requires_grad)
        yield (
            f"LoRA of rank {recipe.lora.rank} on {', '.join(recipe.lora.targets)}: {trained:,} "
            "parameters are trained, with the head"
        )
    if empty := empty_classes(splits["train"]):
        yield f"classes without a training image: {', '.join(empty)}"
    changes = model.passport.origin.changes if recipe.start else ()
    yield from (f"{recipe.start}: {change}" for change in changes)
    yield from ignored_files(splits.ignored)


def plan_of(task: Task, splits: Splits, world: World) -> tuple[list[str], int]:
    """Model, images and time of a run, and its steps: a few of them are tried."""
    trainer = Trainer(task, Path(), world=world)
    model = task.objective.model
    parts = ", ".join(f"{name} {len(part):,}" for name, part in splits.parts.items())
    steps = f"{count(trainer.total, 'step')} of {count(task.recipe.batch_size, 'image')}"
    lines = [
        f"model: {summarise(model)}",
        f"images: {parts}; each is {model.passport.preprocessing.in_words()} for evaluation",
        *ignored_files(splits.ignored),
        f"time: {steps}, about {in_words(estimate_seconds(trainer))} on this machine",
    ]
    return lines, trainer.total


def empty_classes(train: Source) -> list[str]:
    """Labels that no image has, such as those of empty folders."""
    if train.targets is None:
        return []
    one_each = np.ndim(train.targets) == 1
    counts = (
        np.bincount(train.targets, minlength=len(train.labels))
        if one_each
        else np.sum(train.targets, axis=0)
    )
    return [label for label, number in zip(train.labels, counts, strict=True) if not number]


def ignored_files(ignored: Sequence[str]) -> list[str]:
    """One line about files that are no images, or none."""
    if not ignored:
        return []
    named = ", ".join(ignored[:MAX_IGNORED])
    more = f" and {len(ignored) - MAX_IGNORED:,} more" if len(ignored) > MAX_IGNORED else ""
    number, files = len(ignored), "1 file is not an image and is"
    if number > 1:
        files = f"{number:,} files are not images and are"
    return [f"{files} ignored: {named}{more}"]
