"""The runs of a comparison: trained and tested one after another, or on Ray; none is run twice.

OUT/plan.json            the settings of every run that was planned here
OUT/runs/NAME            a run as `vitrail.train` leaves it
OUT/results/NAME.json    its test: what it predicts for each test image, and what it cost
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError, writing
from vitrail.core.json_text import to_json
from vitrail.core.outputs import Outputs
from vitrail.core.processor import processor
from vitrail.data.source import Source, Splits
from vitrail.data.sources import open_data
from vitrail.data.sources.train_share import with_train_share
from vitrail.evaluation.intervals import wilson_interval
from vitrail.inference.engine import usable_threads
from vitrail.inference.outputs import compute_outputs
from vitrail.models.measure import measure
from vitrail.tasks.compare_plan import Cell, ComparePlan
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.run import Run
from vitrail.tasks.threads import use_threads
from vitrail.tasks.train import train
from vitrail.training.progress import Progress
from vitrail.training.recipe_file import NAME as RECIPE
from vitrail.weights.atomic import write_file
from vitrail.weights.load import load

PLAN, RUNS, RESULTS = "plan.json", "runs", "results"
FLOPS_OF_A_MAC, BACKWARD = 2, 3  # a step computes the forward pass, and twice as much backward


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """One run: `accuracy` of its last weights on the test images with Wilson's interval, what it
    learnt from, and what it cost: `flops` and `seconds` are those of its training steps."""

    name: str
    model: str
    share: float
    seed: int
    image_size: tuple[int, int]
    labelled: int  # training images
    steps: int
    images_seen: int
    params: int
    macs: int
    flops: int
    seconds: float
    accuracy: float
    interval: tuple[float, float]
    split: str
    test_images: int
    test_digest: str  # of their places and classes
    processor: str
    threads: int
    run: str
    predicted: NDArray[np.int64] = field(repr=False, compare=False)
    right: NDArray[np.bool_] = field(repr=False, compare=False)

    def facts(self) -> dict[str, Any]:
        """Plain values without those of each image."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: one for name, one in values.items() if name not in ("predicted", "right")}


@dataclass(frozen=True)
class Place:
    """Where runs are trained."""

    device: str = "auto"
    threads: int | None = None
    workers: int | None = None


class StoppedError(Exception):
    """A run was interrupted; it is saved."""


def choose_test(splits: Splits, data: str) -> tuple[str, Source]:
    """The images that all models are tested on: the test split, else the validation split, which
    has no say in runs whose last weights are tested."""
    for name in ("test", "val"):
        source = splits.parts.get(name)
        if source is not None and source.targets is not None:
            if source.targets.ndim == 2:
                raise UserError(f"{data}: compare needs one label an image, got several")
            return name, source
    raise UserError(f"{data}: no labelled test images: add a test or val split")


def open_compared(plan: ComparePlan) -> Splits:
    """The data, with validation images drawn as the runs draw them."""
    share = plan.set.get("val_share", plan.val_share)
    return open_data(plan.data, **({} if share is None else {"val_share": share}))


def record_plan(plan: ComparePlan, out: Path, *, dry_run: bool = False) -> None:
    """Add the runs to those planned in `out`; settings of a run that has begun must not change."""
    known = read_planned(out)
    for cell in plan.cells:
        before, now = known.get(cell.name), plan.settings(cell)
        if before is not None and before != now and has_begun(out, cell):
            raise UserError(f"{changed_sentence(out, cell, before, now)}: choose another out")
        known[cell.name] = now
    if not dry_run:
        text = to_json(known, indent=1) + "\n"
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            write_file(out / PLAN, lambda draft: _write(draft, text), overwrite=True)


