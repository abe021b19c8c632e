"""`vitrail embed`: the features of images, in a directory that can be searched."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

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
    SpeedUp,
    arguments_of,
    model_source,
)
from vitrail.cli.output import note, plural, say, say_dry_run, say_json
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError
from vitrail.data.paths import check_paths


@dataclass(frozen=True)
class Embed(ModelOptions, Int8Options, DryRunOption, OutputOptions):
    """Which model embeds which images."""

    source: ExportedSource
    images: Images
    _: KW_ONLY
    out: Out = None
    """Directory for Parquet files. Images already embedded there are skipped. [required]"""
    tokens: bool = False
    """Write the features of every token instead of the pooled ones that the head reads."""
    vector_precision: Literal["float16", "float32"] = "float32"
    """Precision of the stored vectors."""
    exact: Exact = True
    batch_size: BatchSize = 8
    engine: EngineName = "auto"
    address: Annotated[str | None, Parameter(group=COMPUTING)] = None
    """Ray cluster: auto, or host:port. [default: one on this machine]"""
    speed_up: SpeedUp = None
    native_resolution: NativeResolution = False
    max_tokens: MaxTokens = None


def embed(options: Embed) -> None:
    """Write the features of images to Parquet files; repeat the command to resume an
    interrupted run. vitrail search and vitrail duplicates read the files.

    Examples:
      vitrail embed runs/pets/best photos/ --out vectors
      vitrail embed B_16.npz photos/ --out vectors --vector-precision float16
    """
    if options.out is None:
        raise UserError("missing --out DIR")
    check_paths(options.images)
    from vitrail.tasks.dry_run import DryRun
    from vitrail.tasks.embed import embed as run

    with progress() as on_progress:
        arguments = arguments_of(options, run, on_progress=on_progress)
        done = run(model_source(options), options.images, **arguments)
    if options.json:
        say_json(done.facts())
    elif isinstance(done, DryRun):
        say_dry_run(done)
    else:
        known = f", {done.before} already embedded" if done.before else ""
        for line in () if done.quantisation is None else done.quantisation.lines():
            note(line)
        embedded = plural(done.embedded, "image")
        say(f"{done.out}: {embedded} embedded, {len(done.broken)} unreadable{known}")
