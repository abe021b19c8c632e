"""`vitrail.compare`: models x share of the labels x seeds x image size, with paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from vitrail.core.errors import UserError
from vitrail.data.sources.train_share import with_train_share
from vitrail.models.measure import measure
from vitrail.tasks.compare_plan import SUFFIXES, Cell, ComparePlan, make_plan
from vitrail.tasks.compare_runs import (
    BACKWARD,
    FLOPS_OF_A_MAC,
    CellResult,
    Place,
    StoppedError,
    choose_test,
    open_compared,
    read_result,
    record_plan,
    run_here,
    run_on_ray,
)
from vitrail.tasks.comparison import Comparison, compare_cells
from vitrail.tasks.dry_run import DryRun
from vitrail.tasks.html_record import PAGE
from vitrail.tasks.keywords import ComparedModels, CompareKeywords, OnCell
from vitrail.tasks.overrides import new_recipe
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.results import Results
from vitrail.tasks.run_options import Precision, Size, make_options
from vitrail.tasks.threads import use_threads
from vitrail.tasks.training_run import make_scorer
from vitrail.training.estimate import evaluations_in, time_step
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.world import World

VERB, FACTS = "compare", "compare.json"

PLANNED = (
    "models", "shares", "seeds", "image_sizes", "recipe", "epochs", "steps", "batch_size", "lr",
    "val_share", "set", "precision",
)  # fmt: skip


@overload
def compare(
    data: str | Path, *, dry_run: Literal[False] = False, **options: Unpack[CompareKeywords]
) -> Comparison: ...
@overload
def compare(
    data: str | Path, *, dry_run: bool, **options: Unpack[CompareKeywords]
) -> Comparison | DryRun: ...
def compare(
    data: str | Path,
    *,
    models: ComparedModels | None = None,
    shares: float | Sequence[float] | None = None,
    seeds: int | Sequence[int] | None = None,
    image_sizes: Size | Sequence[Size] | None = None,
    recipe: str | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    val_share: float | None = None,
    set: Mapping[str, Any] | None = None,
    precision: Precision | None = None,
    device: str = "auto",
    threads: int | None = None,
    workers: int | None = None,
    ray: bool = False,
    address: str | None = None,
    out: str | Path | None = None,
    dry_run: bool = False,
    on_cell: OnCell | None = None,
    on_progress: OnProgress = silent,
) -> Comparison | DryRun:
    """Train and test models side by side: every one of `models` with every one of `shares` of the
    labels, of `seeds` and of `image_sizes`. `data` is a data set, or a plan.yaml with these fields;
    arguments win over the file.

    A model is an architecture, with fields of its config after a colon ("vit_s_16:depth=6"), or a
    mapping with `model`, fields, and `start` for a checkpoint to begin from; a mapping of such
    gives them names. `seeds` is how many, or a list. A share draws the same images for every model
    with the same seed, class by class, at least one of each; smaller shares lie within larger ones.
    `recipe`, `epochs`, `steps` and so on are those of `train`, for every run. The last weights of
    each run are tested, on the test split, else on val.

    `out` (default runs/compare-DATA) gets every run, report.html and compare.json. A run that is
    finished there is never computed again, and one that was interrupted resumes; more models,
    shares or seeds may be added. With `ray` runs are tasks of a Ray cluster at `address`, by
    default a local one, each on `threads` processors. `dry_run` lists the runs with their cost.

    >>> small = "vit_ti_16:image_size=8,patch_size=4,dim=16,depth=1,heads=2,mlp_dim=16,channels=1"
    >>> found = compare("digits", models=small, shares=0.1, seeds=1, steps=2, out="compared")
    >>> len(found.cells), found.means[0].labelled
    (1, 160)
    """
    given = dict(locals())
    plan = make_plan(data, {name: given[name] for name in PLANNED})
    if address is not None and not ray:
        raise UserError("address is for a Ray cluster: use ray=True with it")
    place = Place(device, threads, workers)
    target = Path(out or default_out(Path(data)))
    choose_test(open_compared(plan), plan.data)
    Results(target, VERB, overwrite=True).check((PAGE, FACTS))
    record_plan(plan, target, dry_run=dry_run)
    results = {cell.name: read_result(target, cell) for cell in plan.cells}
    left = [cell for cell in plan.cells if results[cell.name] is None]
    if dry_run:
        with use_threads(threads):
            return dry_run_of(plan, target, left, on_progress)
    going = run_here(plan, left, target, place, on_progress)
    if ray:
        going = run_on_ray(plan, left, target, place, address, on_progress)
    stopped = take_results(going, results, on_cell)
    finished = [result for result in results.values() if result is not None]
    found = compare_cells(plan, target, finished, stopped=stopped)
    save_comparison(found)
    return found


def default_out(data: Path) -> str:
    """
    >>> default_out(Path("plans/vit.yaml")), default_out(Path("digits"))
    ('runs/vit', 'runs/compare-digits')
    """
    return f"runs/{'' if data.suffix.lower() in SUFFIXES else 'compare-'}{data.stem}"


def take_results(
    going: Iterator[CellResult], results: dict[str, CellResult | None], on_cell: OnCell | None
) -> bool:
    """Every run as it ends; whether Ctrl-C stopped them."""
    try:
        for result in going:
            results[result.name] = result
            if on_cell is not None:
                on_cell(result)
    except (KeyboardInterrupt, StoppedError):
        return True
    return False


def save_comparison(found: Comparison) -> None:
    """The page and the facts, in place of those of an earlier call."""
    results = Results(found.out, VERB, overwrite=True)
    results.check((PAGE, FACTS))
    with results.draft() as draft:
        found.save_report(draft, FACTS)


def dry_run_of(
    plan: ComparePlan, out: Path, left: Sequence[Cell], on_progress: OnProgress
) -> DryRun:
    """Every run that is left with its steps, training FLOPs and seconds on this machine."""
    splits = open_compared(plan)
    tests = len(choose_test(splits, plan.data)[1])
    pace: dict[tuple[str, Any], float] = {}
    cells = list[dict[str, Any]]()
    for number, cell in enumerate(left):
        on_progress("estimating runs", number, len(left))
        part = with_train_share(splits, cell.share, cell.seed)
        recipe = new_recipe(make_options("train", plan.data, plan.arguments(cell)))
        trainer = Trainer(prepare_task(recipe, part, make_scorer(splits)), Path(), world=World())
        cells.append(
            {"run": cell.name, **cost_of(trainer, (cell.model.name, cell.size), tests, pace)}
        )
    total = sum(cell["seconds"] for cell in cells)
    done = len(plan.cells) - len(left)
    details = {"data": plan.data, "cells": cells, "finished": done, "seconds": round(total, 1)}
    return DryRun(VERB, str(out), details)


def cost_of(
    trainer: Trainer, key: tuple[str, Any], tests: int, pace: dict[tuple[str, Any], float]
) -> dict[str, Any]:
    """What one run will cost. `pace` has the training seconds of one image for each model and size:
    a few steps of the first run measure it, and all others are computed from it, since recipes may
    give shares batches of different sizes."""
    labelled, steps = len(trainer.task.train), trainer.total
    batch = min(trainer.recipe.batch_size, labelled)
    if key not in pace:
        pace[key] = time_step(trainer) / batch
    # the best and the last weights are both tested; a forward pass is a third of a step
    evaluated = evaluations_in(trainer, steps) * len(trainer.task.val) + 2 * tests
    macs = measure(trainer.model.config).macs
    return {
        "labelled": labelled,
        "steps": steps,
        "flops": FLOPS_OF_A_MAC * BACKWARD * macs * steps * batch,
        "seconds": round(pace[key] * (steps * batch + evaluated / BACKWARD), 1),
    }
