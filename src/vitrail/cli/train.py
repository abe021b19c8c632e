"""`vitrail train`: from a folder of images to a model."""

from __future__ import annotations

import json as machine
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from vitrail.cli.asking import parse_changes
from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from vitrail.data.source import Splits
    from vitrail.train.loop import Outcome, Progress
    from vitrail.train.recipe import Recipe


@dataclass(frozen=True)
class Train:
    """What to train on, with what, and where the result goes."""

    data: str
    """Class folders, a manifest, tars, arrays, IDX files, or digits."""
    _: KW_ONLY
    out: str | None = None
    """The directory of the run; by default runs/NAME-OF-THE-DATA."""
    model: str | None = None
    """A variant (vitrail models); by default a small ViT chosen from the data."""
    start: Annotated[str | None, Parameter(name="--from")] = None
    """A checkpoint to begin from: native, foreign or hf-hub:owner/name."""
    epochs: float | None = None
    """Rounds through the images."""
    steps: int | None = None
    """Steps, instead of epochs."""
    batch_size: int | None = None
    """Images in a step."""
    lr: float | None = None
    """Peak learning rate."""
    image_size: str | None = None
    """224, or height x width as 192x672."""
    set: tuple[str, ...] = ()
    """Any other field of the recipe: --set optimiser.weight_decay=0.1. May be repeated."""
    seed: int = 0
    """Decides every draw of the run."""
    threads: int | None = None
    """Threads to compute with."""
    workers: int | None = None
    """Processes that read and augment images."""
    resume: bool = False
    """Go on from the last checkpoint of the run in OUT, with its recipe."""
    dry_run: bool = False
    """Print the recipe and stop."""
    json: bool = False
    """Print the outcome as a JSON object."""


def train(asked: Train) -> None:
    """Train a model on labelled images; what comes out is in OUT/best and OUT/last."""
    import torch

    from vitrail.data.sources import open_data
    from vitrail.evaluate.classify import score
    from vitrail.train.loop import Trainer
    from vitrail.train.prepare import prepare_task

    if asked.threads:
        torch.set_num_threads(asked.threads)
    splits = open_data(asked.data)
    out = Path(asked.out or f"runs/{Path(asked.data).stem}")
    recipe = read_recipe(out) if asked.resume else make_recipe(asked, splits)
    if asked.dry_run:
        print(machine.dumps(asdict(recipe), indent=None if asked.json else 2))
        return
    if not asked.resume and (out / "recipe.json").exists():
        raise UserError(f"{out}: holds a run already: choose another --out, or say --resume")

    def judge(logits: Any, targets: Any) -> tuple[str, dict[str, float]]:
        scores = score(logits, targets, several=splits["train"].targets.ndim == 2)  # type: ignore[union-attr]
        return scores.key, scores.values

    task = prepare_task(recipe, splits, judge)
    write_recipe(recipe, out)
    if not asked.json:
        for reason in recipe.reasons:
            print(f"- {reason}")
    with Display(asked.json) as display:
        outcome = Trainer(task, out, display.show).run(resume=asked.resume)
    tell(asked, out, outcome)


def make_recipe(asked: Train, splits: Splits) -> Recipe:
    """The recipe for the data, with what the person said in its place."""
    from dataclasses import replace

    from vitrail.core.records import validate
    from vitrail.recipes.small import small
    from vitrail.train.recipe import Recipe

    recipe = small(asked.data, splits["train"])
    if asked.model or asked.start:
        recipe = replace(recipe, model=asked.model or recipe.model, start=asked.start, fields={})
    values = asdict(recipe)
    said = {
        "seed": asked.seed,
        "workers": asked.workers,
        "batch_size": asked.batch_size,
        "optimiser.lr": asked.lr,
        "schedule.epochs": asked.epochs,
        "schedule.steps": asked.steps,
    }
    fields = parse_changes(asked.image_size, asked.set)
    if "image_size" in fields:
        values["fields"]["image_size"] = fields.pop("image_size")
    for place, value in {**said, **fields}.items():
        if value is not None or place in fields:
            put(values, place, value)
    return validate(Recipe, values, where="recipe")


def put(values: dict[str, Any], place: str, value: Any) -> None:
    """Set a field by its dotted place; whether there is such a field the record itself will say."""
    *outer, last = place.split(".")
    for name in outer:
        if not isinstance(values.get(name), dict):
            raise UserError(f"--set {place}: the recipe has no part {name!r}")
        values = values[name]
    values[last] = value


def write_recipe(recipe: Recipe, out: Path) -> None:
    from vitrail.weights.atomic import write_file

    def fill(path: Path) -> None:
        path.write_text(machine.dumps(asdict(recipe), indent=2) + "\n", encoding="utf-8")

    write_file(out / "recipe.json", fill, overwrite=True)


def read_recipe(out: Path) -> Recipe:
    from vitrail.core.records import validate
    from vitrail.train.recipe import Recipe
    from vitrail.weights.files import read_json

    if not (out / "recipe.json").is_file():
        raise UserError(f"{out}: no run to resume here: give the --out of the run")
    return validate(Recipe, read_json(out / "recipe.json"), where=str(out / "recipe.json"))


class Display:
    """A bar with the loss, the speed, the time left and the last scores."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        columns = (BarColumn(), MofNCompleteColumn(), Left(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, disable=quiet)
        self.scores = ""

    def __enter__(self) -> Display:
        self.bar.start()
        self.task = self.bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, now: Progress) -> None:
        if now.scores is not None:
            self.scores = ", ".join(f"{name} {value:.4f}" for name, value in now.scores.items())
        text = f"loss {now.loss:.4f}  {now.images_per_second:,.0f} images/s  {self.scores}"
        self.bar.update(self.task, completed=now.step, total=now.total, description=text)


def tell(asked: Train, out: Path, outcome: Outcome) -> None:
    """How the run ended; a person's Ctrl-C ends with the way to go on."""
    memory = outcome.memory
    facts = {
        "out": str(out),
        "step": outcome.step,
        "total": outcome.total,
        "best": memory.best,
        "best_step": memory.best_step,
        "broken": memory.broken,
        "stopped": outcome.stopped,
    }
    if asked.json:
        print(machine.dumps(facts))
    else:
        print(f"best {memory.best} at step {memory.best_step} of {outcome.total}: {out / 'best'}")
        for name, reason in sorted(memory.broken.items()):
            print(f"left out {name}: {reason}")
    if outcome.stopped:
        raise KeyboardInterrupt(
            f"saved at step {outcome.step}: vitrail train {asked.data} --out {out} --resume"
        )
