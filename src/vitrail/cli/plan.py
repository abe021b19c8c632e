"""What a run would do, for --dry-run: the model it would build, how long it takes, its recipe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.output import say, say_json

if TYPE_CHECKING:
    from vitrail.data.source import Splits
    from vitrail.training.loop import Task
    from vitrail.training.parallel import World


def print_plan(task: Task, splits: Splits, world: World, *, json: bool) -> None:
    """The recipe as YAML under a few lines of comment, so that it can be saved and used; as JSON
    the recipe alone. The task is what a run would work on: what cannot run is refused before."""
    from vitrail.training.recipe_file import to_yaml

    if json:
        say_json(asdict(task.recipe))
        return
    for line in plan_of(task, splits, world):
        say(f"# {line}")
    say(*to_yaml(task.recipe).splitlines())


def plan_of(task: Task, splits: Splits, world: World) -> list[str]:
    from vitrail.cli.display import ignored_files
    from vitrail.data.findings import count
    from vitrail.models.summary import summarise
    from vitrail.training.estimate import estimate_seconds, in_words
    from vitrail.training.loop import Trainer

    trainer = Trainer(task, Path(), world=world)
    model = task.objective.model
    parts = ", ".join(f"{name} {len(part):,}" for name, part in splits.parts.items())
    lines = [
        f"model: {summarise(model)}",
        f"images: {parts}; each is {model.passport.preprocessing.in_words()} for evaluation",
        *ignored_files(splits.ignored),
    ]
    steps = f"{count(trainer.total, 'step')} of {count(task.recipe.batch_size, 'image')}"
    seconds = estimate_seconds(trainer)
    return [*lines, f"time: {steps}, about {in_words(seconds)} on this machine"]
