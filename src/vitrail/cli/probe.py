"""`vitrail probe`: how good the features of a model are, without training it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitrail.cli.display import MOST_BROKEN
from vitrail.cli.options import ComputeOptions, ModelOptions, OutputOptions, load_model, use_threads
from vitrail.cli.output import plural, say, say_json
from vitrail.cli.progress import progress

if TYPE_CHECKING:
    from vitrail.tasks.probe import ProbeResult


@dataclass(frozen=True)
class Probe(ModelOptions, ComputeOptions, OutputOptions):
    """Which model's features to judge, on which images, and how."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    data: str
    """Class folders, a manifest, tars, arrays, IDX files, hf:owner/name, torchvision:NAME:ROOT,
    digits, planted or fashion-mnist; one label an image."""
    _: KW_ONLY
    method: Literal["fewshot", "knn", "linear"] = "fewshot"
    """fewshot: the paper's least squares from a few images of each class. knn: the nearest training
    images vote. linear: a sweep of linear heads, and logistic regression."""
    split: str | None = None
    """The part to test on; by default test, else val."""
    shots: tuple[int, ...] = (1, 5, 10, 25)
    """For fewshot: images of each class. May be repeated."""
    seeds: int = 3
    """For fewshot: how many draws of images."""
    neighbours: tuple[int, ...] = (10, 20, 100, 200)
    """For knn: how many neighbours vote. May be repeated."""
    steps: int | None = None
    """For linear: steps of 128 images; by default 12,500, or 100 rounds through a small set."""
    images: int | None = None
    """At most so many training images, spread evenly over the part; by default all."""
    batch_size: int = 64
    """Images that the model computes at once."""
    workers: int = 0
    """Processes that read images."""
    seed: int = 0
    """The first seed of fewshot; for linear the one that holds images out and orders them."""
    cache: str = "runs/features"
    """A directory that keeps features, so that the next probe reads no image again. It may be
    deleted at any time."""
    no_cache: bool = False
    """Neither use features that were kept nor keep any."""
    out: str | None = None
    """A directory for probe.json."""
    overwrite: bool = False
    """Replace probe.json where it exists."""


def probe(asked: Probe) -> None:
    """Evaluate frozen features: few-shot least squares, nearest neighbours, linear heads."""
    from vitrail.tasks.probe import OUT
    from vitrail.tasks.probe import probe as run

    use_threads(asked.threads)
    with progress() as watch:
        found = run(
            load_model(asked),
            asked.data,
            method=asked.method,
            split=asked.split,
            shots=asked.shots,
            seeds=asked.seeds,
            neighbours=asked.neighbours,
            steps=asked.steps,
            images=asked.images,
            batch_size=asked.batch_size,
            workers=asked.workers,
            seed=asked.seed,
            cache=None if asked.no_cache else asked.cache,
            out=asked.out,
            overwrite=asked.overwrite,
            name=asked.source,
            on_progress=watch,
        )
    if asked.json:
        say_json(found.facts())
        return
    report(found)
    if asked.out is not None:
        say(f"written: {Path(asked.out) / OUT}")


def report(found: ProbeResult) -> None:
    for part in (found.train, found.test):
        kept = ", from features that were kept (--no-cache reads them again)"
        images = plural(part["images"], "image")
        say(f"{images} of {part['part']}{kept if part['kept'] else ''}")
    classes = plural(found.classes, "class", "classes")
    say(f"{classes}, features of {found.width} numbers", "", *found.table)
    if found.notes or found.broken:
        say("")
    for note in found.notes:
        say(f"note: {note}")
    broken = sorted(found.broken.items())
    for path, reason in broken[:MOST_BROKEN]:
        say(f"left out {path}: {reason}")
    if len(broken) > MOST_BROKEN:
        say(f"left out {len(broken) - MOST_BROKEN} more: --json names all {len(broken)}")
