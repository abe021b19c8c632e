"""Trials before a run: the batch size, the learning rate and the number of steps that it takes from
this machine. Nothing of a trial stays in memory: its model would take that of the run's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from vitrail.core.errors import UserError
from vitrail.data.source import Splits
from vitrail.tasks.run_options import RunOptions
from vitrail.training.capacity import Trial, best, find_batch_size
from vitrail.training.estimate import steps_within
from vitrail.training.finder import LearningRateCurve, find_lr
from vitrail.training.loop import Trainer
from vitrail.training.parallel import is_shared
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Recipe
from vitrail.training.task import Scorer
from vitrail.training.world import World

Found = TypeVar("Found")


def run_trials(
    options: RunOptions,
    recipe: Recipe,
    splits: Splits,
    scorer: Scorer,
    world: World,
    make_recipe: Callable[[RunOptions], Recipe],
) -> tuple[Recipe, LearningRateCurve | None]:
    """The recipe with what trials find, if requested, and the curve of the learning rates. The
    recipe keeps it all, so that a resumed run has no trials. `make_recipe` chooses again for
    another batch size."""
    curve: LearningRateCurve | None = None
    if options.batch_size == "auto":
        trials = time_batch_sizes(recipe, splits, scorer, world)
        size = min(world.gather(best(trials).batch_size))  # what every process has memory for
        speeds = ", ".join(f"{t.batch_size}: {t.images_per_second:,.0f}" for t in trials)
        recipe = make_recipe(replace(options, batch_size=size * world.size))
        recipe = add_reason(recipe, f"batches of {recipe.batch_size}: images/s of {speeds}")
    if options.lr == "find":
        found, recipe = try_out(find_lr, recipe, splits, scorer, world)
        recipe = add_reason(
            replace(recipe, optimiser=replace(recipe.optimiser, lr=found.lr)),
            f"lr {found.lr:g}: where the loss fell fastest in {len(found.rates)} trial steps from "
            f"{found.rates[0]:.0e} to {found.rates[-1]:.0e}",
        )
        curve = found
    if options.minutes is not None:
        recipe = within_minutes(options.minutes, recipe, splits, scorer, world)
    return recipe, curve


def time_batch_sizes(recipe: Recipe, splits: Splits, scorer: Scorer, world: World) -> list[Trial]:
    """How fast batches of growing size are in one process, with as much of the model as the run
    gives it."""
    images = max(len(splits["train"]) // world.size, 1)
    shared = is_shared(recipe, world)

    def work() -> list[Trial]:
        task = prepare_task(recipe, splits, scorer, deferred=shared)
        return find_batch_size(
            task.objective, recipe, images=images, world=world, deferred=task.deferred
        )

    try:
        found = work()
    except torch.OutOfMemoryError:
        if shared:
            raise UserError(
                f"batch_size must be a number here: process {world.rank} ran out of memory in a "
                "trial step of batch_size=auto, while the others wait for it"
            ) from None
        raise UserError(
            "batch_size must be a number here: the whole model, with which batch_size=auto tries "
            "sizes, does not fit into memory"
        ) from None
    release_memory()
    return found


def within_minutes(
    minutes: float, recipe: Recipe, splits: Splits, scorer: Scorer, world: World
) -> Recipe:
    """The recipe with as many steps as there is time for, decided once and written down: a run that
    is resumed keeps them, on whichever machine. The warm-up keeps its share."""

    def measure(trial: Trainer) -> tuple[int, float, int, int]:
        return *steps_within(trial, minutes), trial.total, trial.stream.steps

    found, recipe = try_out(measure, recipe, splits, scorer, world)
    steps, seconds, before, epoch = found
    schedule = recipe.schedule
    warmup = min(round(schedule.warmup * steps / before), steps // 2)
    recipe = replace(recipe, schedule=replace(schedule, steps=steps, warmup=warmup))
    return add_reason(
        recipe,
        f"{steps:,} steps ({steps / epoch:.3g} epochs): what {minutes:g} minutes have time for at "
        f"{seconds:.3g} s a step, measured here, with evaluations",
    )


def try_out(
    trial: Callable[[Trainer], Found],
    recipe: Recipe,
    splits: Splits,
    scorer: Scorer,
    world: World,
) -> tuple[Found, Recipe]:
    """What a trial of the recipe finds, and the recipe, in more parts if memory ran out."""

    def work() -> Found:
        task = prepare_task(recipe, splits, scorer, deferred=is_shared(recipe, world))
        return trial(Trainer(task, Path(), world=world))

    found: Found | None = None
    while found is None:
        try:
            found = work()
        except torch.OutOfMemoryError:
            recipe = in_more_parts(recipe, world)
        release_memory()
    return found, recipe


def in_more_parts(recipe: Recipe, world: World) -> Recipe:
    """The recipe after memory ran out in a trial step: with at least twice as many parts. Other
    processes wait in the middle of that step, so where there are any, the person decides."""
    most = -(-recipe.batch_size // world.size)
    counts = range(2 * recipe.accumulate, most + 1)
    parts = next((count for count in counts if recipe.batch_size % count == 0), None)
    if parts is None:
        raise UserError(
            "not even one image at a time fits into memory: use a smaller model or image_size, set "
            "checkpointing=true, or share the weights with parallel=fsdp"
        )
    if world.size > 1:
        raise UserError(
            f"process {world.rank} ran out of memory in a trial step: set accumulate={parts}, "
            f"which computes batches in {parts} parts"
        )
    reason = f"batches in {parts} parts: memory ran out in a trial step with fewer"
    return add_reason(replace(recipe, accumulate=parts), reason)


def release_memory() -> None:
    """Free what is not used any more: trainers refer to themselves, and torch keeps what it had."""
    gc.collect()
    torch.cuda.empty_cache()


def add_reason(recipe: Recipe, reason: str) -> Recipe:
    return replace(recipe, reasons=(*recipe.reasons, reason))
