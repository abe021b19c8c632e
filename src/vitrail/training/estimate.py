"""How long a run will take on this machine, from a few of its own steps; and how many steps it has
time for."""

import time

from vitrail.core.errors import UserError
from vitrail.training.loop import Trainer

STEPS, SECONDS = 4, 5.0  # of trial: whichever is reached first, but at least one step
BUDGET_STEPS, BUDGET_SECONDS = 20, 20.0  # the same where the length of a run depends on it
RESERVED = 0.05  # of a budget, for the report and what comes before the first step


def estimate_seconds(run: Trainer) -> float:
    """Training and its evaluations. The run's weights are used up: begin the real one afresh."""
    step = time_step(run)
    return step * run.total + evaluations_in(run, run.total) * evaluation_seconds(run, step)


def steps_within(run: Trainer, minutes: float) -> tuple[int, float]:
    """How many steps a run has time for with its evaluations, and the seconds of one, measured. All
    processes measure, and the slowest decides for all. The run's weights are used up."""
    step = time_step(run, steps=BUDGET_STEPS, seconds=BUDGET_SECONDS)
    step = max(run.world.gather(step))
    budget = 60 * minutes * (1 - RESERVED)
    one = evaluation_seconds(run, step)
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
    """Seconds of a training step, on average. The first also pays for what happens once, so it
    counts only where there is no other."""
    times = list[float]()
    began = time.perf_counter()
    for batch in run.stream.batches(0, min(steps, run.total)):
        run.train_step(batch)
        now = time.perf_counter()
        times.append(now - began - sum(times))
        if run.world.any(now - began > seconds):
            break
    return sum(times[1:]) / len(times[1:]) if times[1:] else times[0]


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
