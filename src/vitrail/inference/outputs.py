"""A classifier's outputs for every image of a source."""

from collections.abc import Callable

import numpy as np
import torch

from vitrail.core.errors import UserError
from vitrail.core.outputs import Outputs
from vitrail.data.loader import iterate_batches
from vitrail.data.source import Source
from vitrail.models.model import Model


@torch.inference_mode()
def compute_outputs(
    model: Model,
    source: Source,
    *,
    name: str,
    split: str = "test",
    batch_size: int = 64,
    workers: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outputs:
    """Read every image once, prepared as the model's passport says, and compute its logits. `name`
    is that of the data in errors; `on_progress` gets how many images are done, and of how many.

    >>> from vitrail.data.sources import open_data
    >>> compute_outputs(model, open_data("digits")["val"], name="digits").logits.shape
    (179, 3)
    """
    model.eval()
    weights = next(model.parameters())
    logits, targets, indices, broken = [], [], [], dict[str, str]()
    done = 0
    for batch in iterate_batches(source, model.passport.preprocessing, batch_size, workers=workers):
        broken |= {bad.path: bad.reason for bad in batch.broken}
        if len(batch.images):
            logits.append(model(batch.images.to(weights)).float().cpu().numpy())
            targets.append(batch.targets.numpy())
            indices.append(batch.indices)
        done += len(batch.indices) + len(batch.broken)
        on_progress(done, len(source))
    if not logits:
        raise UserError(f"{name}: none of its images can be read")
    return Outputs(
        labels=source.labels,
        logits=np.concatenate(logits),
        targets=np.concatenate(targets),
        indices=np.concatenate(indices),
        multi_label=source.targets is not None and source.targets.ndim == 2,
        split=split,
        broken=broken,
    )
