"""The outputs of a run's weights for its validation images, by all processes together."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.data.loader import Batch, iterate_batches
from vitrail.data.source import Source
from vitrail.objectives.objective import Objective
from vitrail.training.precision import autocast
from vitrail.training.reconstructions import SHOWN
from vitrail.training.world import World


@dataclass(frozen=True)
class ValidationOutputs:
    """Outputs for the images that can be read, in the source's order; the images that cannot, and
    why; images of the first batch where the objective draws some."""

    logits: NDArray[np.float32]
    targets: NDArray[np.float32]
    indices: NDArray[np.int64]
    broken: dict[str, str]
    shown: dict[str, Tensor]


@torch.no_grad()  # inference mode would leave weights that are shared by processes unusable
def compute_outputs(
    objective: Objective,
    source: Source,
    world: World,
    *,
    batch_size: int,
    workers: int,
    seed: int,
    precision: str = "float32",
) -> ValidationOutputs:
    """The outputs of an objective in evaluation mode, each process computing its share."""
    how = objective.model.passport.preprocessing
    logits, targets, indices = list[Tensor](), list[Tensor](), list[Tensor]()
    broken, shown = dict[str, str](), dict[str, Tensor]()
    for batch in iterate_batches(
        source,
        how,
        batch_size,
        native=objective.native,
        workers=workers,
        rank=world.rank,
        world=world.size,
    ):
        broken |= {bad.path: bad.reason for bad in batch.broken}
        images, drawn = inputs(batch, objective, seed)
        images = images.to(world.device)
        drawn = None if drawn is None else drawn.to(world.device)
        if not logits and drawn is not None:
            with autocast(precision, world.device):
                shown = objective.illustrate(images[:SHOWN], drawn[:SHOWN])
        with autocast(precision, world.device):
            output = objective.outputs(images, drawn).float().cpu()
        logits.append(output[: len(batch.images)])
        targets.append(batch.targets)
        indices.append(torch.from_numpy(batch.indices))
    mine = torch.cat(logits), torch.cat(targets), torch.cat(indices)
    shares, lost = zip(*world.gather((mine, broken)), strict=True)
    broken = {path: reason for share in lost for path, reason in share.items()}
    found = [torch.cat(parts) for parts in zip(*shares, strict=True)]
    if not len(found[0]):
        raise UserError("no validation image could be read: examine the data with vitrail doctor")
    order = found[2].argsort()
    values, truth, places = (part[order].numpy() for part in found)
    return ValidationOutputs(values, truth, places, broken, shown)


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
