"""How long a run will take on this machine, from a few of its own steps; and how many steps it has
time for."""

import time
from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean

from vitrail.core.errors import UserError
from vitrail.data.loader import Batch
from vitrail.training.loop import Trainer

STEPS, SECONDS = 4, 5.0  # of trial: whichever is reached first, but at least one step of each size
BUDGET_STEPS, BUDGET_SECONDS = 20, 20.0  # the same where the length of a run depends on it
RESERVED = 0.05  # of a budget, for the report and what comes before the first step


def estimate_seconds(run: Trainer) -> float:
    """Training and its evaluations. The run's weights are used up: begin the real one afresh."""
    sizes = time_sizes(run)
    evaluations = evaluations_in(run, run.total) * evaluation_seconds(run, sizes[-1])
    return fmean(sizes) * run.total + evaluations


def steps_within(run: Trainer, minutes: float) -> tuple[int, float]:
    """How many steps a run has time for with its evaluations, and the seconds of one, measured. All
    processes measure, and the slowest decides for all. The run's weights are used up."""
    measured = time_sizes(run, steps=BUDGET_STEPS, seconds=BUDGET_SECONDS)
    sizes = [max(of_each) for of_each in zip(*run.world.gather(measured), strict=True)]
    step, one = fmean(sizes), evaluation_seconds(run, sizes[-1])
    budget = 60 * minutes * (1 - RESERVED)
    every = max(run.recipe.monitor.eval_every_epochs * run.stream.steps, 1)
    found = int(budget / (step + one / every))
    if found < every:  # not even one epoch: one evaluation, at the end
        found = int((budget - one) / step)
    if found < 1:
        raise UserError(
            f"minutes must be at least {(step + one) / 60 / (1 - RESERVED):.2g} for one step of "
            f"this model and its evaluation, got {minutes:g}: use a smaller model or batch_size"
        )
    return found, step


def time_step(run: Trainer, *, steps: int = STEPS, seconds: float = SECONDS) -> float:
    """Seconds of a training step, on average over the run."""
    return fmean(time_sizes(run, steps=steps, seconds=seconds))


def time_sizes(run: Trainer, *, steps: int = STEPS, seconds: float = SECONDS) -> list[float]:
    """Seconds of a training step at each size of images that the run goes through, the last the
    model's own, which evaluations have too. All have the same share of the run; of a few epochs
    the smaller ones have more, so that their mean is never too short."""
    stages = len(run.recipe.augmentation.progressive) + 1
    each = max(min(steps, run.total) // stages, 2)
    # as if the run were so long that a size lasts for more epochs than there are steps to time
    long = replace(run.stream, epochs=float(stages * (each + 1)))
    later = ((stage * (each + 1) + 1) * run.stream.steps for stage in range(1, stages))
    return [
        time_batches(run, long.batches(first, first + each), seconds / stages)
        for first in (0, *later)
    ]


def time_batches(run: Trainer, batches: Iterable[Batch], seconds: float) -> float:
    """Seconds of a step, on average. The first also pays for what happens once, so it counts only
    where there is no other. A GPU is behind with its work: the clock is read when losses are."""
    began = time.perf_counter()
    first = 0.0
    count = 0
    for batch in batches:
        run.train_step(batch)
        count += 1
        if count == 1:
            run.read_losses()
            first = time.perf_counter() - began
        if run.world.any(time.perf_counter() - began > seconds):
            break
    run.read_losses()
    others = time.perf_counter() - began - first
    return others / (count - 1) if count > 1 else first


def evaluations_in(run: Trainer, steps: int) -> float:
    return max(steps / max(run.recipe.monitor.eval_every_epochs * run.stream.steps, 1), 1)


def evaluation_seconds(run: Trainer, step: float) -> float:
    """An evaluation reads every image and computes forwards alone, a third of a training step."""
    return step / 3 * len(run.task.val) / run.recipe.batch_size


def in_words(seconds: float) -> str:
    """
    >>> in_words(42), in_words(700), in_words(9_000), in_words(400_000)
    ('42 s', '12 min', '2.5 h', '4.6 days')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
