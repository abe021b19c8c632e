"""`vitrail predict`: which labels a model gives to images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitrail.cli.options import (
    ComputeOptions,
    ModelOptions,
    OutputOptions,
    check_batch_size,
    check_threads,
    load_model,
    refuse_existing,
)
from vitrail.cli.output import plural, say, say_json, warn
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError
from vitrail.data.paths import STDIN, check_paths, pictures

if TYPE_CHECKING:
    from vitrail.inference.engine import Job
    from vitrail.inference.journal import Journal
    from vitrail.inference.predict import Prediction
    from vitrail.models.model import Model

__all__ = ["STDIN", "Predict", "pictures", "predict"]

GOES_ON = "the same command goes on from there"


@dataclass(frozen=True)
class Predict(ModelOptions, ComputeOptions, OutputOptions):
    """Which model labels which images."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    paths: tuple[str, ...] = ()
    """Files, directories, patterns or http addresses; - reads names from standard input, one a
    line."""
    _: KW_ONLY
    top: int = 5
    """How many labels to show for each."""
    out: str | None = None
    """A file for the predictions: .jsonl, .csv or .parquet. What is done is kept beside it until it
    is whole, and the same command goes on from there."""
    overwrite: bool = False
    """Replace OUT where it exists."""
    fast: bool = False
    """Decode large photos smaller and resize with torch: faster, and scores differ in their third
    digit. By default both are done exactly as the weights' authors did."""
    batch_size: int = 8
    """Images computed at once."""
    engine: Literal["local", "ray"] = "local"
    """Compute in this process, or on Ray."""
    address: str | None = None
    """The Ray cluster: auto, or host:port; by default one on this machine."""


@dataclass
class Tally:
    """How many images were labelled, how many could not be, and the first reason why."""

    labelled: int = 0
    broken: int = 0
    first: str = ""

    def add(self, one: Prediction) -> None:
        if one.problem is None:
            self.labelled += 1
            return
        self.broken += 1
        self.first = self.first or f"{one.name}: {one.problem}"

    def refuse_nothing(self) -> None:
        """A run that labelled nothing has failed."""
        if not self.labelled:
            images = plural(self.broken, "image")
            raise UserError(f"none of {images} could be labelled: {self.first}")


def predict(asked: Predict) -> None:
    """Label images with a trained model; one that cannot be read is a line with its reason. Exits
    with 2 where a file that was named does not exist, or no image could be labelled."""
    check(asked)
    check_paths(asked.paths)
    from vitrail.inference.arrow import prediction_row
    from vitrail.inference.writers import as_line

    model = load_model(asked)
    warn_untrained(model)
    if asked.out is not None:
        write(asked, Path(asked.out), model)
        return
    tally = Tally()
    with predicting_here(asked, model) as found:
        for one in found:
            tally.add(one)
            if asked.json:
                say_json(prediction_row(one))
            else:
                say(as_line(one))
    tally.refuse_nothing()


def write(asked: Predict, out: Path, model: Model) -> None:
    """All predictions to a file, which appears when it is whole."""
    from vitrail.inference.writers import write_predictions

    tally = Tally()
    total = None if STDIN in asked.paths else sum(1 for _ in pictures(asked.paths))
    with kept(asked, out, model) as found, progress() as watch:

        def counted() -> Iterator[Prediction]:
            for one in found:
                tally.add(one)
                watch("predicting", tally.labelled + tally.broken, total)
                yield one

        top = min(asked.top, model.config.num_classes)
        write_predictions(out, counted(), top=top, overwrite=asked.overwrite)
    count = tally.labelled + tally.broken
    if asked.json:
        say_json({"out": asked.out, "images": count, "broken": tally.broken})
    else:
        say(f"{asked.out}: {plural(count, 'image')}, {tally.broken} cannot be read")
    tally.refuse_nothing()


def warn_untrained(model: Model) -> None:
    """A head for other classes than its checkpoint had begins with zeros."""
    head = [weights for name, weights in model.named_parameters() if name.startswith("head")]
    if head and not any(weights.any() for weights in head):
        warn("note: the model's head is new and untrained: it gives every image the same scores")


def check(asked: Predict) -> None:
    """Refuse what cannot be meant before a model is loaded."""
    if asked.top < 1:
        raise UserError(f"--top must be at least 1, got {asked.top}")
    check_batch_size(asked.batch_size)
    check_threads(asked.threads)
    if asked.address is not None and asked.engine != "ray":
        raise UserError("--address is that of a Ray cluster: add --engine ray")
    if asked.engine == "ray" and asked.out is None:
        raise UserError("--engine ray needs --out FILE, beside which it keeps what is done")
    if asked.out is not None:
        from vitrail.inference.writers import writer_of

        writer_of(Path(asked.out))
        if Path(asked.out).is_dir():
            raise UserError(f"{asked.out}: is a directory, where a file is to be written")
        refuse_existing(asked.out, overwrite=asked.overwrite)


def job_of(asked: Predict) -> Job:
    from vitrail.inference.engine import Job

    return Job(output="scores", batch_size=asked.batch_size, exact=not asked.fast)


def predicting_here(
    asked: Predict, model: Model, journal: Journal | None = None
) -> AbstractContextManager[Iterator[Prediction]]:
    from vitrail.inference.predict import predicting

    return predicting(
        model,
        pictures(asked.paths),
        job_of(asked),
        top=asked.top,
        threads=asked.threads,
        keeper=journal,
    )


@contextmanager
def kept(asked: Predict, out: Path, model: Model) -> Iterator[Iterator[Prediction]]:
    """Predictions, one after another, each kept until the file that they go to is whole."""
    from vitrail.inference.journal import Journal
    from vitrail.inference.predict import labels_of
    from vitrail.weights.digest import digest_of

    if asked.engine == "ray":
        with on_ray(asked, out, model) as found:
            yield found
        return
    settings = {
        "model": digest_of(model),
        "labels": list(labels_of(model)),
        "top": asked.top,
        **asdict(job_of(asked)),
    }
    journal = Journal(out, settings, restart=asked.overwrite)
    try:
        with predicting_here(asked, model, journal) as found:
            yield found
    except KeyboardInterrupt:
        journal.close()
        done = plural(journal.kept, "prediction")
        raise KeyboardInterrupt(f"stopped; {done} are kept, and {GOES_ON}") from None
    journal.remove()


@contextmanager
def on_ray(asked: Predict, out: Path, model: Model) -> Iterator[Iterator[Prediction]]:
    from vitrail.inference.engine import usable_threads
    from vitrail.inference.on_ray import Cluster, predict_on_ray

    cluster = Cluster(asked.address, usable_threads(asked.threads))
    names = pictures(asked.paths)
    try:
        with predict_on_ray(model, names, out, job_of(asked), cluster, top=asked.top) as found:
            yield found
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; what is done is kept, and {GOES_ON}") from None
