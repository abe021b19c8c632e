"""How long a run will take on this machine, from a few of its own steps."""

import time

from vitrail.training.loop import Trainer

STEPS, SECONDS = 4, 5.0  # of trial: whichever is reached first, but at least one step


def estimate_seconds(run: Trainer) -> float:
    """Training and its evaluations. The run's weights are used up: begin the real one afresh.

    The first step also pays for what happens once, so it counts only where there is no other.
    """
    times = list[float]()
    began = time.perf_counter()
    for batch in run.stream.batches(0, min(STEPS, run.total)):
        run.train_step(batch)
        now = time.perf_counter()
        times.append(now - began - sum(times))
        if now - began > SECONDS:
            break
    step = sum(times[1:]) / len(times[1:]) if times[1:] else times[0]
    # an evaluation reads every image and computes forwards alone, a third of a training step
    evaluations = max(
        run.total / max(run.recipe.monitor.eval_every_epochs * run.stream.steps, 1), 1
    )
    evaluation = step / 3 * len(run.task.val) / run.recipe.batch_size
    return step * run.total + evaluation * evaluations


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
