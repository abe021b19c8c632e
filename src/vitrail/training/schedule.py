"""The learning rate as a function of the step."""

import math

from vitrail.training.recipe import Schedule


def rate_at(step: int, total: int, schedule: Schedule) -> float:
    """The share of the peak learning rate at a step counted from 0.

    >>> rate_at(5, 100, Schedule(warmup=10))
    0.6
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    progress = (step - schedule.warmup) / max(total - schedule.warmup, 1)
    match schedule.kind:
        case "cosine":
            share = 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            share = 1 - progress
        case "constant":
            share = 1.0
    return schedule.floor + (1 - schedule.floor) * share
