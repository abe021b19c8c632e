"""`vitrail probe`: how good the features of a model are, without training it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.options import (
    COMPUTING,
    BatchSize,
    ComputeOptions,
    Data,
    DryRunOption,
    LocalEngineName,
    MaxTokens,
    ModelOptions,
    NativeResolution,
    Out,
    OutputOptions,
    OverwriteOption,
    ServedSource,
    Workers,
    arguments_of,
    model_source,
    parse_counts,
)
from vitrail.cli.output import is_quiet, plural, say, say_broken, say_dry_run, say_json, say_report
from vitrail.cli.progress import progress

if TYPE_CHECKING:
    from vitrail.tasks.probe import ProbeResult


@dataclass(frozen=True)
class Probe(ModelOptions, ComputeOptions, DryRunOption, OverwriteOption, OutputOptions):
    """Evaluate the frozen features of a model."""

    source: ServedSource
    data: Data
    _: KW_ONLY
    method: Literal["fewshot", "knn", "linear"] = "fewshot"
    """Method: fewshot (least squares from a few images of each class), knn (the nearest training
    images vote) or linear (a sweep of linear heads, and logistic regression)."""
    split: str | None = None
    """Split to test on. [default: test, else val]"""
    shots: tuple[str, ...] = ("1", "5", "10", "25")
    """fewshot: training images of each class. Separated by commas, or repeated."""
    seeds: int = 3
    """fewshot: number of random draws of these images."""
    neighbours: tuple[str, ...] = ("10", "20", "100", "200")
    """knn: number of neighbours that vote. Separated by commas, or repeated."""
    steps: int | None = None
    """linear: steps of 128 images. [default: 12,500, or 100 epochs if that is less]"""
    max_images: int | None = None
    """Use at most this many training images, spread evenly. [default: all]"""
    batch_size: BatchSize = 64
    workers: Workers = 0
    engine: LocalEngineName = "auto"
    native_resolution: NativeResolution = False
    max_tokens: MaxTokens = None
    seed: Annotated[int, Parameter(group=COMPUTING)] = 0
    """Random seed; with fewshot the first one."""
    cache: str = "runs/features"
    """Directory to cache features in; it can be deleted at any time."""
    no_cache: bool = False
    """Neither read nor write cached features."""
    out: Out = None
    """Directory for report.html and probe.json."""


def probe(options: Probe) -> None:
    """Evaluate frozen features: few-shot least squares, nearest neighbours, linear heads.

    Examples:
      vitrail probe B_16.npz pets --shots 1,5,10
      vitrail probe B_16.npz pets --method knn --neighbours 10,20
    """
    from vitrail.tasks.dry_run import DryRun
    from vitrail.tasks.probe import probe as run

    shots = parse_counts(options.shots, "--shots", "1,5,10")
    neighbours = parse_counts(options.neighbours, "--neighbours", "10,20")
    with progress() as on_progress:
        parsed = {"shots": shots, "neighbours": neighbours, "on_progress": on_progress}
        parsed["cache"] = None if options.no_cache else options.cache
        found = run(model_source(options), options.data, **arguments_of(options, run, **parsed))
    if options.json:
        say_json(found.facts())
    elif isinstance(found, DryRun):
        say_dry_run(found)
    else:
        print_probe(found)
        say_report(options.out)


def print_probe(found: ProbeResult) -> None:
    for split in (found.train, found.test):
        cached = ", from cached features (--no-cache recomputes them)"
        images = plural(split["images"], "image")
        say(f"{images} of {split['split']}{cached if split['cached'] else ''}")
    classes = plural(found.classes, "class", "classes")
    say(f"{classes}, {found.width}-dimensional features", "", *found.table)
    if (found.notes and not is_quiet()) or found.broken:
        say("")
    for note in () if is_quiet() else found.notes:
        say(f"note: {note}")
    say_broken(found.broken)
