"""`vitrail train`: from a folder of images to a model."""

from __future__ import annotations

import json as machine
import time
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli.asking import arguments_of, use_threads
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.cli.display import Display
    from vitrail.data.source import Splits
    from vitrail.train.loop import Judge, Outcome
    from vitrail.train.parallel import World
    from vitrail.train.recipe import Recipe


MOST_EXAMINED = 200_000  # images that the doctor looks at unasked


@dataclass(frozen=True)
class Train:
    """What to train on, with what, and where the result goes."""

    data: str
    """Class folders, a manifest, tars, arrays, IDX files, or digits."""
    _: KW_ONLY
    out: str | None = None
    """The directory of the run; by default runs/NAME-OF-THE-DATA."""
    recipe: str | None = None
    """small, tune, finetune, imagenet1k, imagenet21k, jft, deit, deit_distilled, swin, beit,
    mobilevit, or a recipe.yaml; by default small, or tune with --from."""
    model: str | None = None
    """A variant (vitrail models); by default a small ViT chosen from the data."""
    start: Annotated[str | None, Parameter(name="--from")] = None
    """A checkpoint to begin from: native, foreign or hf-hub:owner/name."""
    epochs: float | None = None
    """Rounds through the images."""
    steps: int | None = None
    """Steps, instead of epochs."""
    batch_size: str | None = None
    """Images in a step, or auto: what this machine is fastest with."""
    lr: str | None = None
    """Peak learning rate, or find: where the loss falls fastest in a hundred trial steps."""
    image_size: str | None = None
    """224, or height x width as 192x672."""
    val_share: float | None = None
    """Share of the images to judge by, where the data has no val part; 0.1 unless said."""
    set: tuple[str, ...] = ()
    """Any other field of the recipe: --set optimiser.weight_decay=0.1. May be repeated."""
    seed: int | None = None
    """Decides every draw of the run; 0 unless said."""
    threads: int | None = None
    """Threads to compute with."""
    workers: int | None = None
    """Processes that read and augment images; their number changes nothing in the result."""
    processes: int = 1
    """Processes that train together on this machine, under torchrun."""
    parallel: Literal["ddp", "fsdp", "hsdp"] | None = None
    """What processes share: nothing but gradients (ddp), the weights too (fsdp), or both (hsdp)."""
    resume: bool = False
    """Go on from the last checkpoint of the run in OUT, with its recipe."""
    dry_run: bool = False
    """Print the recipe and stop."""
    json: bool = False
    """Print the outcome as a JSON object."""


def train(asked: Train) -> None:
    """Train a model on labelled images; what comes out is in OUT/best, OUT/last and
    OUT/report.html."""

    from vitrail.train.parallel import joined, launch, launched, reported

    use_threads(asked.threads)
    if asked.processes < 1:
        raise UserError(f"--processes is {asked.processes}, but must be at least 1")
    if asked.processes > 1 and not launched() and not asked.dry_run:
        launch("vitrail.cli.app", ["train", *arguments_of(asked)], asked.processes)
        return
    with joined() as world, reported(world):
        stopped = run(asked, world)
    if stopped:  # the processes have parted
        raise KeyboardInterrupt(stopped)


def run(asked: Train, world: World) -> str | None:
    """What to say where the run was stopped before its end."""
    from vitrail.cli.display import Display, tell
    from vitrail.cli.said import begun, continued
    from vitrail.data.sources import open_data
    from vitrail.evaluate.classify import score
    from vitrail.train.loop import Trainer
    from vitrail.train.prepare import prepare_task, with_cache
    from vitrail.train.recipe_file import NAME, to_yaml, write_recipe

    out = Path(asked.out or f"runs/{Path(asked.data).stem}")
    if not asked.resume and not asked.dry_run and (out / NAME).exists():
        raise UserError(f"{out}: holds a run already: choose another --out, or say --resume")
    recipe = continued(asked, out) if asked.resume else begun(asked)
    splits = open_data(recipe.data, val_share=recipe.val_share)

    def judge(logits: Any, targets: Any) -> tuple[str, dict[str, float]]:
        known = splits["train"].targets
        scores = score(logits, targets, several=known is not None and known.ndim == 2)
        return scores.key, scores.values

    if not asked.resume:
        recipe = measured(asked, recipe, splits, judge, world)
    if asked.dry_run:
        print(machine.dumps(asdict(recipe)) if asked.json else to_yaml(recipe), end="")
        return None
    task = prepare_task(recipe, splits, judge)
    world.wait()  # until every process has seen that there is no run yet
    with Display(quiet=asked.json or not world.chief) as display:
        if world.chief and not asked.resume:
            write_recipe(recipe, out)
            display.say(*(f"- {reason}" for reason in recipe.reasons))
        task = with_cache(task, out.parent / "pixels", world, display.watch("decoding images"))
        outcome = Trainer(task, out, display.show, world).run(resume=asked.resume)
        if world.chief and not outcome.stopped:
            write_report(recipe, splits, out, outcome, display)
    if world.chief:
        tell(out, outcome, json=asked.json)
    if not (outcome.stopped and world.chief):
        return None
    return f"saved at step {outcome.step}: vitrail train {recipe.data} --out {out} --resume"


