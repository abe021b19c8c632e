"""`vitrail.predict`: which labels a model gives to images."""

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.broken import BrokenImage
from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.core.ranges import check_count
from vitrail.data.reader import ImageSource, Item
from vitrail.inference.calibration import Calibration
from vitrail.inference.engine import BATCH, Job, check_job, usable_threads
from vitrail.inference.engines.catalogue import AUTO, split_ray
from vitrail.inference.journal import Journal, speed_up_facts, stopped_engine
from vitrail.inference.packing import check_native
from vitrail.inference.predict import (
    Prediction,
    PredictRun,
    class_names,
    count_ahead,
    is_one,
    iter_images,
    open_predictions,
)
from vitrail.inference.quantisation import MAX_DROP, Quantisation
from vitrail.inference.speed_up import SpeedUp
from vitrail.inference.writers import WRITERS, check_out, write_predictions
from vitrail.models.model import Model
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun
from vitrail.tasks.int8 import check_int8, make_calibration, open_float
from vitrail.tasks.models import AnyModel, Device, Precision
from vitrail.tasks.names import name_of
from vitrail.tasks.predictions import PredictionFile, Predictions
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.speed_up import merge_as_stopped
from vitrail.weights.atomic import check_writable, refuse_existing
from vitrail.weights.digest import digest_of

PAGE = ".html"  # suffix of a page, in place of a table
RESUMES = "repeat the command to resume"

OnInt8 = Callable[[Quantisation], None]


