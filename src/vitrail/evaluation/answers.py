"""What a model says of all images of a source."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from vitrail.core.errors import UserError
from vitrail.data.loader import in_order
from vitrail.data.source import Source
from vitrail.models.model import Model


@dataclass(frozen=True)
class Answers:
    """Logits and targets of the images that can be read, which ones they are, and why the others
    cannot."""

    logits: Float[np.ndarray, "N K"]
    targets: Float[np.ndarray, "N K"]
    indices: Int[np.ndarray, " N"]
    broken: dict[str, str]


@torch.inference_mode()
def answers_of(
    model: Model,
    source: Source,
    *,
    name: str,
    batch_size: int = 64,
    workers: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Answers:
    """Every image once, prepared as the model's passport says; `name` is for the one complaint,
    `watch` is told how many images are done, and of how many."""
    model.eval()
    weights = next(model.parameters())
    logits, targets, indices, broken = [], [], [], dict[str, str]()
    done = 0
    for batch in in_order(source, model.passport.preprocessing, batch_size, workers=workers):
        broken |= {bad.path: bad.reason for bad in batch.broken}
        if len(batch.images):
            logits.append(model(batch.images.to(weights)).float().cpu().numpy())
            targets.append(batch.targets.numpy())
            indices.append(batch.indices)
        done += len(batch.indices) + len(batch.broken)
        on_progress(done, len(source))
    if not logits:
        raise UserError(f"{name}: none of its images can be read")
    return Answers(np.concatenate(logits), np.concatenate(targets), np.concatenate(indices), broken)
