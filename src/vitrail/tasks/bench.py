"""`vitrail.bench`: how fast models run on this machine, on every engine, side by side."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from torch import nn

from vitrail.core.errors import UserError
from vitrail.core.json_text import plain_values
from vitrail.core.processor import processor
from vitrail.core.ranges import check, check_count, check_counts
from vitrail.data.sources import open_data
from vitrail.inference.benchmark.contender import FLOAT32, INT8, Contender, open_merged
from vitrail.inference.benchmark.guests import PREFIX, check_guest
from vitrail.inference.benchmark.rounds import ROUNDS, Measured, measure_in_turns, middle
from vitrail.inference.engine import torch_threads, usable_threads
from vitrail.inference.engines.cache import clear_cache, remove_entry
from vitrail.inference.engines.catalogue import (
    AUTO,
    EAGER,
    LIBRARIES,
    check_engine,
    installed_engines,
)
from vitrail.inference.rewrites.optimise import OutputKind
from vitrail.inference.speed_up import choose_merging
from vitrail.models.catalogue import find
from vitrail.pages.benchmark import benchmark_page
from vitrail.pages.render import number, percent
from vitrail.tasks.evaluate import evaluate
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.models import open_model, refuse_without_weights
from vitrail.tasks.names import name_of
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.results import writing_results
from vitrail.weights.native import save

FACTS = "bench.json"
MAX_REPR = 6  # rows in a repr


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """A model on an engine with batches of one size. Images per second are the median of rounds
    with their quartiles; milliseconds those of a batch. `peak_memory` is that of the whole process
    in bytes, `load_seconds` from the model's files to its first batch, `build_seconds` what the
    engine took before that to build it (0 if it was in the cache). `share_of_peak` compares its
    multiply-adds with those of matrix products in the same run. `int8_error` is the relative error
    of the outputs in int8 on images that it was not calibrated on, `int8_agreement` the share of
    these with the same label as in float32. A row that was measured may have a `problem` too: why
    it has no accuracy."""

    model: str
    engine: str
    batch_size: int
    precision: str = FLOAT32
    merged_tokens: int = 0
    images_per_second: float | None = None
    quartiles: tuple[float, float] | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    batches: int = 0
    load_seconds: float | None = None
    build_seconds: float | None = None
    peak_memory: int | None = None
    macs: int | None = None
    share_of_peak: float | None = None
    accuracy: float | None = None
    int8_error: float | None = None
    int8_agreement: float | None = None
    problem: str | None = None


TITLES = {
    "model": "model",
    "engine": "engine",
    "precision": "precision",
    "merged_tokens": "merged",
    "batch_size": "batch",
    "images_per_second": "images/s",
    "quartiles": "quartiles",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "peak_memory": "memory",
    "load_seconds": "load s",
    "share_of_peak": "of peak",
    "accuracy": "accuracy",
    "int8_error": "int8 error",
    "int8_agreement": "same label",
}
# Columns that are left out where every row has this.
UNCHANGED = {"precision": FLOAT32, "merged_tokens": 0, "int8_error": None, "int8_agreement": None}


@dataclass(frozen=True, kw_only=True, repr=False)
class Benchmark(HtmlRecord):
    """Models on engines, measured in turns; `peak` is what matrix products reached in the same run,
    in multiply-adds per second. `cleared` are entries that were removed from the cache."""

    rows: tuple[BenchRow, ...]
    threads: int
    rounds: int
    processor: str
    peak: float | None
    data: str | None = None
    cleared: int = 0

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain_values(asdict(self))

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Titles and rows of text, without columns that nothing was measured for."""
        kept = [name for name in TITLES if name != "accuracy" or self.data is not None]
        kept = [
            name
            for name in kept
            if name not in UNCHANGED
            or any(getattr(row, name) != UNCHANGED[name] for row in self.rows)
        ]
        return [TITLES[name] for name in kept], [
            [cell(row, name) for name in kept] for row in self.rows
        ]

    def html(self) -> str:
        return benchmark_page(self.facts(), *self.table())

    def __repr__(self) -> str:
        lines = [f"Benchmark({len(self.rows)} rows, {self.threads} threads)"]
        for row in self.rows[:MAX_REPR]:
            speed = f"{cell(row, 'images_per_second')} images/s"
            lines.append(f"{row.model} {row.engine} batch {row.batch_size}: {speed}")
        if len(self.rows) > MAX_REPR:
            lines.append(f"… {len(self.rows) - MAX_REPR} more")
        return "\n".join(lines)


def cell(row: BenchRow, name: str) -> str:
    """One value as a person reads it."""
    value = getattr(row, name)
    if value is None:
        failed = name == "images_per_second" and row.problem is not None
        return "failed" if failed else "–"
    match name:
        case "quartiles":
            return f"{value[0]:.4g}–{value[1]:.4g}"
        case "peak_memory":
            return f"{value / 2**20:,.0f} MiB"
        case "share_of_peak" | "accuracy" | "int8_error" | "int8_agreement":
            return percent(value)
        case "load_seconds":
            return f"{value:.2f}"
    return value if isinstance(value, str) else number(value)


