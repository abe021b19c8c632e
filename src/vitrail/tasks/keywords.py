"""The arguments of verbs that do not decide what they return: `dry_run` alone does.

A type checker needs them to know that `evaluate(…)` gives an `Evaluation`, and a `DryRun` only with
`dry_run`. They are those of the functions (tests/tasks/test_dry_run.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from vitrail.data.reader import ImageSource
from vitrail.tasks.claims.claim import ScaleName
from vitrail.tasks.compare_runs import CellResult
from vitrail.tasks.models import Device, Precision
from vitrail.tasks.progress import OnProgress
from vitrail.tasks.run_options import Precision as RunPrecision

Size = int | tuple[int, int]


class Shared(TypedDict, total=False):
    device: Device
    threads: int | None
    precision: Precision
    out: str | Path | None
    overwrite: bool
    name: str | None
    on_progress: OnProgress


class EvaluateKeywords(Shared, total=False):
    split: str | None
    corruptions: bool
    corrupted_images: int | None
    resolutions: Size | Sequence[Size]
    patch_sizes: int | Sequence[int]
    by_index: bool
    batch_size: int
    workers: int
    engine: str
    speed_up: float | None
    native_resolution: bool
    max_tokens: int | None
    calibrate: ImageSource | Iterable[ImageSource] | None
    max_drop: float
    seed: int


class ProbeKeywords(Shared, total=False):
    method: Literal["fewshot", "knn", "linear"]
    split: str | None
    shots: int | Sequence[int]
    seeds: int
    neighbours: int | Sequence[int]
    steps: int | None
    max_images: int | None
    batch_size: int
    workers: int
    engine: str
    native_resolution: bool
    max_tokens: int | None
    seed: int
    cache: str | Path | None


class ExplainKeywords(Shared, total=False):
    method: str | Sequence[str]
    target: int | str | None
    layer: int | str | None
    head: int | None
    query: Size | None
    fusion: Literal["mean", "max", "min"] | None
    discard: float | None
    verdict: bool
    checks: int
    html: str | Path | None


class FiguresKeywords(Shared, total=False):
    what: str | Sequence[str] | None
    split: str | None
    max_images: int
    ablated: int
    batch_size: int


# An architecture, several, or a mapping from names to them: see tasks/compare_plan.py.
ComparedModels = str | Sequence[str | Mapping[str, Any]] | Mapping[str, str | Mapping[str, Any]]
OnCell = Callable[[CellResult], None]


class CompareKeywords(TypedDict, total=False):
    models: ComparedModels | None
    shares: float | Sequence[float] | None
    seeds: int | Sequence[int] | None
    image_sizes: Size | Sequence[Size] | None
    recipe: str | None
    epochs: float | None
    steps: int | None
    batch_size: int | None
    lr: float | None
    val_share: float | None
    set: Mapping[str, Any] | None
    precision: RunPrecision | None
    device: str
    threads: int | None
    workers: int | None
    ray: bool
    address: str | None
    out: str | Path | None
    on_cell: OnCell | None
    on_progress: OnProgress


class ReproduceKeywords(TypedDict, total=False):
    data: str | Path | None
    weights: str | Path | None
    seeds: int | Sequence[int] | None
    scale: ScaleName
    device: str
    threads: int | None
    out: str | Path | None
    on_progress: OnProgress