def ignore(found: Quantisation) -> None:
    """Nobody asks what int8 cost."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """How predictions are computed; `merged` and `calibration` are what `speed_up` and int8 need,
    once the model is loaded."""

    top: int = 5
    exact: bool = True
    batch_size: int = BATCH
    engine: str = AUTO
    address: str | None = None
    speed_up: float | None = None
    native_resolution: bool = False
    max_tokens: int | None = None
    threads: int | None = None
    merged: SpeedUp | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        check_count("top", self.top, at_least=1)
        check_count("batch_size", self.batch_size, at_least=1)
        if self.threads is not None:
            check_count("threads", self.threads, at_least=1)
        if self.address is not None and not self.on_ray:
            raise UserError("address is for a Ray cluster: use engine ray with it")
        if self.speed_up is not None and self.on_ray:
            raise UserError("speed_up is measured on this machine: use another engine than ray")
        split_ray(self.engine)  # it refuses what is unknown or not installed
        given = {"speed_up": self.speed_up, "int8": self.calibration}
        others = {name: value is not None for name, value in given.items()}
        check_native(self.native_resolution, self.max_tokens, self.engine, **others)

    @property
    def on_ray(self) -> bool:
        return split_ray(self.engine)[0]

    @property
    def job(self) -> Job:
        return Job(
            output="scores",
            batch_size=self.batch_size,
            exact=self.exact,
            native_resolution=self.native_resolution,
            max_tokens=self.max_tokens,
        )


class Keywords(TypedDict, total=False):
    """The options of `predict` that do not decide what it returns."""

    top: int
    exact: bool
    batch_size: int
    overwrite: bool
    engine: str
    address: str | None
    speed_up: float | None
    native_resolution: bool
    max_tokens: int | None
    device: Device
    precision: Precision
    calibrate: ImageSource | Iterable[ImageSource] | None
    max_drop: float
    threads: int | None
    dry_run: bool
    on_progress: OnProgress


@overload
def predict(
    model: AnyModel,
    images: Image.Image,
    *,
    out: None = None,
    **options: Unpack[Keywords],
) -> Prediction: ...
@overload
def predict(
    model: AnyModel,
    images: str | Path | NDArray[np.uint8],
    *,
    out: None = None,
    **options: Unpack[Keywords],
) -> Any: ...  # one, or several where it is a directory, a pattern or an array of images
@overload
def predict(
    model: AnyModel,
    images: Iterable[ImageSource],
    *,
    out: None = None,
    **options: Unpack[Keywords],
) -> Predictions: ...
@overload
def predict(
    model: AnyModel,
    images: ImageSource | Iterable[ImageSource],
    *,
    out: str | Path,
    **options: Unpack[Keywords],
) -> PredictionFile | DryRun: ...
def predict(
    model: AnyModel,
    images: ImageSource | Iterable[ImageSource],
    *,
    top: int = 5,
    exact: bool = True,
    batch_size: int = BATCH,
    out: str | Path | None = None,
    overwrite: bool = False,
    engine: str = AUTO,
    address: str | None = None,
    speed_up: float | None = None,
    native_resolution: bool = False,
    max_tokens: int | None = None,
    device: Device = "auto",
    precision: Precision = None,
    calibrate: ImageSource | Iterable[ImageSource] | None = None,
    max_drop: float = MAX_DROP,
    threads: int | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = silent,
) -> Prediction | Predictions | PredictionFile | DryRun:
    """Predict the labels of one image or of many: paths, addresses, PIL images, uint8 arrays; a
    directory or a pattern means the images in it. Images are prepared as the model's passport says.

    One image gives one `Prediction`, and a `UserError` where it cannot be read. A directory, a
    pattern, an array (N, H, W, C) or any other iterable gives a list, in which an image that cannot
    be read has its `problem` in place of a label and a score. With `out` (.jsonl, .csv, .parquet)
    predictions go to that file as they are computed, with .html to a page with the images; a run
    that was interrupted is resumed.
    `exact=False` decodes large images smaller and resizes them by torch: scores differ a little.

    `engine` computes: "eager" (PyTorch), "compiled", "onnxruntime", "openvino" or "ray". "auto"
    takes eager for short jobs, and for longer ones the fastest on this machine, which it finds by
    measuring and remembers. While something observes the model, as `capture` does, it is eager.
    `speed_up=1.8` merges tokens of a ViT, DeiT or BEiT until it is measured to be that many times
    as fast; a run that is resumed merges as many as before.
    `precision="int8"` (engines onnxruntime and openvino) is calibrated on images of `calibrate`, by
    default of `images`, and refused if it changes more than `max_drop` per cent of their labels.
    `native_resolution=True` keeps the aspect ratio of images, and their size up to as many patches
    as the model's own grid has, or `max_tokens`: for ViT, DeiT and DINOv2, by the engine eager.

    >>> predict(model, np.zeros((300, 400, 3), dtype=np.uint8)).label
    'class 0'
    >>> len(predict(model, [Image.new("RGB", (40, 30)), Image.new("L", (20, 20))]))
    2
    """
    names, given = {field.name for field in fields(PredictOptions)}, locals()
    options = PredictOptions(**{name: given[name] for name in names & given.keys()})
    check_not_swapped(model, images)
    check_int8(precision, calibrate, max_drop, engine, native_resolution=native_resolution)
    check_writing(out, options, overwrite=overwrite, dry_run=dry_run)
    loaded = open_float(model, device=device, precision=precision, threads=threads)
    wanted = None if dry_run else speed_up  # it takes a while to find
    loaded, merged = merge_as_stopped(
        loaded, wanted, out, batch_size=batch_size, engine=engine, threads=threads
    )
    int8 = make_calibration(loaded, images, precision, calibrate, max_drop)
    options, one = replace(options, merged=merged, calibration=int8), is_one(images)
    items = iter_images([images] if one or isinstance(images, str | Path) else images)
    if out is not None and dry_run:
        return plan_predictions(loaded, items, Path(out), options.job)
    count, items = count_ahead(items)
    if out is not None:
        how = (options, overwrite, on_progress)
        return predict_to_file(loaded, items, Path(out), *how, images=count, name=name_of(model))
    count = len(images) if count is None and isinstance(images, Sized) else count
    predictions = list_predictions(loaded, items, options, count, on_progress)
    predictions.model, predictions.speed_up = name_of(model), merged.facts() if merged else None
    return only_prediction(predictions) if one else predictions


def list_predictions(
    model: Model,
    items: Iterable[Item],
    options: PredictOptions,
    images: int | None,
    on_progress: OnProgress,
) -> Predictions:
    """All predictions, in memory."""
    predictions = Predictions()
    with open_run(model, items, options, options.engine, images, on_progress) as run:
        predictions.quantisation = run.opened.quantisation
        for prediction in run.predict(top=options.top):
            predictions.append(prediction)
            on_progress("predicting", len(predictions), None)
    return predictions


def only_prediction(predictions: Predictions) -> Prediction:
    [prediction] = predictions
    if prediction.problem is not None:
        raise UserError(f"{prediction.name}: {prediction.problem}")
    return prediction


def check_writing(
    out: str | Path | None, options: PredictOptions, *, overwrite: bool, dry_run: bool
) -> None:
    """Refuse, before a model is loaded, a file that could not be written."""
    if out is not None:
        check_file(Path(out), overwrite=overwrite)
    elif dry_run:
        raise UserError("dry_run needs out=FILE: it reports what would be written there")
    elif options.on_ray:
        raise UserError("engine ray needs out=FILE for the predictions")


def check_file(out: Path, *, overwrite: bool) -> None:
    if out.suffix.lower() == PAGE:
        check_writable(out)
        refuse_existing(out, overwrite)
    elif out.suffix.lower() not in WRITERS:
        known = ", ".join((*WRITERS, PAGE))
        raise UserError(f"out must be a file that ends in {known}, got {str(out)!r}")
    else:
        check_out(out, overwrite=overwrite)


@contextmanager
def stream_predictions(
    model: Model,
    items: Iterable[Item],
    options: PredictOptions,
    images: int | None = None,
    on_progress: OnProgress = silent,
    on_int8: OnInt8 = ignore,
) -> Iterator[Iterator[Prediction]]:
    """Predictions, one after another, as they are computed in this process; of `images` images, if
    that is known. `on_int8` gets what int8 cost, before the first one."""
    with open_run(model, items, options, options.engine, images, on_progress) as run:
        if run.opened.quantisation is not None:
            on_int8(run.opened.quantisation)
        yield run.predict(top=options.top)


@contextmanager
def open_run(
    model: Model,
    items: Iterable[Item],
    options: PredictOptions,
    engine: str,
    images: int | None,
    on_progress: OnProgress,
) -> Iterator[PredictRun]:
    with (
        eval_mode(model),
        open_predictions(
            model,
            items,
            options.job,
            engine=engine,
            images=images,
            threads=options.threads,
            calibration=options.calibration,
            on_progress=on_progress,
        ) as run,
    ):
        yield run


def predict_to_file(
    model: Model,
    items: Iterable[Item],
    out: Path,
    options: PredictOptions,
    overwrite: bool = False,
    on_progress: OnProgress = silent,
    total: int | None = None,
    images: int | None = None,
    name: str = "",
) -> PredictionFile:
    """All predictions to a file, which appears when it is complete; of `total` images, or of at
    least `images`, if that is known. A page shows the `name` of the model."""
    done, broken = 0, list[BrokenImage]()
    int8: list[Quantisation] = []
    resumable = partial(resumable_predictions, model, items, out, options, on_int8=int8.append)
    with resumable(restart=overwrite, images=total or images, on_progress=on_progress) as found:

        def count() -> Iterator[Prediction]:
            nonlocal done
            for one in found:
                done += 1
                if one.problem is not None:
                    broken.append(BrokenImage(one.name, one.problem))
                on_progress("predicting", done, total)
                yield one

        if out.suffix.lower() == PAGE:
            page = Predictions(count())
            page.model = name
            page.save_html(out, overwrite=overwrite)
        else:
            top = min(options.top, model.config.num_classes)
            write_predictions(out, count(), top=top, overwrite=overwrite)
    quantisation = int8[0] if int8 else None
    merged = None if options.merged is None else options.merged.facts()
    return PredictionFile(str(out), done, tuple(broken), quantisation, merged)


def plan_predictions(model: Model, items: Iterable[Item], out: Path, job: Job) -> DryRun:
    """How many images a file of predictions would have."""
    check_job(model, job)
    images = sum(1 for _ in items)
    details = {"images": images, "batches": math.ceil(images / job.batch_size)}
    details |= {"classes": model.config.num_classes}
    return DryRun("predict", str(out), details)


@contextmanager
def resumable_predictions(
    model: Model,
    items: Iterable[Item],
    out: Path,
    options: PredictOptions,
    *,
    restart: bool,
    images: int | None,
    on_progress: OnProgress,
    on_int8: OnInt8,
) -> Iterator[Iterator[Prediction]]:
    """Predictions, one after another, each kept until the file that they go to is complete. Where
    the engine is auto, a run that stopped is resumed with the engine that it had."""
    if options.on_ray:
        with predictions_on_ray(model, items, out, options) as found:
            yield found
        return
    settings = {
        "model": digest_of(model),
        "labels": list(class_names(model)),
        "top": options.top,
        **asdict(options.job),
    }
    if options.calibration is not None:
        settings["calibration"] = options.calibration.samples.digest
    if options.merged is not None:
        settings["speed_up"] = speed_up_facts(options.speed_up, options.merged)
    engine = options.engine
    if engine == AUTO:
        engine = stopped_engine(out, settings) or AUTO
    with open_run(model, items, options, engine, images, on_progress) as run:
        if run.opened.quantisation is not None:
            on_int8(run.opened.quantisation)
        journal = Journal(out, {**settings, "engine": run.opened.engine}, restart=restart)
        with resuming(journal):
            yield run.predict(top=options.top, store=journal)


@contextmanager
def resuming(journal: Journal) -> Iterator[None]:
    """A journal goes when all is done, and stays for the next run where it was interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        journal.close()
        kept = f"{journal.kept:,} prediction{'' if journal.kept == 1 else 's'}"
        raise KeyboardInterrupt(f"stopped; {kept} saved: {RESUMES}") from None
    journal.remove()


@contextmanager
def predictions_on_ray(
    model: Model, items: Iterable[Item], out: Path, options: PredictOptions
) -> Iterator[Iterator[Prediction]]:
    from vitrail.inference.on_ray import Cluster, predict_on_ray  # here: Ray may be missing

    _, engine = split_ray(options.engine)
    cluster = Cluster(options.address, usable_threads(options.threads), engine)
    names = (only_path(item) for item in items)
    try:
        with predict_on_ray(model, names, out, options.job, cluster, top=options.top) as found:
            yield found
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; finished predictions are saved: {RESUMES}") from None


def only_path(item: Item) -> str:
    if not isinstance(item, str):
        raise UserError("engine ray needs paths or addresses, got images in memory")
    return item