def read_planned(out: Path) -> dict[str, Any]:
    """What was planned here before; a directory with other files is refused."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: cannot be written: it is a file, not a directory")
    path = out / PLAN
    if not path.exists():
        if out.is_dir() and any(out.iterdir()):
            raise UserError(
                f"{out}: is not empty, and no comparison was written here: choose another out"
            )
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: {**one, "set": dict(one["set"])} for name, one in found.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{path}: cannot be read: remove it, or choose another out") from None


def has_begun(out: Path, cell: Cell) -> bool:
    return result_file(out, cell).exists() or (out / RUNS / cell.name / RECIPE).exists()


def changed_sentence(out: Path, cell: Cell, before: Any, now: Any) -> str:
    """Which setting differs from that of a run that has begun."""
    flat = [{**one, **{f"set {k}": v for k, v in one["set"].items()}} for one in (before, now)]
    names = [name for name in dict.fromkeys([*flat[0], *flat[1]]) if name != "set"]
    name = next(name for name in names if flat[0].get(name) != flat[1].get(name))
    was, got = (one.get(name) for one in flat)
    return f"{out}: {cell.name} was begun with {name} {was}, got {got}"


def result_file(out: Path, cell: Cell) -> Path:
    return out / RESULTS / f"{cell.name}.json"


def run_cell(
    plan: ComparePlan,
    cell: Cell,
    out: Path,
    place: Place,
    on_progress: OnProgress = silent,
) -> CellResult:
    """Train and test one run, from where it stopped; StoppedError where it was interrupted."""

    def on_step(now: Progress) -> None:
        if now.step:
            on_progress("training steps", now.step, now.total)

    try:
        run = train(
            plan.data,
            out=out / RUNS / cell.name,
            resume="auto",
            **plan.arguments(cell),
            **asdict(place),
            on_step=on_step,
        )
    except UserError as error:
        raise UserError(f"{cell.name}: {error}") from None
    if run.stopped:
        raise StoppedError
    with use_threads(place.threads):
        return evaluate_run(plan, cell, out, run, place, on_progress)


def evaluate_run(
    plan: ComparePlan, cell: Cell, out: Path, run: Run, place: Place, on_progress: OnProgress
) -> CellResult:
    """Test the last weights of a run that is finished, and write the result."""
    splits = open_compared(plan)
    split, source = choose_test(splits, plan.data)
    model = load(run.out / "last", device=place.device)
    outputs = compute_outputs(
        model,
        source,
        name=plan.data,
        split=split,
        on_progress=lambda done, total: on_progress("test images", done, total),
    )
    cost = measure(model.config)
    labelled = len(with_train_share(splits, cell.share, cell.seed)["train"])
    seen = run.step * min(run.recipe.batch_size, labelled)
    right = outputs.predicted == outputs.truth
    result = CellResult(
        name=cell.name,
        model=cell.model.name,
        share=cell.share,
        seed=cell.seed,
        image_size=model.config.image_size,
        labelled=labelled,
        steps=run.step,
        images_seen=seen,
        params=cost.params,
        macs=cost.macs,
        flops=FLOPS_OF_A_MAC * BACKWARD * cost.macs * seen,
        seconds=sum(line["seconds"] or 0.0 for line in run.metrics),
        accuracy=float(right.mean()),
        interval=wilson_interval(int(right.sum()), len(right)),
        split=split,
        test_images=outputs.images,
        test_digest=digest_of(outputs),
        processor=processor().partition(":")[0],
        threads=usable_threads(place.threads),
        run=str(run.out),
        predicted=outputs.predicted,
        right=right,
    )
    write_result(result, result_file(out, cell))
    return result


def digest_of(outputs: Outputs) -> str:
    """Differs where other images were tested, or other labels."""
    state = hashlib.sha256(outputs.indices.astype("<i8").tobytes())
    state.update(outputs.truth.astype("<i8").tobytes())
    return state.hexdigest()[:16]


def write_result(result: CellResult, path: Path) -> None:
    facts = {name: one for name, one in result.facts().items() if name != "run"}
    wrong = np.flatnonzero(~result.right).tolist()
    values = {**facts, "predicted": result.predicted.tolist(), "wrong": wrong}
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, lambda draft: _write(draft, to_json(values) + "\n"), overwrite=True)


def read_result(out: Path, cell: Cell) -> CellResult | None:
    """The result of a run that is finished; None where there is none."""
    path = result_file(out, cell)
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        predicted = np.array(values.pop("predicted"), dtype=np.int64)
        right = np.ones(len(predicted), dtype=np.bool_)
        right[values.pop("wrong")] = False
        for name in ("interval", "image_size"):
            values[name] = tuple(values[name])
        run = str(out / RUNS / cell.name)
        return CellResult(**values, run=run, predicted=predicted, right=right)
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        raise UserError(f"{path}: cannot be read: remove it, and compare again") from None


def run_here(
    plan: ComparePlan,
    cells: list[Cell],
    out: Path,
    place: Place,
    on_progress: OnProgress,
) -> Iterator[CellResult]:
    """The runs that are left, one after another."""
    for number, cell in enumerate(cells):
        on_progress("runs", number, len(cells))
        yield run_cell(plan, cell, out, place, on_progress)
    on_progress("runs", len(cells), len(cells))


def run_on_ray(
    plan: ComparePlan,
    cells: list[Cell],
    out: Path,
    place: Place,
    address: str | None,
    on_progress: OnProgress = silent,
) -> Iterator[CellResult]:
    """The runs that are left as tasks of Ray, each on `place.threads` processors (default 1). All
    nodes must see the data and `out` under the same paths. Ctrl-C lets runs save themselves."""
    from vitrail.inference.on_ray import RESERVED, Cluster, connected  # here: Ray may be missing

    threads = place.threads or 1
    place, own = replace(place, threads=threads), max(usable_threads() - RESERVED, 0)
    with connected(Cluster(address, max(own, threads - RESERVED))) as ray:
        task = ray.remote(_cell_on_ray).options(num_cpus=threads, max_retries=0)
        waiting = {
            task.remote(plan, cell, out.absolute(), place, os.getcwd()): cell for cell in cells
        }
        try:
            while waiting:
                on_progress("runs", len(cells) - len(waiting), len(cells))
                done, _ = ray.wait(list(waiting), num_returns=1)
                cell = waiting.pop(done[0])
                problem = ray.get(done[0])
                if problem is not None:
                    raise UserError(problem)
                result = read_result(out, cell)
                assert result is not None, "a run that ended has written its result"
                yield result
        except BaseException:
            stop_tasks(ray, list(waiting))
            raise
    on_progress("runs", len(cells), len(cells))


def stop_tasks(ray: Any, tasks: list[Any]) -> None:
    """Interrupt the runs that are going on, and wait until they are saved."""
    for one in tasks:
        ray.cancel(one)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=60)


def _cell_on_ray(
    plan: ComparePlan, cell: Cell, out: Path, place: Place, directory: str
) -> str | None:
    """One run in a process of Ray: what went wrong, or None."""
    os.chdir(directory)  # relative paths of data mean what they mean to the person
    try:
        run_cell(plan, cell, out, place)
    except UserError as error:
        return str(error)
    except StoppedError:
        return f"{cell.name}: was interrupted"
    return None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
