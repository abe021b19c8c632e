"""`vitrail bench`: how fast models run on this machine."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli.options import (
    ARGUMENTS,
    COMPUTING,
    Out,
    OutputOptions,
    OverwriteOption,
    SpeedUp,
    Threads,
    arguments_of,
    parse_counts,
    parse_list,
)
from vitrail.cli.output import plural, say, say_json, say_report, say_table
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.tasks.bench import Benchmark


@dataclass(frozen=True)
class Bench(OverwriteOption, OutputOptions):
    """Which models to measure, and how."""

    models: Annotated[tuple[str, ...], Parameter(group=ARGUMENTS)] = ()
    """Vitrail directories, foreign checkpoints, or architectures with fresh weights (see vitrail
    models)."""
    _: KW_ONLY
    batch_size: Annotated[tuple[str, ...], Parameter(group=COMPUTING, consume_multiple=True)] = (
        "1",
        "8",
        "32",
    )
    """Images per batch: one number or several, separated by spaces or commas."""
    engine: Annotated[tuple[str, ...], Parameter(group=COMPUTING, consume_multiple=True)] = ()
    """Engines: eager, compiled, onnxruntime, openvino. [default: all that are installed]"""
    guest: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    """Classifiers of torchvision to measure beside them: torchvision:mobilenet_v2."""
    data: str | None = None
    """Labelled images, to measure the accuracy on each engine too."""
    precision: Annotated[tuple[str, ...], Parameter(group=COMPUTING, consume_multiple=True)] = (
        "float32",
    )
    """Precisions: float32, int8 (engines onnxruntime and openvino), or both."""
    calibrate: Annotated[tuple[str, ...], Parameter(group=COMPUTING, consume_multiple=True)] = ()
    """Images that int8 is calibrated and measured on. [default: tiles of two photos that come with
    scikit-learn]"""
    speed_up: SpeedUp = None
    threads: Threads = None
    seconds: Annotated[float, Parameter(group=COMPUTING)] = 5.0
    """Seconds to measure each model on each engine with each batch size."""
    clear: bool = False
    """Delete cached engines and measurements first."""
    out: Out = None
    """Directory for report.html and bench.json."""


def bench(options: Bench) -> None:
    """Measure models: images per second, latency, memory, load time and fraction of peak
    matrix-multiply throughput, each model on each engine, measured alternately.

    Examples:
      vitrail bench runs/pets/best --batch-size 1 8 --engine eager openvino
      vitrail bench vit_b_16 --precision float32 int8 --speed-up 1.8
      vitrail bench mobilevit_xs --guest torchvision:mobilenet_v2 --out speed
    """
    from vitrail.tasks.bench import bench as run

    parsed = {
        "batch_size": parse_counts(options.batch_size, "--batch-size", "1,8,32"),
        "engine": parse_list(options.engine, "--engine", "eager,openvino") or None,
        "precision": parse_list(options.precision, "--precision", "float32,int8"),
        "guest": parse_list(options.guest, "--guest", "torchvision:mobilenet_v2"),
    }
    with progress() as on_progress:
        found = run(
            *options.models, **arguments_of(options, run, **parsed, on_progress=on_progress)
        )
    if options.json:
        say_json(found.facts())
    else:
        print_benchmark(found, cleared=options.clear)
        say_report(options.out)
    if found.rows and all(row.images_per_second is None for row in found.rows):
        problem = f"{found.rows[0].engine}: {found.rows[0].problem}"
        raise UserError(f"none of {plural(len(found.rows), 'row')} could be measured: {problem}")


def print_benchmark(found: Benchmark, *, cleared: bool) -> None:
    if cleared:
        say(f"{plural(found.cleared, 'entry', 'entries')} removed from the cache")
    if not found.rows:
        return
    from vitrail.pages.benchmark import row_name  # here: --help imports no pages

    titles, rows = found.table()
    say_table(titles, rows, right=len(titles) - 2)
    for row in found.rows:
        if row.problem is not None:
            say(f"{row_name(asdict(row))}: {row.problem}")
    assert found.peak is not None
    say(
        f"{found.processor}, {plural(found.threads, 'thread')}; median and quartiles of "
        f"{found.rounds} rounds; of peak: {2 * found.peak / 1e9:.4g} GFLOP/s of matrix products"
    )
