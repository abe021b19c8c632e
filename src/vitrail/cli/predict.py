"""`vitrail predict`: which labels a model gives to images."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.options import (
    COMPUTING,
    BatchSize,
    ComputeOptions,
    DryRunOption,
    ModelOptions,
    Out,
    OutputOptions,
    OverwriteOption,
    Source,
    load_model,
)
from vitrail.cli.output import note, plural, say, say_json
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError
from vitrail.data.paths import STDIN, check_paths, list_images

if TYPE_CHECKING:
    from vitrail.models.model import Model
    from vitrail.tasks.predict import PredictOptions


@dataclass(frozen=True)
class Predict(ModelOptions, ComputeOptions, DryRunOption, OverwriteOption, OutputOptions):
    """Which model labels which images."""

    source: Source
    """A Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    images: tuple[str, ...] = ()
    """Files, directories, patterns or http addresses; - reads names from standard input, one a
    line."""
    _: KW_ONLY
    top: int = 5
    """Number of labels for each image."""
    out: Out = None
    """File for the predictions: .jsonl, .csv or .parquet. An interrupted run is resumed by the same
    command."""
    fast: Annotated[bool, Parameter(group=COMPUTING)] = False
    """Decode large images smaller and resize with torch: faster, and scores differ in their third
    digit. By default both are done exactly as the weights' authors did."""
    batch_size: BatchSize = 8
    engine: Annotated[Literal["local", "ray"], Parameter(group=COMPUTING)] = "local"
    """Compute in this process, or on a Ray cluster."""
    address: Annotated[str | None, Parameter(group=COMPUTING)] = None
    """Ray cluster: auto, or host:port. [default: one on this machine]"""


def predict(options: Predict) -> None:
    """Label images with a trained model. An image that cannot be read is a line with its problem.
    Exits with 2 if a named file does not exist or no image could be labelled.

    Examples:
      vitrail predict runs/pets/best cat.jpg dog.jpg --top 3
      vitrail predict runs/pets/best photos/ --out labels.csv
    """
    check_paths(options.images)
    from vitrail.tasks.arguments import check_not_swapped
    from vitrail.tasks.predict import PredictOptions, check_writing

    check_not_swapped(options.source, options.images[0])

    how = PredictOptions(
        top=options.top,
        exact=not options.fast,
        batch_size=options.batch_size,
        engine=options.engine,
        address=options.address,
        threads=options.threads,
    )
    check_writing(options.out, how, overwrite=options.overwrite, dry_run=options.dry_run)
    model = load_model(options)
    warn_untrained(model)
    if options.out is not None:
        write(options, Path(options.out), model, how)
    else:
        print_predictions(options, model, how)


def print_predictions(options: Predict, model: Model, how: PredictOptions) -> None:
    """A line for each image, as soon as it is computed."""
    from vitrail.inference.arrow import prediction_row
    from vitrail.inference.writers import format_line
    from vitrail.tasks.predict import stream_predictions

    images, broken, first = 0, 0, None
    with stream_predictions(model, list_images(options.images), how) as found:
        for one in found:
            images += 1
            if one.problem is not None:
                broken += 1
                first = first or f"{one.name}: {one.problem}"
            if options.json:
                say_json(prediction_row(one))
            else:
                say(format_line(one))
    refuse_no_labels(images, broken, first)


def write(options: Predict, out: Path, model: Model, how: PredictOptions) -> None:
    """All predictions to a file, or what would be written to it."""
    from vitrail.tasks.predict import plan_predictions, predict_to_file

    images = list_images(options.images)
    if options.dry_run:
        plan = plan_predictions(model, images, out)
        if options.json:
            say_json(plan.facts())
        else:
            say(f"would write predictions for {plural(plan.details['images'], 'image')} to {out}")
        return
    total = None if STDIN in options.images else sum(1 for _ in list_images(options.images))
    with progress() as on_progress:
        done = predict_to_file(model, images, out, how, options.overwrite, on_progress, total)
    if options.json:
        say_json(done.facts())
    else:
        say(f"{done.out}: {plural(done.images, 'image')}, {done.broken} cannot be read")
    refuse_no_labels(done.images, done.broken, done.first_problem)


def refuse_no_labels(images: int, broken: int, first: str | None) -> None:
    """A run that labelled nothing has failed."""
    if images == broken:
        raise UserError(f"none of {plural(images, 'image')} could be labelled: {first}")


def warn_untrained(model: Model) -> None:
    """A head for other classes than its checkpoint had begins with zeros."""
    head = [weights for name, weights in model.named_parameters() if name.startswith("head")]
    if head and not any(weights.any() for weights in head):
        note("note: the model's head is new and untrained: it gives every image the same scores")
