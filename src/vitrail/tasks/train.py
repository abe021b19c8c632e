"""`vitrail.train`: from labelled images to a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.run import Run
from vitrail.tasks.run_options import Observer, OnStep, Parallel, Precision, Size, make_options
from vitrail.tasks.training_run import start_run


def train(
    data: str | Path,
    *,
    out: str | Path | None = None,
    recipe: str | Path | None = None,
    model: str | None = None,
    start: str | Path | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | Literal["auto"] | None = None,
    lr: float | Literal["find"] | None = None,
    image_size: Size | None = None,
    native_resolution: bool = False,
    max_tokens: int | None = None,
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
    """Train a model on labelled images, from scratch or from the checkpoint `start`. What is None
    the recipe decides, by default one chosen for the data; `set` changes any other field of it, as
    in `set={"optimiser.weight_decay": 0.1}`. With `native_resolution` images keep their aspect
    ratio, and their size up to `max_tokens` patches (ViT, DeiT, DINOv2). The directory `out`
    (default runs/DATA) gets checkpoints, metrics.jsonl, recipe.yaml and report.html. Ctrl-C ends
    the step, saves, and returns a run that is `stopped`: `vitrail.resume(run.out)` continues it, to
    the same bits.

    >>> run = train("digits", out="run", steps=2, batch_size=8, set={"fields.depth": 1})
    >>> run.step, run.metric, sorted(path.name for path in (run.best, run.last))
    (2, 'accuracy', ['best', 'last'])
    """
    options = dict(locals())
    observer = Observer(options.pop("on_step"), options.pop("on_progress"))
    return start_run(make_options("train", options.pop("data"), options), observer)
