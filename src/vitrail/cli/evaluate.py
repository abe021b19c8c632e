"""`vitrail evaluate`: how good a model is on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli.options import (
    COMPUTING,
    BatchSize,
    Data,
    DryRunOption,
    ExportedSource,
    Int8Options,
    LocalEngineName,
    MaxTokens,
    ModelOptions,
    NativeResolution,
    Out,
    OutputOptions,
    OverwriteOption,
    Seed,
    SpeedUp,
    Workers,
    arguments_of,
    model_source,
    parse_counts,
    parse_list,
    parse_size,
)
from vitrail.cli.output import is_quiet, plural, say, say_broken, say_dry_run, say_json
from vitrail.cli.progress import progress

if TYPE_CHECKING:
    from vitrail.core.outputs import Outputs
    from vitrail.evaluation.calibration import TemperatureScaling
    from vitrail.tasks.evaluation import Evaluation, SizeResult

MAX_CLASSES, MAX_CONFUSIONS = 5, 5  # lines: --out has all


@dataclass(frozen=True)
class Evaluate(ModelOptions, Int8Options, DryRunOption, OverwriteOption, OutputOptions):
    """Evaluate a model on labelled images."""

    source: ExportedSource
    data: Data
    _: KW_ONLY
    split: str | None = None
    """Split to evaluate on. [default: test, else val]"""
    corruptions: bool = False
    """Evaluate under 15 common corruptions at 5 severities too: 75 times the work."""
    corrupted_images: int | None = None
    """Number of images to corrupt, spread evenly over the split. [default: all]"""
    resolutions: tuple[str, ...] = ()
    """Evaluate at other image sizes too: 112,160,224. Separated by commas, or repeated."""
    patch_sizes: tuple[str, ...] = ()
    """Evaluate with other patch sizes too, in pixels of the image, kernels resized: 8,16,32.
    Separated by commas, or repeated."""
    by_index: bool = False
    """Match the classes of data and model by index instead of by name."""
    calibrate: Annotated[tuple[str, ...] | None, Parameter(group=COMPUTING)] = None
    """Images that int8 is calibrated and measured on, at least 16; may be repeated.
    [default: the train split]"""
    batch_size: BatchSize = 64
    workers: Workers = 0
    engine: LocalEngineName = "auto"
    speed_up: SpeedUp = None
    native_resolution: NativeResolution = False
    max_tokens: MaxTokens = None
    seed: Seed = 0
    out: Out = None
    """Directory for report.html, evaluation.json and predictions.csv."""


def evaluate(options: Evaluate) -> None:
    """Evaluate a model: metrics with confidence intervals, calibration, classes, confusions;
    optionally also on corrupted images and at other sizes.

    Examples:
      vitrail evaluate runs/pets/best pets --out pets-evaluation
      vitrail evaluate runs/pets/best pets --corruptions --resolutions 160,224,288
    """
    from vitrail.tasks.dry_run import DryRun
    from vitrail.tasks.evaluate import evaluate as run

    sizes = parse_list(options.resolutions, "--resolutions", "112,160,224")
    resolutions = [parse_size(size, "--resolutions") for size in sizes]
    patches = parse_counts(options.patch_sizes, "--patch-sizes", "8,16,32")
    with progress() as on_progress:
        parsed = {"resolutions": resolutions, "patch_sizes": patches, "on_progress": on_progress}
        found = run(model_source(options), options.data, **arguments_of(options, run, **parsed))
    if options.json:
        say_json(found.facts())
    elif isinstance(found, DryRun):
        say_dry_run(found)
    else:
        print_evaluation(found)


def print_evaluation(found: Evaluation) -> None:
    outputs = found.outputs
    classes = plural(len(outputs.labels), "class", "classes")
    say(f"{plural(outputs.images, 'image')} of {outputs.split}, {classes}")
    for note in () if is_quiet() else found.notes:
        say(f"note: {note}")
    print_metrics(found)
    print_classes(outputs)
    if found.robustness is not None:
        print_robustness(found)
    print_sizes("image size", found.resolutions)
    print_sizes("patch size", found.patch_sizes)
    say_broken(found.broken)
    for name, file in found.files.items():
        say(f"{name}: {file}")


def print_metrics(found: Evaluation) -> None:
    from vitrail.evaluation.intervals import LEVEL

    scaling = found.temperature
    for name, value in found.metrics.items():
        ends = found.intervals.get(name)
        say(f"{name:16}{value:.4f}" + (f"  ({ends[0]:.4f} to {ends[1]:.4f})" if ends else ""))
    if found.intervals:
        say(f"{LEVEL:.0%} intervals in brackets: {interval_methods(found)}")
    if scaling is None:
        say("temperature     none: too few wrong predictions to fit one")
    else:
        say(
            f"temperature     {scaling.temperature:.4f}  with it ece "
            f"{scaling.reliability.ece:.4f}, nll {scaling.nll:.4f}, brier "
            f"{scaling.brier:.4f}; {temperature_note(scaling)}"
        )


def temperature_note(scaling: TemperatureScaling) -> str:
    """Which images chose a temperature, and whether larger or smaller ones were not tried."""
    from vitrail.evaluation.calibration import HALVES, MAX_TEMPERATURE, MIN_TEMPERATURE

    note = f"{'cross-fitted' if scaling.fitted_on == HALVES else 'fitted'} on {scaling.fitted_on}"
    if not scaling.at_limit:
        return note
    if scaling.temperature > 1:
        return f"{note}; {MAX_TEMPERATURE:g} is the largest value tried"
    return f"{note}; {MIN_TEMPERATURE:g} is the smallest value tried"


def interval_methods(found: Evaluation) -> str:
    """How the intervals that are shown were computed."""
    from vitrail.evaluation.intervals import WILSON

    wilson = [name for name in found.intervals if name in WILSON]
    others = "the rest" if wilson else "all"
    ways = [f"Wilson for {' and '.join(wilson)}"] if wilson else []
    if len(wilson) < len(found.intervals):
        ways.append(f"bootstrap ({found.resamples:,} samples) for {others}")
    return ", ".join(ways)


def print_classes(outputs: Outputs) -> None:
    from vitrail.evaluation.classify import class_metrics, top_confusions

    marked = [row for row in class_metrics(outputs) if row.marked]
    key = "average precision" if outputs.multi_label else "F1"
    marked.sort(key=lambda row: row.average_precision if outputs.multi_label else row.f1)
    for row in marked[:MAX_CLASSES]:
        value = row.average_precision if outputs.multi_label else row.f1
        say(
            f"lowest {key}: {row.label} {value:.4f} (precision {format_score(row.precision)}, "
            f"recall {format_score(row.recall)}, {plural(row.images, 'image')})"
        )
    for pair in [] if outputs.multi_label else top_confusions(outputs, MAX_CONFUSIONS):
        say(f"confused: {pair.truth} predicted as {pair.predicted}: {plural(pair.images, 'image')}")


def format_score(value: float) -> str:
    """
    >>> format_score(0.5), format_score(float("nan"))
    ('0.5000', '–')
    """
    return f"{value:.4f}" if value == value else "–"


def print_robustness(found: Evaluation) -> None:
    from vitrail.evaluation.corruptions import CORRUPTIONS, SMALL_SIDE

    known = found.robustness
    assert known is not None
    published = "CIFAR-10-C" if known.side == SMALL_SIDE else "ImageNet-C"
    say(
        f"{known.metric} under corruption, severity 1 to 5 and mean ({published} "
        f"severity constants; {plural(known.images, 'image')}; clean {known.metric} "
        f"{known.clean:.4f})"
    )
    for name, values in zip(CORRUPTIONS, known.values, strict=True):
        row = "".join(f"{value:8.4f}" for value in (*values, values.mean()))
        say(f"  {name:18}{row}")
    say(f"  {'mean':18}{''.join(f'{v:8.4f}' for v in known.values.mean(axis=0))}{known.mean:8.4f}")
    if known.relative_error is not None:
        say(
            f"  mean error {1 - known.mean:.4f}, {known.relative_error:.2f} times that without "
            "corruption (of this model: not the paper's mCE, which divides by AlexNet's)"
        )


def print_sizes(what: str, rows: Sequence[SizeResult]) -> None:
    for row in rows:
        if row.value is None:
            say(f"{what} {row.size}: {row.problem}")
            continue
        ends = f"  ({row.interval[0]:.4f} to {row.interval[1]:.4f})" if row.interval else ""
        say(f"{what} {row.size:>9}  {row.metric} {row.value:.4f}{ends}")
