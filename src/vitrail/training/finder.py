"""The learning rate that a run can take, found by trying (arXiv:1506.01186): rates grow from step
to step until the loss does not fall any more."""

import math
from dataclasses import dataclass

import numpy as np

from vitrail.core.errors import UserError
from vitrail.training.loop import Trainer

LOWEST, HIGHEST, STEPS = 1e-6, 1.0, 100
MEMORY = 0.9  # of the smoothed loss


@dataclass(frozen=True)
class Found:
    """The chosen rate, and the curve it was chosen from."""

    lr: float
    rates: tuple[float, ...]
    losses: tuple[float, ...]  # smoothed


def find_lr(run: Trainer) -> Found:
    """Where the loss falls fastest. The run's weights are used up: begin the real one afresh."""
    rates, losses, mean = list[float](), list[float](), 0.0
    for step, batch in enumerate(run.stream.batches(0, STEPS)):
        if (why := run.outage(batch)) is not None:
            raise UserError(f"no learning rate was found: {why}")
        lr = LOWEST * (HIGHEST / LOWEST) ** (step / (STEPS - 1))
        try:
            loss = run.train_step(batch, lr)
        except UserError:  # the loss is not finite: this was too much
            break
        run.step += 1
        mean = MEMORY * mean + (1 - MEMORY) * loss
        smooth = mean / (1 - MEMORY ** (step + 1))
        if not math.isfinite(smooth) or (losses and too_far(smooth, losses)):
            break
        rates.append(lr)
        losses.append(smooth)
    if len(losses) < 5:
        raise UserError("no learning rate was found: the loss is not finite from the start")
    return Found(steepest(rates, losses), tuple(rates), tuple(losses))


def too_far(loss: float, before: list[float]) -> bool:
    """Whether a loss has risen above where it began by as much as that was, or as it had fallen.

    >>> too_far(2.5, [2.3, 1.0]), too_far(4.7, [2.3, 1.0]), too_far(-1.2, [-1.0, -1.5])
    (False, True, False)
    """
    return loss > before[0] + max(abs(before[0]), before[0] - min(before))


def steepest(rates: list[float], losses: list[float]) -> float:
    """The rate at which the loss falls fastest against the logarithm of the rate, to two digits.

    >>> steepest([1e-4, 1e-3, 1e-2, 1e-1], [2.0, 1.9, 1.0, 1.1])
    0.01
    """
    low = int(np.argmin(losses)) + 1
    slopes = np.diff(losses[:low]) / np.diff(np.log(rates[:low]))
    best = int(np.argmin(slopes)) + 1 if len(slopes) else 0
    return float(f"{rates[best]:.1e}")
