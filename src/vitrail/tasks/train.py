"""`vitrail.train`: from labelled images to a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from vitrail.tasks.folds import CrossValidation, cross_validate
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.run import Run
from vitrail.tasks.run_options import Observer, OnStep, Parallel, Precision, Size, make_options
from vitrail.tasks.training_run import start_run


class TrainKeywords(TypedDict, total=False):
    out: str | Path | None
    recipe: str | Path | None
    model: str | None
    start: str | Path | None
    epochs: float | None
    steps: int | None
    minutes: float | None
    batch_size: int | Literal["auto"] | None
    lr: float | Literal["find"] | None
    image_size: Size | None
    native_resolution: bool
    max_tokens: int | None
    val_share: float | None
    set: Mapping[str, Any] | None
    seed: int | None
    workers: int | None
    parallel: Parallel | None
    precision: Precision | None
    device: str
    threads: int | None
    processes: int
    resume: bool | Literal["auto"]
    dry_run: bool
    on_step: OnStep | None
    on_progress: OnProgress


@overload
def train(data: str | Path, *, folds: None = None, **options: Unpack[TrainKeywords]) -> Run: ...
@overload
def train(data: str | Path, *, folds: int, **options: Unpack[TrainKeywords]) -> CrossValidation: ...
def train(
    data: str | Path,
    *,
    out: str | Path | None = None,
    recipe: str | Path | None = None,
    model: str | None = None,
    start: str | Path | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    folds: int | None = None,
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
) -> Run | CrossValidation:
    """Train a model on labelled images, from scratch or from the checkpoint `start`. What is None
    the recipe decides, by default one chosen for the data; `set` changes any other field of it, as
    in `set={"optimiser.weight_decay": 0.1}`. With `native_resolution` images keep their aspect
    ratio, and their size up to `max_tokens` patches (ViT, DeiT, DINOv2). `minutes` is a budget for
    the whole run, or for all `folds`: steps follow from the measured speed. With `folds` there is a
    run for each of so many equal shares of the images, and a `CrossValidation` comes back. The
    directory `out` (default runs/DATA) gets checkpoints, metrics.jsonl, recipe.yaml and
    report.html. Ctrl-C ends the step, saves, and returns a run that is `stopped`:
    `vitrail.resume(run.out)` continues it, to the same bits.

    >>> run = train("digits", out="run", steps=2, batch_size=8, set={"fields.depth": 1})
    >>> run.step, run.metric, sorted(path.name for path in (run.best, run.last))
    (2, 'accuracy', ['best', 'last'])
    """
    options = dict(locals())
    observer = Observer(options.pop("on_step"), options.pop("on_progress"))
    run_options = make_options("train", options.pop("data"), options)
    if folds is not None:
        return cross_validate(run_options, observer)
    return start_run(run_options, observer)
