"""A classifier's outputs for every image of a source."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.core.native_size import NativeSize
from vitrail.core.outputs import Outputs
from vitrail.data.loader import iterate_batches
from vitrail.data.source import Source
from vitrail.inference.calibration import Calibration
from vitrail.inference.engine import Job, plan_of
from vitrail.inference.engines.auto import OpenRunner, open_runner
from vitrail.inference.engines.catalogue import EAGER
from vitrail.inference.packing import PackedRunner
from vitrail.models.model import Model


def open_logits(
    model: Model,
    *,
    batch_size: int,
    engine: str = EAGER,
    images: int | None = None,
    calibration: Calibration | None = None,
) -> OpenRunner:
    """An engine that computes logits, with all threads on one batch; for `images` images, if that
    is known."""
    job = Job(output="scores", batch_size=batch_size)
    plan = plan_of(model, job, threads=torch.get_num_threads())
    return open_runner(model, plan, engine, images=images, calibration=calibration)


def compute_outputs(
    model: Model,
    source: Source,
    *,
    name: str,
    split: str = "test",
    batch_size: int = 64,
    workers: int = 0,
    opened: OpenRunner | None = None,
    native: NativeSize | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outputs:
    """Read every image once, prepared as the model's passport says, and compute its logits. `name`
    is that of the data in errors; `opened` computes in place of the model, if given; with `native`
    images have that size each, and are packed; `on_progress` gets how many images are done, and of
    how many.

    >>> from vitrail.data.sources import open_data
    >>> small = create("vit_ti_16", image_size=16, channels=1, depth=1, num_classes=10)
    >>> compute_outputs(small, open_data("digits")["val"], name="digits").logits.shape
    (179, 10)
    """
    model.eval()
    compute: Callable[[Any], NDArray[np.float32]]  # of a batch's images
    if native is not None:
        compute = PackedRunner(model, "logits", max_tokens=native.max_tokens)
    else:
        compute = (opened or open_logits(model, batch_size=batch_size)).compute
    read = partial(iterate_batches, workers=workers, native=native)
    logits, targets, indices, broken = [], [], [], dict[str, str]()
    done = 0
    for batch in read(source, model.passport.preprocessing, batch_size):
        broken |= {bad.path: bad.reason for bad in batch.broken}
        if len(batch.images):
            logits.append(compute(batch.images))
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