def bench(
    *models: str | Path | nn.Module,
    batch_size: int | Sequence[int] = (1, 8, 32),
    engine: str | Sequence[str] | None = None,
    guest: str | Sequence[str] = (),
    data: str | Path | None = None,
    precision: str | Sequence[str] = FLOAT32,
    calibrate: str | Path | Sequence[str | Path] = (),
    speed_up: float | None = None,
    threads: int | None = None,
    seconds: float = 5.0,
    clear: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = silent,
) -> Benchmark:
    """Measure how fast models run on this machine's CPU: checkpoints, models in memory, or
    architectures by name with fresh weights; `guest` names classifiers of torchvision, as
    "torchvision:mobilenet_v2". Every model runs on every `engine` (by default all that are
    installed) with every `batch_size`, each in a process of its own, in turns, for `seconds` each.
    With `data`, the accuracy of each is measured too. `precision` is float32, int8 or both; int8 is
    calibrated on images of `calibrate`, by default on tiles of scikit-learn's two photos. With
    `speed_up` models are also measured with as many tokens merged as make them so many times as
    fast with eager. `clear` removes what engines built. `out` gets report.html and bench.json.

    >>> bench(clear=True).rows
    ()
    """
    sizes = check_counts("batch_size", batch_size, at_least=1)
    check("seconds", seconds, above=0)
    check_count("threads", 1 if threads is None else threads, at_least=1)
    engines, precisions = check_int8_engines(check_engines(engine), check_precisions(precision))
    images = tuple(map(str, [calibrate] if isinstance(calibrate, str | Path) else calibrate))
    guests = [check_guest(name) for name in ([guest] if isinstance(guest, str) else guest)]
    if not (models or guests or clear):
        raise UserError("bench needs a model, a guest, or clear to empty the cache, got none")
    if data is not None:
        open_data(data)  # a mistake is found before anything is measured
    with writing_results(out, "bench", (PAGE, FACTS), overwrite=overwrite) as draft:
        cleared = clear_cache()[0] if clear else 0
        threads = usable_threads(threads)
        with torch_threads(threads), named_sources(models) as sources:
            sources |= {name: BenchSource(name) for name in guests}
            found, peaks = list[Measured](), list[float]()
            for size in sizes if sources else ():
                first = Contender("", EAGER, size, threads, calibrate=images)
                contenders, refused = list_contenders(first, sources, engines, precisions, speed_up)
                measured, more = measure_in_turns(
                    contenders, seconds=seconds, on_progress=on_progress
                )
                found, peaks = [*found, *measured, *refused], [*peaks, *more]
            peak = median(peaks) if peaks else None
            accuracies = measure_accuracy(found, data, max(sizes), on_progress)
            remove_built(found)
            names = {source: about.name for source, about in sources.items()}
            rows = [to_row(one, names, peak, accuracies) for one in found]
        result = Benchmark(
            rows=tuple(rows),
            threads=threads,
            rounds=ROUNDS,
            processor=processor().partition(":")[0],
            peak=peak,
            data=None if data is None else str(data),
            cleared=cleared,
        )
        if draft is not None:
            result.save_report(draft, FACTS)
    return result


def check_precisions(precision: str | Sequence[str]) -> list[str]:
    found = [precision] if isinstance(precision, str) else list(precision)
    for name in found:
        if name not in (FLOAT32, INT8):
            raise UserError(f"precision must be {FLOAT32} or {INT8}, got {name!r}")
    return found


def can_compute(engine: str, precision: str) -> bool:
    return precision == FLOAT32 or (engine in LIBRARIES and LIBRARIES[engine].has_int8)


@dataclass(frozen=True)
class BenchSource:
    """The name of a model, and the tokens that it merges in each block already."""

    name: str
    merged: tuple[int, ...] = ()


def remove_built(found: Sequence[Measured]) -> None:
    """What was only built to be measured: others need the room in the cache."""
    for one in found:
        if one.new_entry is not None:
            remove_entry(one.new_entry)


def list_contenders(
    first: Contender,
    sources: Mapping[str, BenchSource],
    engines: Sequence[str],
    precisions: Sequence[str],
    speed_up: float | None,
) -> tuple[list[Contender], list[Measured]]:
    """Every model as it is and with tokens merged, on every engine and in every precision; and
    those that cannot be made faster, with the reason: the others are measured all the same."""
    found, refused = list[Contender](), list[Measured]()
    for source, about in sources.items():
        model = replace(first, source=source, merged=about.merged or 0)
        found += variants(model, engines, precisions)
        try:
            merged = with_merging(model, speed_up)
        except UserError as error:
            refused.append(Measured(model, problem=str(error)))
        else:
            found += [] if merged is None else variants(merged, engines, precisions)
    return found, refused


def variants(
    contender: Contender, engines: Sequence[str], precisions: Sequence[str]
) -> list[Contender]:
    """A model on every engine, in every precision; a guest in float32 alone."""
    is_guest = contender.source.startswith(PREFIX)
    return [
        replace(contender, engine=engine, precision=precision)
        for precision in ([FLOAT32] if is_guest else precisions)
        for engine in engines
        if can_compute(engine, precision)
    ]