def measured(asked: Train, recipe: Recipe, splits: Splits, judge: Judge, world: World) -> Recipe:
    """The recipe with the batch size and the learning rate that trials find, where they are asked
    for; what they find is written down, so that resuming does not try again."""
    from vitrail.cli.said import begun
    from vitrail.train.capacity import best, find_batch_size
    from vitrail.train.finder import find_rate
    from vitrail.train.loop import Trainer
    from vitrail.train.prepare import prepare_task

    if asked.batch_size == "auto":
        objective = prepare_task(recipe, splits, judge).objective
        trials = find_batch_size(objective, images=len(splits["train"]), device=world.device)
        size = max(world.gather(best(trials).batch_size))
        told = ", ".join(f"{t.batch_size}: {t.images_per_second:,.0f}" for t in trials)
        recipe = begun(replace(asked, batch_size=str(size * world.size)))
        recipe = because(recipe, f"batches of {recipe.batch_size}: images/s of {told}")
    if asked.lr == "find":
        found = find_rate(Trainer(prepare_task(recipe, splits, judge), Path(), world=world))
        optimiser = replace(recipe.optimiser, lr=found.lr)
        recipe = because(
            replace(recipe, optimiser=optimiser),
            f"lr {found.lr:g}: where the loss fell fastest in {len(found.rates)} trial steps from "
            f"{found.rates[0]:.0e} to {found.rates[-1]:.0e}",
        )
    return recipe


def because(recipe: Recipe, reason: str) -> Recipe:
    return replace(recipe, reasons=(*recipe.reasons, reason))


def write_report(
    recipe: Recipe, splits: Splits, out: Path, outcome: Outcome, display: Display
) -> None:
    """OUT/report.html: curves, what the best weights get wrong, and what is wrong with the data."""
    from vitrail.data.doctor import examine
    from vitrail.evaluate.answers import answers_of
    from vitrail.evaluate.report import Report
    from vitrail.evaluate.report_page import report_page
    from vitrail.models.measure import count
    from vitrail.train.log import Log
    from vitrail.train.prepare import judged_part
    from vitrail.weights.atomic import write_file
    from vitrail.weights.load import load

    part, source = judged_part(splits, recipe.data)
    model = load(out / "best")
    answers = answers_of(model, source, name=recipe.data)
    few = sum(map(len, splits.parts.values())) <= MOST_EXAMINED
    watch = display.watch("looking at the data")
    findings = examine(splits, recipe.data, watch=watch) if few else None
    if findings is not None:  # a short run has not met every image
        outcome.memory.broken |= {bad.picture.name: bad.reason for bad in findings.broken}
    report = Report(
        title=out.name,
        recipe=asdict(recipe),
        facts={
            "best at step": f"{outcome.memory.best_step:,} of {outcome.total:,}",
            "parameters": f"{count(model):,}",
            "images per second": f"{outcome.images_per_second:,.0f}",
            "written": time.strftime("%Y-%m-%d %H:%M"),
        },
        lines=Log.read(out),
        labels=source.labels,
        logits=answers.logits,
        targets=answers.targets,
        indices=answers.indices,
        source=source,
        part=part,
        findings=findings,
        broken=outcome.memory.broken,
    )

    def fill(path: Path) -> None:
        path.write_text(report_page(report), encoding="utf-8")

    write_file(out / "report.html", fill, overwrite=True)
