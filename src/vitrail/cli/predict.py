"""`vitrail predict`: which labels a model gives to images."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli.exported import (
    ExportedPredict,
    check_counts,
    print_exported,
    print_lines,
    refuse_no_labels,
)
from vitrail.cli.options import (
    COMPUTING,
    BatchSize,
    DryRunOption,
    EngineName,
    Exact,
    ExportedSource,
    Images,
    Int8Options,
    MaxTokens,
    ModelOptions,
    NativeResolution,
    Out,
    OutputOptions,
    OverwriteOption,
    SpeedUp,
    model_source,
)
from vitrail.cli.output import note, plural, say, say_dry_run, say_json
from vitrail.cli.progress import progress
from vitrail.core.addresses import is_address
from vitrail.core.errors import UserError
from vitrail.data.paths import check_paths, count_images, list_images

if TYPE_CHECKING:
    from vitrail.inference.quantisation import Quantisation
    from vitrail.models.model import Model
    from vitrail.tasks.predict import PredictOptions


@dataclass(frozen=True)
class Predict(ModelOptions, Int8Options, DryRunOption, OverwriteOption, OutputOptions):
    """Which model labels which images."""

    source: ExportedSource
    images: Images
    _: KW_ONLY
    top: int = 5
    """Number of labels for each image."""
    out: Out = None
    """File for the predictions: .jsonl, .csv, .parquet, or .html for a page with the images. An
    interrupted run is resumed by the same command."""
    exact: Exact = True
    batch_size: BatchSize = 8
    engine: EngineName = "auto"
    address: Annotated[str | None, Parameter(group=COMPUTING)] = None
    """Ray cluster: auto, or host:port. [default: one on this machine]"""
    speed_up: SpeedUp = None
    native_resolution: NativeResolution = False
    max_tokens: MaxTokens = None


def predict(options: Predict) -> None:
    """Label images with a trained model. An image that cannot be read gets a line with the problem.
    Exits with 2 if a named file does not exist or no image could be labelled.

    Examples:
      vitrail predict runs/pets/best cat.jpg dog.jpg --top 3
      vitrail predict runs/pets/best photos/ --out labels.csv
      vitrail predict http://127.0.0.1:8000 photos/
    """
    check_paths(options.images)
    from vitrail.core.exported import is_exported

    if options.out is None and is_address(options.source):
        print_remote(options)
        return
    if options.out is None and is_exported(options.source):
        run_exported(options)
        return
    from vitrail.tasks.arguments import check_not_swapped
    from vitrail.tasks.int8 import check_int8, make_calibration, open_float
    from vitrail.tasks.predict import PredictOptions, check_writing
    from vitrail.tasks.speed_up import merge_as_stopped, speed_up_note

    check_not_swapped(options.source, options.images[0])

    how = PredictOptions(
        top=options.top,
        exact=options.exact,
        batch_size=options.batch_size,
        engine=options.engine,
        address=options.address,
        speed_up=options.speed_up,
        native_resolution=options.native_resolution,
        max_tokens=options.max_tokens,
        threads=options.threads,
    )
    check_int8(
        options.precision,
        options.calibrate,
        options.max_drop,
        options.engine,
        native_resolution=options.native_resolution,
    )
    check_writing(options.out, how, overwrite=options.overwrite, dry_run=options.dry_run)
    source = model_source(options)
    model = open_float(
        source, device=options.device, precision=options.precision, threads=options.threads
    )
    warn_untrained(model)
    model, merged = merge_as_stopped(
        model,
        None if options.dry_run else options.speed_up,  # it takes a while to find
        options.out,
        batch_size=options.batch_size,
        engine=options.engine,
        threads=options.threads,
    )
    if merged is not None:
        note(speed_up_note(merged))
    int8 = make_calibration(
        model, options.images, options.precision, options.calibrate, options.max_drop
    )
    how = replace(how, merged=merged, calibration=int8)
    if options.out is not None:
        write(options, Path(options.out), model, how)
    else:
        print_predictions(options, model, how)


def run_exported(options: Predict) -> None:
    """The same from an exported file, by its own runtime: torch is not imported."""
    check_exported_options(options)
    names = (field.name for field in fields(ExportedPredict))
    print_exported(ExportedPredict(**{name: getattr(options, name) for name in names}))


def print_remote(options: Predict) -> None:
    """The same from a service: files go as they are, and torch is not imported."""
    from vitrail.inference.client import REQUESTS, Client
    from vitrail.inference.service_records import to_prediction

    check_exported_options(options)
    with Client(options.source) as client:
        found = client.stream(
            "predict",
            list_images(options.images),
            to_prediction,
            {"top": options.top},
            batch_size=options.batch_size,
            requests=options.threads or REQUESTS,
        )
        print_lines(found, json=options.json)


def check_exported_options(options: Predict) -> None:
    """An exported file and a service are complete: nothing about the model can be changed."""
    check_counts(options.top, options.batch_size, options.threads)
    given = {field.name: getattr(options, field.name) for field in fields(ModelOptions)}
    device = options.device not in ("auto", "cpu")
    given |= {"device": device, "precision": options.precision, "fast": not options.exact}
    given |= {"engine": options.engine not in ("auto", "eager"), "speed_up": options.speed_up}
    given |= {"address": options.address, "calibrate": options.calibrate}
    given |= {"native_resolution": options.native_resolution}
    given |= {"max_tokens": options.max_tokens is not None}
    if options.dry_run:
        raise UserError("--dry-run lists what would be written: add --out")
    for name, value in given.items():
        if value:
            option, what = f"--{name.replace('_', '-')}", why_complete(options.source, name)
            raise UserError(f"{option} is for checkpoints, and {options.source} is {what}")


def why_complete(source: str, option: str) -> str:
    """What a model is that takes no such option, and where it can be given instead.

    >>> why_complete("m.onnx", "speed_up")
    'an exported file: export the model again with it'
    """
    if is_address(source):
        if option in ("engine", "device"):
            return "a model behind an address: serve the model with it"
        return "a model behind an address: leave it out, or give the checkpoint"
    if option == "engine":
        return (
            "an exported file, which has a runtime of its own: leave it out, or give the checkpoint"
        )
    if option in ("precision", "speed_up", *(field.name for field in fields(ModelOptions))):
        return "an exported file: export the model again with it"
    return "an exported file: leave it out, or give the checkpoint"


def print_predictions(options: Predict, model: Model, how: PredictOptions) -> None:
    from vitrail.tasks.predict import stream_predictions

    names, count = list_images(options.images), count_images(options.images)
    int8: list[Quantisation] = []
    with ExitStack() as stack:
        with progress() as on_progress:  # while engines are tried: it ends before the first line
            found = stack.enter_context(
                stream_predictions(model, names, how, count, on_progress, on_int8=int8.append)
            )
        for one in int8:
            note_int8(one)
        print_lines(found, json=options.json)


def note_int8(found: Quantisation) -> None:
    for line in found.lines():
        note(line)


def write(options: Predict, out: Path, model: Model, how: PredictOptions) -> None:
    """All predictions to a file, or what would be written to it."""
    from vitrail.tasks.predict import plan_predictions, predict_to_file

    images = list_images(options.images)
    if options.dry_run:
        plan = plan_predictions(model, images, out, how.job)
        if options.json:
            say_json(plan.facts())
        else:
            say_dry_run(plan)
        return
    with progress() as on_progress:
        done = predict_to_file(
            model,
            images,
            out,
            how,
            options.overwrite,
            on_progress,
            total=count_images(options.images),
            name=options.source,
        )
    if options.json:
        say_json(done.facts())
    else:
        if done.quantisation is not None:
            note_int8(done.quantisation)
        say(f"{done.out}: {plural(done.images, 'image')}, {len(done.broken)} unreadable")
    if done.images == len(done.broken):
        refuse_no_labels(done.images, done.broken)


def warn_untrained(model: Model) -> None:
    """A head for other classes than its checkpoint had begins with zeros."""
    head = [weights for name, weights in model.named_parameters() if name.startswith("head")]
    if head and not any(weights.any() for weights in head):
        note("note: the model's head is new and untrained: it gives every image the same scores")
