"""The batch size that a machine works best with, found by trying."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor

from vitrail.core.deferred_init import DeferredInit
from vitrail.core.errors import UserError
from vitrail.core.memory import peak_memory
from vitrail.objectives.objective import Objective
from vitrail.training.parallel import is_shared, parallelise
from vitrail.training.precision import autocast, check_precision
from vitrail.training.recipe import Recipe
from vitrail.training.recompute import checkpoint_blocks
from vitrail.training.train_state import TrainState
from vitrail.training.world import World

SMALLEST, LARGEST = 16, 1024
ENOUGH = 0.95  # of the best speed: a smaller batch learns more from the same images
MOST_MEMORY = 0.6  # of what is free


@dataclass(frozen=True)
class Trial:
    """How fast training steps of one size were."""

    batch_size: int
    images_per_second: float


def find_batch_size(
    objective: Objective,
    recipe: Recipe,
    *,
    images: int,
    world: World,
    deferred: DeferredInit | None = None,
) -> list[Trial]:
    """Trials of growing size of one process, up to what fits into memory; `best` chooses from them.
    Steps are whole ones of the recipe, so that its precision, optimiser and average count. Each
    process tries by itself; where they share a model, all together. The weights are used up: begin
    the real run afresh."""
    check_precision(recipe.precision, world.device)
    if is_shared(recipe, world):
        parallelise(objective, recipe, world, deferred)
    else:
        objective.to(world.device)
        checkpoint_blocks(objective.model, recipe.checkpointing)
    trials = list(attempts(objective.train(), recipe, images, world))
    if not trials:
        raise UserError(f"not even a batch of {SMALLEST} fits into memory: use a smaller model")
    return trials


def best(trials: list[Trial]) -> Trial:
    """The smallest that is nearly as fast as the fastest.

    >>> best([Trial(16, 90.0), Trial(32, 99.0), Trial(64, 100.0)])
    Trial(batch_size=32, images_per_second=99.0)
    """
    fastest = max(trial.images_per_second for trial in trials)
    return next(trial for trial in trials if trial.images_per_second >= ENOUGH * fastest)


def attempts(objective: Objective, recipe: Recipe, images: int, world: World) -> Iterator[Trial]:
    device, together = world.device, is_shared(recipe, world)
    free = free_memory(device)
    before = used_memory(device)
    state = TrainState(objective, recipe, device)
    size = min(SMALLEST, images)
    while size <= min(LARGEST, images):
        try:
            seconds = time_steps(state, recipe, size, device)
        except torch.OutOfMemoryError:
            if together:  # the others wait in the middle of this step
                raise
            torch.cuda.empty_cache()
            return
        yield Trial(size, size / seconds)
        full = 2 * (used_memory(device) - before) > MOST_MEMORY * free
        if world.any(full) if together else full:
            return
        size *= 2


def time_steps(state: TrainState, recipe: Recipe, size: int, device: torch.device) -> float:
    """Seconds of a training step on noise, the first not counted."""
    objective = state.objective
    how = objective.model.passport.preprocessing
    classes = objective.model.config.num_classes
    images = torch.randn(size, len(how.mean), *how.size, device=device)
    drawn = objective.draw(0, 0, np.arange(size))
    targets = torch.full((size, classes), 1 / max(classes, 1)) if drawn is None else drawn
    targets = targets.to(device)
    times = []
    for step in range(4):
        began = time.perf_counter()
        train_step(state, recipe, images, targets, step)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return median(times[1:])


def train_step(
    state: TrainState, recipe: Recipe, images: Tensor, targets: Tensor, step: int
) -> None:
    """A step as the recipe has it: in parts, in its precision, with its optimisers and average."""
    for optimiser in state.optimisers:
        optimiser.zero_grad(set_to_none=True)
    parts = zip(images.chunk(recipe.accumulate), targets.chunk(recipe.accumulate), strict=True)
    for part, target in parts:
        with autocast(recipe.precision, images.device):
            loss = state.objective(part, target)["loss"]
        state.scaler.scale(loss).backward()
    for optimiser in state.optimisers:
        state.scaler.step(optimiser)
    state.scaler.update()
    if state.ema is not None:
        state.ema.update(state.objective, step)


def free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def used_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_memory()
