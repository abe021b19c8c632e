"""A run from the command line: begun or resumed, in one process or many, shown while it lasts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vitrail.cli.options import format_arguments, use_threads
from vitrail.core.errors import UserError

# What a run writes to its directory, beside recipe.yaml.
OWN = (
    "best", "last", "steps", "metrics.jsonl", "report.html", "outcome.json", "tensorboard",
    "pictures", "pixels",
)  # fmt: skip
# What a run has written before its first checkpoint, beside decoded images.
BEFORE_CHECKPOINT = (
    "recipe.yaml",
    "metrics.jsonl",
    "tensorboard/events.out.tfevents.*",
    "pictures/step-*.png",
)
DEFAULT = "mae"  # what pretrain does where no objective is named
PIXELS = "pixels"  # where a run keeps decoded images until it is finished

if TYPE_CHECKING:
    from vitrail.cli.display import Display, Written
    from vitrail.cli.pretrain import Pretrain
    from vitrail.cli.train import Train
    from vitrail.data.source import Source, Splits
    from vitrail.training.loop import Judge, Outcome, Task
    from vitrail.training.parallel import World
    from vitrail.training.recipe import Recipe

    Asked: TypeAlias = Train | Pretrain
    # Writes OUT/report.html, once the run is over, knowing how many seconds it took.
    WriteReport: TypeAlias = Callable[[Task, Splits, Path, Outcome, Display, float], Written]


def start(asked: Asked, verb: str, write_report: WriteReport) -> None:
    """In this process, or in as many as were asked for."""
    from vitrail.training.parallel import launch, launched, process_group, reported

    use_threads(asked.threads)
    if asked.processes < 1:
        raise UserError(f"--processes is {asked.processes}, but must be at least 1")
    if asked.processes > 1 and not launched() and not asked.dry_run:
        launch("vitrail.cli.app", [verb, *format_arguments(asked)], asked.processes)
        return
    with reported():
        with process_group() as world:
            ended = run(asked, verb, world)
        # the processes have parted: none waits while the main one writes a report
        if ended is not None and world.is_main:
            finish(asked, verb, ended, write_report)


@dataclass(frozen=True)
class Ended:
    """A run that is over, or was stopped."""

    task: Task
    splits: Splits
    out: Path
    outcome: Outcome
    seconds: float


def finish(asked: Asked, verb: str, ended: Ended, write_report: WriteReport) -> None:
    """Write the report of a run, and print how it ended."""
    from vitrail.cli.display import Display, Written, facts_of, tell
    from vitrail.cli.finished import write_outcome
    from vitrail.data.cache import remove_cache

    out, outcome, written = ended.out, ended.outcome, Written()
    with Display(quiet=asked.json) as display:
        with stoppable(outcome.stopped):
            written = write_report(ended.task, ended.splits, out, outcome, display, ended.seconds)
        if not outcome.stopped:
            remove_cache(out / PIXELS)
    facts = facts_of(out, outcome, written)
    if not outcome.stopped:
        write_outcome(out, facts)
    tell(facts, json=asked.json)
    if outcome.stopped:
        resume = f"vitrail {verb} {ended.task.recipe.data} --out {out} --resume"
        raise KeyboardInterrupt(f"saved at step {outcome.step}: {resume}")


def run(asked: Asked, verb: str, world: World) -> Ended | None:
    """Train, from the start or from where a run stopped; nothing comes of a dry run, nor of a run
    that is finished already."""
    from vitrail.cli.display import Display
    from vitrail.cli.finished import read_outcome, tell_finished
    from vitrail.cli.plan import print_plan
    from vitrail.cli.said import begun, continued
    from vitrail.data.sources import open_data
    from vitrail.training.loop import Trainer
    from vitrail.training.prepare import prepare_task, with_cache
    from vitrail.training.recipe_file import NAME, write_recipe

    out = Path(asked.out or f"runs/{Path(asked.data).stem}")
    auto, named = asked.resume == "auto", asked.out is not None or verb != "pretrain"
    resume = asked.resume is True
    if auto and named:
        resume = world.from_main((out / NAME).is_file())
    recipe = None if resume else begun(asked)
    if not named:
        objective = asked.objective if recipe is None else recipe.goal.objective  # type: ignore[union-attr]
        out = out.with_name(f"{out.name}-{objective or DEFAULT}")
    if auto and not named:
        resume = world.from_main((out / NAME).is_file())
    if resume or recipe is None:
        recipe = continued(asked, out)
        if not asked.dry_run and (facts := world.from_main(read_outcome(out))) is not None:
            if world.is_main:
                tell_finished(facts, json=asked.json)
            return None
    elif (out / NAME).exists():
        raise UserError(f"{out}: already holds a run: choose another --out, or add --resume")
    else:
        refuse_taken(out, recipe.data)
    splits = open_data(recipe.data, val_share=recipe.val_share)
    judge = judge_of(splits)
    if not resume:
        recipe = measured(asked, recipe, splits, judge, world)
    task = prepare_task(recipe, splits, judge)
    if asked.dry_run:
        print_plan(task, splits, world, json=asked.json)
        return None
    made = not out.exists()
    world.wait()  # until every process has seen that there is no run yet
    with Display(quiet=asked.json or not world.is_main) as display:
        try:
            if world.is_main and not resume:
                write_recipe(recipe, out)
                display.say(*introduction(task, splits))
            task, room = with_cache(task, out / PIXELS, world)
            if room:
                display.say(
                    f"- decoded images are kept in {out / PIXELS} ({room / 1e6:,.0f} MB at most) "
                    "until the run is finished; --set cache=false trains without"
                )
            began = time.perf_counter()
            outcome = Trainer(task, out, display.show, world).run(resume=resume)
        except (UserError, KeyboardInterrupt):
            if world.is_main and not resume:
                forget(out, made=made)
            raise
    return Ended(task, splits, out, outcome, time.perf_counter() - began)


def introduction(task: Task, splits: Splits) -> Iterator[str]:
    """What a person should know before the first step."""
    from vitrail.cli.display import ignored_files
    from vitrail.models.summary import summarise

    recipe, model = task.recipe, task.objective.model
    yield f"- {summarise(model)}"
    yield from (f"- {reason}" for reason in recipe.reasons)
    if recipe.lora is not None:
        trained = sum(part.numel() for part in model.parameters() if part.requires_grad)
        yield (
            f"- LoRA of rank {recipe.lora.rank} on {', '.join(recipe.lora.targets)}: {trained:,} "
            "parameters are trained, with the head"
        )
    if empty := empty_classes(splits["train"]):
        yield f"- classes without a training image: {', '.join(empty)}"
    left = model.passport.origin.changes if recipe.start else ()
    yield from (f"- {recipe.start}: {change}" for change in left)
    yield from (f"- {line}" for line in ignored_files(splits.ignored))


def empty_classes(train: Source) -> list[str]:
    """Labels that no image has, such as those of empty folders."""
    import numpy as np

    if train.targets is None:
        return []
    one_each = np.ndim(train.targets) == 1
    counts = (
        np.bincount(train.targets, minlength=len(train.labels))
        if one_each
        else np.sum(train.targets, axis=0)
    )
    return [label for label, count in zip(train.labels, counts, strict=True) if not count]


@contextmanager
def stoppable(stopped: bool) -> Iterator[None]:
    """The report of a run that was interrupted is given up at the next Ctrl-C: the run is saved."""
    try:
        yield
    except KeyboardInterrupt:
        if not stopped:
            raise


def refuse_taken(out: Path, data: str) -> None:
    """A run begins only where none of the names that it writes is somebody else's."""
    if out.resolve() == Path(data).resolve():
        raise UserError(f"{out}: is the data itself: choose another --out")
    for name in OWN:
        if os.path.lexists(out / name):
            raise UserError(f"{out / name}: exists already: choose another --out")


