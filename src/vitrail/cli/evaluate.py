"""`vitrail evaluate`: how good a model is on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.options import (
    ComputeOptions,
    ModelOptions,
    OutputOptions,
    load_model,
    parse_size,
    use_threads,
)
from vitrail.cli.output import plural, say, say_json
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.core.outputs import Outputs
    from vitrail.tasks.evaluation import Evaluation, SizeResult

MOST_CLASSES, MOST_PAIRS, MOST_BROKEN = 5, 5, 10  # lines: --out has all


@dataclass(frozen=True)
class Evaluate(ModelOptions, ComputeOptions, OutputOptions):
    """Which model to judge, on which images."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    data: str
    """Class folders, a manifest, tars, arrays, IDX files, hf:owner/name, torchvision:NAME:ROOT,
    digits, planted or fashion-mnist."""
    _: KW_ONLY
    split: str | None = None
    """The part to judge on; by default test, else val."""
    corruptions: bool = False
    """Judge it under 15 common corruptions at 5 severities too: 75 times the work."""
    corrupted_images: int | None = None
    """How many images to corrupt, spread over the part; by default all."""
    resolutions: str | None = None
    """Judge it at other image sizes too: 112,160,224."""
    patch_sizes: str | None = None
    """Judge it with other patch sizes too, in pixels of the image, its kernels resized: 8,16,32."""
    out: str | None = None
    """A directory for report.html, evaluation.json and predictions.csv."""
    overwrite: bool = False
    """Replace these where they exist."""
    by_index: bool = False
    """Match the classes of data and model by index instead of by name."""
    batch_size: int = 64
    """Images computed at once."""
    workers: int = 0
    """Processes that read and prepare images."""
    seed: int = 0
    """Random seed for the bootstrap, the temperature's split and the corruptions."""


def evaluate(asked: Evaluate) -> None:
    """Evaluate a model: metrics with confidence intervals, calibration, classes, confusions; with
    options, corrupted images and other sizes."""
    from vitrail.tasks.arguments import check_not_swapped
    from vitrail.tasks.evaluate import FILES, check_split
    from vitrail.tasks.evaluate import evaluate as run

    resolutions, patches = parse_resolutions(asked.resolutions), parse_patches(asked.patch_sizes)
    check_not_swapped(asked.source, asked.data)
    check_split(asked.split, asked.data)  # before the model is loaded
    use_threads(asked.threads)
    with progress() as watch:
        found = run(
            load_model(asked),
            asked.data,
            split=asked.split,
            corruptions=asked.corruptions,
            corrupted_images=asked.corrupted_images,
            resolutions=resolutions,
            patch_sizes=patches,
            by_index=asked.by_index,
            batch_size=asked.batch_size,
            workers=asked.workers,
            seed=asked.seed,
            out=asked.out,
            overwrite=asked.overwrite,
            name=asked.source,
            on_progress=watch,
        )
    files = {} if asked.out is None else {FILES[n]: str(Path(asked.out) / n) for n in FILES}
    report(asked, found, files)


def parse_resolutions(text: str | None) -> list[tuple[int, int]]:
    return [parse_size(size, "--resolutions") for size in listed(text, "--resolutions")]


def parse_patches(text: str | None) -> list[int]:
    """
    >>> parse_patches("8, 16")
    [8, 16]
    """
    sizes = listed(text, "--patch-sizes")
    for size in sizes:
        if not size.isdecimal() or int(size) < 1:
            raise UserError(f"--patch-sizes has {size!r}, expected sides like 8,16,32")
    return [int(size) for size in sizes]


def listed(text: str | None, option: str) -> list[str]:
    """
    >>> listed("112, 160", "--resolutions")
    ['112', '160']
    """
    if text is None:
        return []
    sizes = [size.strip() for size in text.split(",") if size.strip()]
    if not sizes:
        raise UserError(f"{option} is {text!r}, expected sizes like 112,160,224")
    return list(dict.fromkeys(sizes))


def report(asked: Evaluate, found: Evaluation, files: dict[str, str]) -> None:
    if asked.json:
        say_json({**found.facts(), "files": files})
        return
    outputs = found.outputs
    images, classes = (
        plural(outputs.images, "image"),
        plural(len(outputs.labels), "class", "classes"),
    )
    say(f"{images} of {outputs.split}, {classes}")
    for note in found.notes:
        say(f"note: {note}")
    print_numbers(found)
    print_classes(outputs)
    if found.robustness is not None:
        print_robustness(found)
    print_sizes("image size", found.resolutions)
    print_sizes("patch size", found.patch_sizes)
    broken = list(outputs.broken.items())
    for path, reason in broken[:MOST_BROKEN]:
        say(f"left out {path}: {reason}")
    if len(broken) > MOST_BROKEN:
        say(f"left out {len(broken) - MOST_BROKEN} more: --out names all {len(broken)}")
    for name, file in files.items():
        say(f"{name}: {file}")


def print_numbers(found: Evaluation) -> None:
    from vitrail.evaluation.intervals import LEVEL

    tempered = found.temperature
    for name, value in found.metrics.items():
        ends = found.intervals.get(name)
        say(f"{name:16}{value:.4f}" + (f"  ({ends[0]:.4f} to {ends[1]:.4f})" if ends else ""))
    if found.intervals:
        say(
            f"in brackets: {LEVEL:.0%} confidence; accuracy, top5 and exact by Wilson, the others "
            f"by {found.resamples:,} bootstrap samples of the images, all classes together"
        )
    if tempered is None:
        say("temperature     none: too few wrong predictions to fit one")
    else:
        say(
            f"temperature     {tempered.temperature:.4f}  with it ece "
            f"{tempered.reliability.ece:.4f}, nll {tempered.nll:.4f}, brier "
            f"{tempered.brier:.4f}; fitted on {tempered.fitted_on}"
            f"{'; at the limit of what was tried' if tempered.at_limit else ''}"
        )


def print_classes(outputs: Outputs) -> None:
    from vitrail.evaluation.classify import class_metrics, top_confusions

    marked = [row for row in class_metrics(outputs) if row.marked]
    key = "average precision" if outputs.multi_label else "F1"
    marked.sort(key=lambda row: row.average_precision if outputs.multi_label else row.f1)
    for row in marked[:MOST_CLASSES]:
        value = row.average_precision if outputs.multi_label else row.f1
        say(
            f"lowest {key}: {row.label} {value:.4f} (precision {dash(row.precision)}, recall "
            f"{dash(row.recall)}, {plural(row.images, 'image')})"
        )
    for pair in [] if outputs.multi_label else top_confusions(outputs, MOST_PAIRS):
        say(f"confused: {pair.truth} predicted as {pair.predicted}: {plural(pair.images, 'image')}")


def dash(value: float) -> str:
    """
    >>> dash(0.5), dash(float("nan"))
    ('0.5000', '–')
    """
    return f"{value:.4f}" if value == value else "–"


def print_robustness(found: Evaluation) -> None:
    from vitrail.evaluation.corruptions import CORRUPTIONS

    known = found.robustness
    assert known is not None
    say(
        f"{known.metric} under corruption (constants for {known.side} pixels, {known.images} "
        f"images, {known.clean:.4f} without), severity 1 to 5 and mean"
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
