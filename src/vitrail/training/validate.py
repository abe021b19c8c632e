"""The outputs of a run's weights for its validation images, by all processes together."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage
from vitrail.data.loader import Batch, dense_targets
from vitrail.objectives.objective import Objective
from vitrail.training.counts import CountedScorer, Counts
from vitrail.training.outage import OutageError, is_storage
from vitrail.training.precision import autocast
from vitrail.training.reconstructions import SHOWN
from vitrail.training.world import World

# Outputs of validation images that are kept for the report and for scores that rank all of them:
# more than that, 256 MB in the main process, are added up batch by batch and forgotten.
MAX_KEPT = 2**26


@dataclass(frozen=True)
class ValidationOutputs:
    """Outputs for the images that can be read, in the source's order, if they are `kept`, by the
    main process alone; how many there are, and what was counted of them; the images that cannot be
    read, and why, and whether some of them because storage did not answer; images of the first
    batch where the objective draws some."""

    logits: NDArray[np.float32]
    targets: NDArray[np.float32]
    indices: NDArray[np.int64]
    broken: dict[str, str]
    shown: dict[str, Tensor]
    images: int = 0
    counts: Counts | None = None
    kept: bool = True
    storage_failed: bool = False


@torch.no_grad()  # inference mode would leave weights that are shared by processes unusable
def compute_outputs(
    objective: Objective,
    batches: Iterable[Batch],
    world: World,
    *,
    classes: int,
    seed: int,
    scorer: CountedScorer | None = None,
    keep: bool = True,
    precision: str = "float32",
) -> ValidationOutputs:
    """The outputs of an objective in evaluation mode, each process computing its share. With a
    `scorer` that counts, hits and losses are added up; all outputs are brought together only if
    they are to be kept."""
    counts = None if scorer is None else Counts(scorer.names)
    logits, targets, indices = list[Tensor](), list[Tensor](), list[Tensor]()
    broken, shown, first = list[BadImage](), dict[str, Tensor](), True
    for batch in batches:
        broken += batch.broken
        images, drawn = inputs(batch, objective, seed)
        images = images.to(world.device)
        drawn = None if drawn is None else drawn.to(world.device)
        with autocast(precision, world.device):
            if first and drawn is not None:
                shown = objective.illustrate(images[:SHOWN], drawn[:SHOWN])
            output = objective.outputs(images, drawn).float().cpu()[: len(batch.images)]
        first = False
        truth = batch.targets.cpu()
        if scorer is not None and counts is not None and len(output):
            pair = output.numpy(), dense_targets(truth, classes).numpy()
            counts.add(scorer.hits(*pair), objective.val_losses(*pair), len(output))
        if keep:
            logits.append(output)
            targets.append(truth)
        indices.append(torch.from_numpy(batch.indices))
    return bring_together(world, (logits, targets, indices), broken, shown, counts, classes)


def bring_together(
    world: World,
    mine: tuple[list[Tensor], list[Tensor], list[Tensor]],
    broken_here: list[BadImage],
    shown: dict[str, Tensor],
    counts: Counts | None,
    classes: int,
) -> ValidationOutputs:
    """What all processes have: counts as sums, and in the main one outputs in the source's order if
    they were kept, with targets that have been class numbers so far."""
    kept = bool(mine[0]) or not mine[2]
    images = int(world.sum(sum(len(part) for part in mine[2])))
    every = [bad for share in world.gather(broken_here) for bad in share]
    broken, failed = {bad.path: bad.reason for bad in every}, is_storage(every)
    if not images and failed:
        raise OutageError(f"no validation image can be read (such as {every[0]})", storage=True)
    if not images:
        raise UserError("no validation image could be read: examine the data with vitrail doctor")
    if counts is not None:
        summed = world.sums(list(counts.sums.values()))
        counts.sums = {name: int(n) for name, n in zip(counts.sums, summed, strict=True)}
    shares = world.to_main(tuple(torch.cat(parts) for parts in mine)) if kept else None
    if shares is None:
        nothing = np.empty((0, 0), dtype=np.float32)
        none = np.empty(0, dtype=np.int64)
        return ValidationOutputs(
            nothing, nothing, none, broken, shown, images, counts, False, failed
        )
    found = [torch.cat(parts) for parts in zip(*shares, strict=True)]
    order = found[2].argsort()
    values, truth, places = (part[order] for part in found)
    rows = dense_targets(truth, classes).numpy()
    return ValidationOutputs(
        values.numpy(), rows, places.numpy(), broken, shown, images, counts, True, failed
    )


def inputs(batch: Batch, objective: Objective, seed: int) -> tuple[Tensor, Tensor | None]:
    """The images of a batch and what chance decides for them, the same at every evaluation. A
    process without images computes on a dummy, because the others wait for it."""
    if not len(batch.images):
        return dummy_images(objective, seed)
    return batch.images, objective.draw(seed, 0, batch.indices)


def dummy_images(objective: Objective, seed: int) -> tuple[Tensor, Tensor | None]:
    """One black image, and what chance decides for it."""
    how = objective.model.passport.preprocessing
    drawn = objective.draw(seed, 0, np.zeros(1, dtype=np.int64))
    return torch.zeros(1, len(how.mean), *how.size), drawn


def is_better(decides: str, values: dict[str, float], best: dict[str, float]) -> bool:
    """Whether weights are to be kept instead of the best ones: by the score that decides, then by
    the validation loss, then by all others; equal weights stay. What is not finite beats nothing,
    and what is missing in `best` was not finite.

    >>> is_better("accuracy", {"accuracy": 0.5, "val_loss": 1.0}, {"accuracy": 0.5, "val_loss": 2})
    True
    """
    for name in dict.fromkeys((decides, "val_loss", *values)):
        value, other = values.get(name, math.nan), best.get(name, math.nan)
        if not math.isfinite(value) or value == other:
            if name == decides and not math.isfinite(value):
                return False
            continue
        if not math.isfinite(other):
            return True
        return value < other if name.endswith("loss") else value > other
    return False


def finite(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