def forget(out: Path, *, made: bool) -> None:
    """A run that failed before its first checkpoint leaves nothing of its own, so that the same
    command can start again. Files of others stay, and so does OUT if the run has not `made` it."""
    from vitrail.data.cache import remove_cache

    if any((out / name).exists() for name in ("steps", "best", "last")):
        return
    for pattern in BEFORE_CHECKPOINT:
        for path in out.glob(pattern):
            path.unlink()
    remove_cache(out / PIXELS)
    for directory in (out / "tensorboard", out / "pictures", *((out,) if made else ())):
        with suppress(OSError):  # it holds files of others, or was never made
            directory.rmdir()


def judge_of(splits: Splits) -> Judge:
    """By the labels of the data."""
    from vitrail.evaluation.classify import score

    def judge(answers: Any, targets: Any) -> tuple[str, dict[str, float]]:
        known = splits["train"].targets
        scores = score(answers, targets, multi_label=known is not None and known.ndim == 2)
        return scores.key, scores.values

    return judge


def measured(asked: Asked, recipe: Recipe, splits: Splits, judge: Judge, world: World) -> Recipe:
    """The recipe with the batch size and the learning rate that trials find, where they are asked
    for; what they find is written down, so that resuming does not try again."""
    from vitrail.cli.said import begun
    from vitrail.training.capacity import best, find_batch_size
    from vitrail.training.finder import find_lr
    from vitrail.training.loop import Trainer
    from vitrail.training.prepare import prepare_task

    if asked.batch_size == "auto":
        objective = prepare_task(recipe, splits, judge).objective
        images = max(len(splits["train"]) // world.size, 1)
        trials = find_batch_size(objective, recipe, images=images, device=world.device)
        size = min(world.gather(best(trials).batch_size))  # what every process has memory for
        told = ", ".join(f"{t.batch_size}: {t.images_per_second:,.0f}" for t in trials)
        recipe = begun(replace(asked, batch_size=str(size * world.size)))
        recipe = because(recipe, f"batches of {recipe.batch_size}: images/s of {told}")
    if asked.lr == "find":
        found = find_lr(Trainer(prepare_task(recipe, splits, judge), Path(), world=world))
        optimiser = replace(recipe.optimiser, lr=found.lr)
        recipe = because(
            replace(recipe, optimiser=optimiser),
            f"lr {found.lr:g}: where the loss fell fastest in {len(found.rates)} trial steps from "
            f"{found.rates[0]:.0e} to {found.rates[-1]:.0e}",
        )
    return recipe


def because(recipe: Recipe, reason: str) -> Recipe:
    return replace(recipe, reasons=(*recipe.reasons, reason))
