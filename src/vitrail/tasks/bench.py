"""`vitrail.bench`: how fast models run on this machine, on every engine, side by side."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from vitrail.core.errors import UserError, writing
from vitrail.core.json_text import plain_values, to_json
from vitrail.core.processor import processor
from vitrail.core.ranges import check, check_count, check_counts
from vitrail.inference.benchmark.contender import FLOAT32, INT8, Contender, open_source
from vitrail.inference.benchmark.guests import PREFIX, check_guest
from vitrail.inference.benchmark.rounds import ROUNDS, Measured, measure_in_turns, middle
from vitrail.inference.engine import torch_threads, usable_threads
from vitrail.inference.engines.cache import clear_cache
from vitrail.inference.engines.catalogue import (
    AUTO,
    LIBRARIES,
    check_engine,
    installed_engines,
)
from vitrail.inference.merging import merge_tokens
from vitrail.inference.speed_up import choose_merging
from vitrail.models.catalogue import find
from vitrail.pages.benchmark import benchmark_page
from vitrail.pages.render import as_iframe, number, percent
from vitrail.tasks.evaluate import evaluate
from vitrail.tasks.models import open_model, refuse_without_weights
from vitrail.tasks.names import name_of
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.results import writing_results
from vitrail.weights.native import save

PAGE, FACTS = "report.html", "bench.json"
SHOWN = 6  # rows in a repr


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """A model on an engine with batches of one size. Images per second are the median of rounds
    with their quartiles; milliseconds those of a batch. `peak_memory` is that of the whole process
    in bytes, `load_seconds` from the model's files to its first batch, `build_seconds` what the
    engine took before that to build it (0 if it was in the cache). `share_of_peak` compares its
    multiply-adds with those of matrix products in the same run. `int8_error` is the relative error
    of the outputs in int8 on images that it was not calibrated on, `int8_agreement` the share of
    these with the same label as in float32."""

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
PLAIN = {"precision": FLOAT32, "merged_tokens": 0, "int8_error": None, "int8_agreement": None}


@dataclass(frozen=True, kw_only=True, repr=False)
class Benchmark:
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
            if name not in PLAIN or any(getattr(row, name) != PLAIN[name] for row in self.rows)
        ]
        return [TITLES[name] for name in kept], [
            [cell(row, name) for name in kept] for row in self.rows
        ]

    def save_html(self, path: str | Path) -> None:
        """Write the page: the table, and images per second as bars."""
        Path(path).write_text(self._page(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return as_iframe(self._page())

    def _page(self) -> str:
        return benchmark_page(self.facts(), *self.table())

    def __repr__(self) -> str:
        lines = [f"Benchmark({len(self.rows)} rows, {self.threads} threads)"]
        for row in self.rows[:SHOWN]:
            speed = f"{cell(row, 'images_per_second')} images/s"
            lines.append(f"{row.model} {row.engine} batch {row.batch_size}: {speed}")
        if len(self.rows) > SHOWN:
            lines.append(f"… {len(self.rows) - SHOWN} more")
        return "\n".join(lines)


def cell(row: BenchRow, name: str) -> str:
    """One value as a person reads it."""
    value = getattr(row, name)
    if name == "images_per_second" and row.problem is not None:
        return "failed"
    if value is None:
        return "–"
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
    with writing_results(out, "bench", (PAGE, FACTS), overwrite=overwrite) as draft:
        cleared = clear_cache()[0] if clear else 0
        threads = usable_threads(threads)
        with torch_threads(threads), named_sources(models) as sources:
            sources |= {name: name for name in guests}
            found, peaks = [], list[float]()
            for size in sizes if sources else ():
                contenders = [
                    replace(one, calibrate=images)
                    for source in sources
                    for one in variants(source, engines, precisions, speed_up, size, threads)
                ]
                measured, more = measure_in_turns(
                    contenders, seconds=seconds, on_progress=on_progress
                )
                found += measured
                peaks += more
            peak = median(peaks) if peaks else None
            accuracies = measure_accuracy(found, data, max(sizes), on_progress)
            rows = [to_row(one, sources, peak, accuracies) for one in found]
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
            with writing(draft):
                result.save_html(draft / PAGE)
                (draft / FACTS).write_text(to_json(result.facts()) + "\n", encoding="utf-8")
    return result


def check_precisions(precision: str | Sequence[str]) -> list[str]:
    found = [precision] if isinstance(precision, str) else list(precision)
    for name in found:
        if name not in (FLOAT32, INT8):
            raise UserError(f"precision must be {FLOAT32} or {INT8}, got {name!r}")
    return found


def can_compute(engine: str, precision: str) -> bool:
    return precision == FLOAT32 or (engine in LIBRARIES and LIBRARIES[engine].has_int8)


def variants(
    source: str,
    engines: Sequence[str],
    precisions: Sequence[str],
    speed_up: float | None,
    batch_size: int,
    threads: int,
) -> list[Contender]:
    """A model on every engine, in every precision, and with tokens merged; a guest as it is."""
    if source.startswith(PREFIX):
        return [Contender(source, engine, batch_size, threads) for engine in engines]
    merged = [0]
    if speed_up is not None:
        merged.append(choose_merging(open_source(source), speed_up, batch_size=batch_size).r)
    return [
        Contender(source, engine, batch_size, threads, precision, r)
        for r in dict.fromkeys(merged)
        for precision in precisions
        for engine in engines
        if can_compute(engine, precision)
    ]


def check_engines(engine: str | Sequence[str] | None) -> list[str]:
    if engine is None:
        return installed_engines()
    names = [engine] if isinstance(engine, str) else list(engine)
    if AUTO in names:
        raise UserError("bench measures engines by name, got auto: leave it out for all of them")
    return [check_engine(name) for name in names]


@contextmanager
def named_sources(models: Sequence[str | Path | nn.Module]) -> Iterator[dict[str, str]]:
    """Where each model can be loaded from by another process, and its name. A model in memory is
    saved for as long as this lasts."""
    with ExitStack() as stack:
        sources: dict[str, str] = {}
        for number, model in enumerate(models):
            refuse_without_weights(model, "compare engines")
            name = name_of(model)
            if isinstance(model, nn.Module):
                folder = stack.enter_context(TemporaryDirectory(prefix="vitrail-"))
                source = str(save(open_model(model), Path(folder) / f"model-{number}"))
            else:
                source = check_source(name)
            sources[source] = name
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


def measure_accuracy(
    found: Sequence[Measured],
    data: str | Path | None,
    batch_size: int,
    on_progress: OnProgress,
) -> dict[Contender, float | None]:
    """Of each model on each engine that ran; guests have fresh weights, and none."""
    if data is None:
        return {}
    ran = {
        replace(one.contender, batch_size=batch_size)
        for one in found
        if one.problem is None and Path(one.contender.source).exists()
    }
    return {
        one: evaluate(
            merge_tokens(open_source(one.source), one.merged) if one.merged else one.source,
            data,
            engine=one.engine,
            batch_size=batch_size,
            precision=INT8 if one.precision == INT8 else None,
            calibrate=one.calibrate or None,
            max_drop=100.0,  # the row shows it
            on_progress=on_progress,
        ).accuracy
        for one in sorted(ran, key=repr)
    }


def to_row(
    one: Measured,
    names: dict[str, str],
    peak: float | None,
    accuracies: Mapping[Contender, float | None],
) -> BenchRow:
    contender = one.contender
    row = BenchRow(
        model=names[contender.source],
        engine=contender.engine,
        batch_size=contender.batch_size,
        precision=contender.precision,
        merged_tokens=contender.merged,
        problem=one.problem,
    )
    if one.problem is not None or peak is None:
        return row
    low, speed, high = middle(one.speeds)
    int8 = one.int8 or {}
    evaluated = {replace(known, batch_size=0): value for known, value in accuracies.items()}
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
        accuracy=evaluated.get(replace(contender, batch_size=0)),
        int8_error=int8.get("error"),
        int8_agreement=int8.get("agreement"),
    )
