"""`vitrail.pretrain`: from images without labels to a model that knows images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.run import Run
from vitrail.tasks.run_options import (
    Observer,
    OnStep,
    Parallel,
    Precision,
    Size,
    make_options,
)
from vitrail.tasks.training_run import start_run
from vitrail.training.goal import MaskedObjective


def pretrain(
    data: str | Path,
    *,
    objective: MaskedObjective | None = None,
    tokenizer: str | Path | None = None,
    out: str | Path | None = None,
    recipe: str | Path | None = None,
    model: str | None = None,
    start: str | Path | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch_size: int | Literal["auto"] | None = None,
    lr: float | Literal["find"] | None = None,
    image_size: Size | None = None,
    val_share: float | None = None,
    set: Mapping[str, Any] | None = None,
    seed: int | None = None,
    workers: int | None = None,
    parallel: Parallel | None = None,
    precision: Precision | None = None,
    device: str = "auto",
    threads: int | None = None,
    processes: int = 1,
    resume: bool | Literal["auto"] = False,
    dry_run: bool = False,
    on_step: OnStep | None = None,
    on_progress: OnProgress = silent,
) -> Run:
    """Train a model on images without labels, by default as a masked autoencoder (mae); "beit"
    needs a `tokenizer`. All else is as for `vitrail.train`, which takes what comes out of it:
    `vitrail.train("photos", start=run.last)`. The directory `out` is by default
    runs/DATA-OBJECTIVE.

    >>> run = pretrain("digits", objective="mae", out="run", steps=2, batch_size=8)
    >>> run.step, run.metric
    (2, 'val_loss')
    """
    options = dict(locals())
    observer = Observer(options.pop("on_step"), options.pop("on_progress"))
    return start_run(make_options("pretrain", options.pop("data"), options), observer)