def with_merging(contender: Contender, speed_up: float | None) -> Contender | None:
    """With as many tokens merged as it takes to be so much faster; None where that is not wanted,
    nothing needs to be merged, or it is a guest."""
    if speed_up is None or contender.source.startswith(PREFIX):
        return None
    model = open_merged(contender)
    output: OutputKind = "scores" if model.config.num_classes else "pooled"
    size = contender.batch_size
    r = choose_merging(model, speed_up, batch_size=size, output=output).r
    return replace(contender, merged=r) if r else None


def check_engines(engine: str | Sequence[str] | None) -> list[str]:
    if engine is None:
        return installed_engines()
    names = [engine] if isinstance(engine, str) else list(engine)
    if AUTO in names:
        raise UserError("bench measures engines by name, got auto: leave it out for all of them")
    return [check_engine(name) for name in names]


@contextmanager
def named_sources(
    models: Sequence[str | Path | nn.Module],
) -> Iterator[dict[str, BenchSource]]:
    """Where each model can be loaded from by another process, and what it is. A model in memory is
    saved for as long as this lasts; its weights alone, so the tokens that it merges are known."""
    with ExitStack() as stack:
        sources: dict[str, BenchSource] = {}
        for number, model in enumerate(models):
            refuse_without_weights(model, "compare engines")
            name, merged = name_of(model), tuple[int, ...]()
            if isinstance(model, nn.Module):
                folder = stack.enter_context(TemporaryDirectory(prefix="vitrail-"))
                opened = open_model(model)
                source = str(save(opened, Path(folder) / f"model-{number}"))
                merged = opened.merged_tokens
            else:
                source = check_source(name)
            sources[source] = BenchSource(name, merged)
        yield sources


def check_int8_engines(engines: list[str], precisions: list[str]) -> tuple[list[str], list[str]]:
    """Both as they are; int8 is refused where no engine computes it."""
    if INT8 in precisions and not any(can_compute(name, INT8) for name in engines):
        known = ", ".join(name for name in LIBRARIES if can_compute(name, INT8))
        raise UserError(f"int8 is computed by {known}, got the engine {', '.join(engines)}")
    return engines, precisions


def check_source(name: str) -> str:
    """Refuse what is neither a file, a hub id nor an architecture, before anything is measured."""
    if not (os.path.exists(name) or "/" in name):
        find(name)  # it names the nearest
    return name


class Accuracy(NamedTuple):
    """What was measured, or the problem that prevented it."""

    value: float | None
    problem: str | None = None


def measure_accuracy(
    found: Sequence[Measured],
    data: str | Path | None,
    batch_size: int,
    on_progress: OnProgress,
) -> dict[Contender, Accuracy]:
    """Of each model on each engine that ran; guests have fresh weights, and none."""
    if data is None:
        return {}
    ran = {
        replace(one.contender, batch_size=batch_size)
        for one in found
        if one.problem is None and Path(one.contender.source).exists()
    }
    return {one: evaluate_contender(one, data, on_progress) for one in sorted(ran, key=repr)}


def evaluate_contender(contender: Contender, data: str | Path, on_progress: OnProgress) -> Accuracy:
    try:
        found = evaluate(
            open_merged(contender) if contender.merged else contender.source,
            data,
            engine=contender.engine,
            batch_size=contender.batch_size,
            precision=INT8 if contender.precision == INT8 else None,
            calibrate=contender.calibrate or None,
            max_drop=100.0,  # the row shows it
            on_progress=on_progress,
        )
    except UserError as error:  # its speed was measured, and is worth to be known
        return Accuracy(None, f"no accuracy: {error}")
    return Accuracy(found.accuracy)


def to_row(
    one: Measured,
    names: dict[str, str],
    peak: float | None,
    accuracies: Mapping[Contender, Accuracy],
) -> BenchRow:
    contender = one.contender
    row = BenchRow(
        model=names[contender.source],
        engine=contender.engine,
        batch_size=contender.batch_size,
        precision=contender.precision,
        merged_tokens=contender.most_merged,
        problem=one.problem,
    )
    if one.problem is not None or peak is None:
        return row
    low, speed, high = middle(one.speeds)
    int8 = one.int8 or {}
    evaluated = {replace(known, batch_size=0): value for known, value in accuracies.items()}
    accuracy = evaluated.get(replace(contender, batch_size=0), Accuracy(None))
    return replace(
        row,
        images_per_second=speed,
        quartiles=(low, high),
        p50_ms=1000 * one.percentile(50),
        p99_ms=1000 * one.percentile(99),
        batches=len(one.times),
        load_seconds=one.load_seconds,
        build_seconds=one.build_seconds,
        peak_memory=one.peak_memory,
        macs=one.macs,
        share_of_peak=speed * one.macs / peak,
        accuracy=accuracy.value,
        problem=accuracy.problem,
        int8_error=int8.get("error"),
        int8_agreement=int8.get("agreement"),
    )
