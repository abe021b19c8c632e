"""`vitrail.predict`: which labels a model gives to images."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.core.ranges import check
from vitrail.data.reader import ImageSource, Item
from vitrail.inference.arrow import prediction_row
from vitrail.inference.engine import BATCH, Engine, Job, usable_threads
from vitrail.inference.journal import Journal
from vitrail.inference.predict import (
    Prediction,
    class_names,
    is_one,
    iter_images,
    open_predictions,
)
from vitrail.inference.writers import check_out, format_line, write_predictions
from vitrail.models.model import Model
from vitrail.tasks.dry_run import DryRun
from vitrail.tasks.image_pages import ShowsImages, show_predictions
from vitrail.tasks.models import Device, Precision, open_model
from vitrail.tasks.names import name_of
from vitrail.tasks.progress import OnProgress, silent
from vitrail.weights.digest import digest_of

EngineName = Literal["local", "ray"]
SHOWN = 5  # predictions in a repr
RESUMES = "the same command resumes from there"


class Predictions(list[Prediction], ShowsImages):
    """Predictions in the order of the images."""

    model = ""

    def html(self) -> str:
        return show_predictions(self, self.model)

    def facts(self) -> list[dict[str, Any]]:
        """Plain values for JSON, one object an image."""
        return [prediction_row(one) for one in self]

    def __repr__(self) -> str:
        more = [f"… {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        return "\n".join(["Predictions", *map(format_line, self[:SHOWN]), *more])


@dataclass(frozen=True)
class PredictionFile:
    """A file of predictions: how many images it has, and how many of these could not be read."""

    out: str
    images: int
    broken: int
    first_problem: str | None

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"out": self.out, "images": self.images, "broken": self.broken}

    def __repr__(self) -> str:
        return f"PredictionFile({self.out}, {self.images} images, {self.broken} cannot be read)"


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """How predictions are computed."""

    top: int = 5
    exact: bool = True
    batch_size: int = BATCH
    engine: EngineName = "local"
    address: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        check("top", self.top, at_least=1)
        check("batch_size", self.batch_size, at_least=1)
        if self.threads is not None:
            check("threads", self.threads, at_least=1)
        if self.address is not None and self.engine != "ray":
            raise UserError("address is that of a Ray cluster: choose the engine ray too")

    @property
    def job(self) -> Job:
        return Job(output="scores", batch_size=self.batch_size, exact=self.exact)


class Keywords(TypedDict, total=False):
    """The options of `predict` that do not decide what it returns."""

    top: int
    exact: bool
    batch_size: int
    overwrite: bool
    engine: EngineName
    address: str | None
    device: Device
    precision: Precision
    threads: int | None
    dry_run: bool
    on_progress: OnProgress


@overload
def predict(
    model: str | Path | nn.Module,
    images: Image.Image,
    *,
    out: None = None,
    **options: Unpack[Keywords],
) -> Prediction: ...
@overload
def predict(
    model: str | Path | nn.Module,
    images: str | Path | NDArray[np.uint8],
    *,
    out: None = None,
    **options: Unpack[Keywords],
) -> Any: ...  # one, or several where it is a directory, a pattern or an array of images
@overload
def predict(
    model: str | Path | nn.Module,
    images: Iterable[ImageSource],
    *,
    out: None = None,
    **options: Unpack[Keywords],
) -> Predictions: ...
@overload
def predict(
    model: str | Path | nn.Module,
    images: ImageSource | Iterable[ImageSource],
    *,
    out: str | Path,
    **options: Unpack[Keywords],
) -> PredictionFile | DryRun: ...
def predict(
    model: str | Path | nn.Module,
    images: ImageSource | Iterable[ImageSource],
    *,
    top: int = 5,
    exact: bool = True,
    batch_size: int = BATCH,
    out: str | Path | None = None,
    overwrite: bool = False,
    engine: EngineName = "local",
    address: str | None = None,
    device: Device = None,
    precision: Precision = None,
    threads: int | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = silent,
) -> Prediction | Predictions | PredictionFile | DryRun:
    """Predict the labels of one image or of many: paths, addresses, PIL images, uint8 arrays; a
    directory or a pattern means the images in it. Images are prepared as the model's passport says.

    One image gives one `Prediction`, and a `UserError` where it cannot be read. A directory, a
    pattern, an array (N, H, W, C) or any other iterable gives a list, in which an image that cannot
    be read has its `problem` in place of a label and a score. With `out` (.jsonl, .csv, .parquet)
    predictions go to that file as they are computed; a run that was interrupted is resumed.
    `exact=False` decodes large images smaller and resizes them by torch: faster, and scores differ
    in their third digit. Scores inside `capture` may differ in the last bits: the last block is
    computed in part only while nothing observes it.

    >>> predict(model, np.zeros((300, 400, 3), dtype=np.uint8)).label
    'class 0'
    >>> len(predict(model, [Image.new("RGB", (40, 30)), Image.new("L", (20, 20))]))
    2
    """
    options = PredictOptions(
        top=top,
        exact=exact,
        batch_size=batch_size,
        engine=engine,
        address=address,
        threads=threads,
    )
    check_writing(out, options, overwrite=overwrite, dry_run=dry_run)
    loaded = open_model(model, device=device, precision=precision)
    one = is_one(images)
    items = iter_images([images] if one or isinstance(images, str | Path) else images)
    if out is not None:
        if dry_run:
            return plan_predictions(loaded, items, Path(out))
        return predict_to_file(loaded, items, Path(out), options, overwrite, on_progress)
    with stream_predictions(loaded, items, options) as found:
        predictions = Predictions()
        predictions.model = name_of(model)
        for prediction in found:
            predictions.append(prediction)
            on_progress("predicting", len(predictions), None)
    if not one:
        return predictions
    [prediction] = predictions
    if prediction.problem is not None:
        raise UserError(f"{prediction.name}: {prediction.problem}")
    return prediction


def check_writing(
    out: str | Path | None, options: PredictOptions, *, overwrite: bool, dry_run: bool
) -> None:
    """Refuse, before a model is loaded, a file that could not be written."""
    if out is not None:
        check_out(Path(out), overwrite=overwrite)
    elif dry_run:
        raise UserError("dry_run says what would be written: give out too")
    elif options.engine == "ray":
        raise UserError("the engine ray needs out, a file beside which it keeps what is done")


@contextmanager
def stream_predictions(
    model: Model, items: Iterable[Item], options: PredictOptions, journal: Journal | None = None
) -> Iterator[Iterator[Prediction]]:
    """Predictions, one after another, as they are computed in this process."""
    with (
        eval_mode(model),
        open_predictions(
            model, items, options.job, top=options.top, threads=options.threads, store=journal
        ) as found,
    ):
        yield found


def predict_to_file(
    model: Model,
    items: Iterable[Item],
    out: Path,
    options: PredictOptions,
    overwrite: bool = False,
    on_progress: OnProgress = silent,
    total: int | None = None,
) -> PredictionFile:
    """All predictions to a file, which appears when it is complete."""
    images, broken, first = 0, 0, None
    with resumable_predictions(model, items, out, options, restart=overwrite) as found:

        def count() -> Iterator[Prediction]:
            nonlocal images, broken, first
            for one in found:
                images += 1
                if one.problem is not None:
                    broken += 1
                    first = first or f"{one.name}: {one.problem}"
                on_progress("predicting", images, total)
                yield one

        top = min(options.top, model.config.num_classes)
        write_predictions(out, count(), top=top, overwrite=overwrite)
    return PredictionFile(str(out), images, broken, first)


def plan_predictions(model: Model, items: Iterable[Item], out: Path) -> DryRun:
    """How many images a file of predictions would have."""
    Engine(model, Job(output="scores"))  # it refuses a model without a head
    images = sum(1 for _ in items)
    return DryRun("predict", str(out), {"images": images, "classes": model.config.num_classes})


@contextmanager
def resumable_predictions(
    model: Model, items: Iterable[Item], out: Path, options: PredictOptions, *, restart: bool
) -> Iterator[Iterator[Prediction]]:
    """Predictions, one after another, each kept until the file that they go to is complete."""
    if options.engine == "ray":
        with predictions_on_ray(model, items, out, options) as found:
            yield found
        return
    settings = {
        "model": digest_of(model),
        "labels": list(class_names(model)),
        "top": options.top,
        **asdict(options.job),
    }
    journal = Journal(out, settings, restart=restart)
    try:
        with stream_predictions(model, items, options, journal) as found:
            yield found
    except KeyboardInterrupt:
        journal.close()
        kept = f"{journal.kept:,} prediction{'' if journal.kept == 1 else 's'}"
        raise KeyboardInterrupt(f"stopped; {kept} kept, and {RESUMES}") from None
    journal.remove()


@contextmanager
def predictions_on_ray(
    model: Model, items: Iterable[Item], out: Path, options: PredictOptions
) -> Iterator[Iterator[Prediction]]:
    from vitrail.inference.on_ray import Cluster, predict_on_ray  # here: Ray may be missing

    cluster = Cluster(options.address, usable_threads(options.threads))
    names = (only_path(item) for item in items)
    try:
        with predict_on_ray(model, names, out, options.job, cluster, top=options.top) as found:
            yield found
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; what is done is kept, and {RESUMES}") from None


def only_path(item: Item) -> str:
    if not isinstance(item, str):
        raise UserError("the engine ray reads paths and addresses, not images in memory")
    return item
