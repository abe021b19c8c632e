"""The learning rate that a run can take, found by trying (arXiv:1506.01186): rates grow from step
to step until the loss does not fall any more."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.training.loop import Trainer
from vitrail.weights.atomic import write_file
from vitrail.weights.files import read_json

LOWEST, HIGHEST, STEPS = 1e-6, 1.0, 100
SMOOTHING = 0.9  # of the loss
FILE = "lr-finder.json"


@dataclass(frozen=True)
class LearningRateCurve:
    """The chosen rate, and the trial steps it was chosen from."""

    lr: float
    rates: tuple[float, ...]
    losses: tuple[float, ...]  # smoothed


def find_lr(run: Trainer) -> LearningRateCurve:
    """Where the loss falls fastest. The run's weights are used up: begin the real one afresh."""
    rates, losses, mean = list[float](), list[float](), 0.0
    for step, batch in enumerate(run.stream.batches(0, STEPS)):
        if (why := run.lost_images(batch).why_stop) is not None:
            raise UserError(f"no learning rate was found: {why}")
        lr = LOWEST * (HIGHEST / LOWEST) ** (step / (STEPS - 1))
        try:
            run.train_step(batch, lr)
            run.read_losses()
        except UserError:  # the loss is not finite: this was too much
            break
        run.step += 1
        mean = SMOOTHING * mean + (1 - SMOOTHING) * run.last_loss
        smooth = mean / (1 - SMOOTHING ** (step + 1))
        if not math.isfinite(smooth) or (losses and has_diverged(smooth, losses)):
            break
        rates.append(lr)
        losses.append(smooth)
    if len(losses) < 5:
        raise UserError("no learning rate was found: the loss is not finite from the start")
    return LearningRateCurve(steepest(rates, losses), tuple(rates), tuple(losses))


def write_curve(curve: LearningRateCurve, out: Path) -> None:
    """OUT/lr-finder.json, for the report."""

    def fill(path: Path) -> None:
        path.write_text(json.dumps(asdict(curve)) + "\n", encoding="utf-8")

    write_file(out / FILE, fill, overwrite=True)


def read_curve(out: Path) -> LearningRateCurve | None:
    """The curve of a run whose learning rate was found by trying."""
    if not (out / FILE).is_file():
        return None
    return validate(LearningRateCurve, read_json(out / FILE), where=str(out / FILE))


def has_diverged(loss: float, before: list[float]) -> bool:
    """Whether a loss has risen above where it began by as much as that was, or as it had fallen.

    >>> has_diverged(2.5, [2.3, 1.0]), has_diverged(4.7, [2.3, 1.0])
    (False, True)
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
