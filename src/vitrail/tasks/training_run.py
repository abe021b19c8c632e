"""One run from its options to its record: new or resumed, in this process or in several."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.ranges import check_count
from vitrail.data.cache import remove_cache
from vitrail.data.source import Splits
from vitrail.data.sources import open_data
from vitrail.data.sources.places import is_remote
from vitrail.data.sources.train_share import with_train_share
from vitrail.evaluation.classify import LabelScorer, score
from vitrail.models.catalogue import change, find
from vitrail.tasks.introduction import introduction, plan_of
from vitrail.tasks.overrides import DEFAULT_OBJECTIVE, new_recipe, resumed_recipe
from vitrail.tasks.processes import launch_run
from vitrail.tasks.run import (
    REQUEUE,
    SCHEDULER_SIGNALS,
    Run,
    ended_run,
    read_outcome,
    write_outcome,
    write_requeue,
)
from vitrail.tasks.run_options import Observer, RunOptions
from vitrail.tasks.run_report import EndedRun, Written, write_report
from vitrail.tasks.threads import use_threads
from vitrail.tasks.trials import release_memory, run_trials
from vitrail.training.device_defaults import Machine, describe_machine, with_device_defaults
from vitrail.training.finder import write_curve
from vitrail.training.goal import Masked
from vitrail.training.launcher import launched, report_errors
from vitrail.training.loggers import check_installed
from vitrail.training.loop import Trainer
from vitrail.training.parallel import is_shared
from vitrail.training.prepare import prepare_task, validation_split, with_cache
from vitrail.training.progress import Progress
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_file import NAME, write_recipe
from vitrail.training.reconstructions import FOLDER
from vitrail.training.task import Scorer
from vitrail.training.validate import MAX_KEPT
from vitrail.training.world import World, process_group

PIXELS = "pixels"  # where a run keeps decoded images until it is finished
# What a run writes to its directory, beside recipe.yaml.
OWN = (
    "best", "last", "steps", "metrics.jsonl", "report.html", "outcome.json", "tensorboard",
    FOLDER, "lr-finder.json", "loggers.json", "accumulate.json", REQUEUE, PIXELS,
)  # fmt: skip
# What a run has written before its first checkpoint, beside decoded images.
BEFORE_CHECKPOINT = (
    "recipe.yaml",
    "metrics.jsonl",
    "lr-finder.json",
    "loggers.json",
    "accumulate.json",
    "tensorboard/events.out.tfevents.*",
    f"{FOLDER}/step-*.png",
)


def start_run(options: RunOptions, observer: Observer) -> Run:
    """Train in this process, or in several."""
    check_count("processes", options.processes, at_least=1)
    with use_threads(options.threads):
        if options.processes > 1 and not launched() and not options.dry_run:
            return launch_run(options, observer)
        with report_errors():
            with process_group(options.device) as world:
                observer = observer if world.is_main else Observer()
                done = perform(options, observer, world)
            # the processes have parted: none waits while the main one writes a report
            if isinstance(done, Run):
                return done
            if not world.is_main:
                return ended_run(done.out, done.task.recipe, done.outcome)
            return finish(done, observer)


def finish(ended: EndedRun, observer: Observer) -> Run:
    """Write the report of a run, and the record of one that is finished."""
    out, outcome, written = ended.out, ended.outcome, Written()
    if outcome.stopped_by in SCHEDULER_SIGNALS:
        write_requeue(out, outcome)  # first: what follows may be cut short
    if ended.device.type == "cuda":
        release_memory()  # of the run, for the evaluation of its best weights
    with allow_interrupt(outcome.stopped):
        written = write_report(ended, observer.on_progress)
    recipe = ended.task.recipe
    run = ended_run(out, recipe, outcome, notes=written.notes, test=written.test)
    if not outcome.stopped:
        remove_cache(out / PIXELS)
        write_outcome(run)
    return run


@contextmanager
def allow_interrupt(stopped: bool) -> Iterator[None]:
    """A second Ctrl-C gives up the report of a run that was interrupted: the run is saved."""
    try:
        yield
    except KeyboardInterrupt:
        if not stopped:
            raise


def perform(options: RunOptions, observer: Observer, world: World) -> EndedRun | Run:
    """Train, from the start or from where a run stopped. A dry run, and a run that was finished
    before, are records already."""
    out, recipe, resume = choose_run(options, world)
    if resume and not options.dry_run and (run := world.from_main(read_outcome(out))) is not None:
        return run
    splits = with_train_share(open_splits(recipe, world), recipe.train_share, recipe.seed)
    check_installed(recipe.monitor.loggers)
    scorer, curve = make_scorer(splits), None
    if not resume:
        recipe, curve = run_trials(
            options, recipe, splits, scorer, world, partial(make_recipe, world=world)
        )
    task = prepare_task(recipe, splits, scorer, deferred=is_shared(recipe, world))
    if options.dry_run:
        plan, total = plan_of(task, splits, world)
        if not resume and (out / NAME).exists():
            plan.append(f"out: {out} already contains a run, choose another directory or resume it")
        return Run(out=out, recipe=recipe, step=0, total=total, plan=plan, scores={})
    made = not out.exists()
    world.wait()  # until every process has seen that there is no run yet
    try:
        if world.is_main and resume:
            (out / REQUEUE).unlink(missing_ok=True)  # it goes on now
        if world.is_main and not resume:
            write_recipe(recipe, out)
            if curve is not None:
                write_curve(curve, out)
        messages = () if resume else tuple(introduction(task, splits))
        task, room = with_cache(task, out / PIXELS, world)
        if room:
            messages += (
                f"decoded images are kept in {out / PIXELS} ({room / 1e6:,.0f} MB at most) until "
                "the run is finished; set cache=false to train without",
            )
        trainer = Trainer(task, out, observer.show_step, world)
        observer.show_step(Progress(0, trainer.total, float("nan"), 0.0, messages=messages))
        began = time.perf_counter()
        outcome = trainer.run(resume=resume)
    except (UserError, KeyboardInterrupt):
        if world.is_main and not resume:
            remove_failed_start(out, made=made)
        raise
    return EndedRun(task, splits, out, outcome, time.perf_counter() - began, world.device)


def open_splits(recipe: Recipe, world: World) -> Splits:
    """The data; of remote storage the main process lists it, and tells the others."""

    def work() -> Splits:
        return open_data(
            recipe.data, val_share=recipe.val_share, folds=recipe.folds, fold=recipe.fold
        )

    if world.size == 1 or not is_remote(recipe.data):
        return work()
    found = world.from_main(work() if world.is_main else None)
    assert found is not None
    return found


def make_recipe(options: RunOptions, world: World) -> Recipe:
    """The recipe of a new run, which depends on the data as well; with what this machine does best,
    unless a file has it all."""
    if world.size == 1 or not is_remote(options.data):
        recipe = new_recipe(options)
    else:
        found = world.from_main(new_recipe(options) if world.is_main else None)
        assert found is not None
        recipe = found
    if Path(options.recipe or "").suffix in (".yaml", ".yml"):
        return recipe
    return with_device_defaults(recipe, machine_of(world), given_fields(options))


def machine_of(world: World) -> Machine:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return describe_machine(world.device, cores=cores or 1, processes=world.local[1])


def given_fields(options: RunOptions) -> set[str]:
    """Fields of the recipe that a person has chosen."""
    named = {name for name in ("precision", "workers") if getattr(options, name) is not None}
    return named | set(options.changes)


def choose_run(options: RunOptions, world: World) -> tuple[Path, Recipe, bool]:
    """The directory of the run, its recipe, and whether it is resumed."""
    out = Path(options.out or f"runs/{Path(options.data).stem}")
    named = options.out is not None or options.verb == "train"
    recipe = None
    if not named:
        objective = options.objective
        if options.resume is not True:
            recipe = make_recipe(options, world)
            if isinstance(recipe.goal, Masked):
                objective = recipe.goal.objective
        out = out.with_name(f"{out.name}-{objective or DEFAULT_OBJECTIVE}")
    resume = options.resume is True
    if options.resume == "auto":
        resume = world.from_main((out / NAME).is_file())
    if resume:
        return out, resumed_recipe(options, out), True
    recipe = recipe or make_recipe(options, world)
    check_model(recipe)
    if not options.dry_run:
        refuse_taken(out, recipe.data)
    return out, recipe, False


def check_model(recipe: Recipe) -> None:
    """Refuse an unknown name of a model, or of one of its fields, before OUT is looked at."""
    if recipe.start is None and recipe.model is not None:
        change(find(recipe.model), dict(recipe.fields))


def refuse_taken(out: Path, data: str) -> None:
    """A run starts only if it would overwrite nothing."""
    if out.resolve() == Path(data).resolve():
        raise UserError(f"{out}: is the data directory: choose another out directory")
    if out.is_file():
        raise UserError(f"{out}: cannot be written: it is a file, not a directory")
    if (out / NAME).exists():
        raise UserError(
            f"{out}: already contains a run: choose another directory, or pass resume=True"
        )
    for name in OWN:
        if os.path.lexists(out / name):
            raise UserError(f"{out / name}: already exists: choose another out directory")


def remove_failed_start(out: Path, *, made: bool) -> None:
    """A run that failed before its first checkpoint leaves nothing of its own, so that the same
    command can start again. Files of others stay, and so does OUT if the run has not `made` it."""
    if any((out / name).exists() for name in ("steps", "best", "last")):
        return
    for pattern in BEFORE_CHECKPOINT:
        for path in out.glob(pattern):
            path.unlink()
    remove_cache(out / PIXELS)
    for directory in (out / "tensorboard", out / FOLDER, *((out,) if made else ())):
        with suppress(OSError):  # it holds files of others, or was never made
            directory.rmdir()


def make_scorer(splits: Splits) -> Scorer:
    """Scores by the labels of the data: of one label an image they are counted, of several ranked,
    for which all outputs are needed."""
    train = splits["train"]
    if train.targets is None or train.targets.ndim == 1:
        return LabelScorer(len(train.labels))
    needed = len(validation_split(splits, "the data")[1]) * len(train.labels)
    if needed > MAX_KEPT:
        raise UserError(
            f"mean average precision ranks all validation images: images times labels must be at "
            f"most {MAX_KEPT:,}, got {needed:,}: add a smaller val split"
        )

    def scorer(answers: Any, targets: Any) -> tuple[str, dict[str, float]]:
        scores = score(answers, targets, multi_label=True)
        return scores.key, scores.values

    return scorer
