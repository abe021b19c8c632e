"""The batches of a run, and how many steps they make."""

from vitrail.data.loader import Stream
from vitrail.training.goal import Masked
from vitrail.training.recipe import Recipe
from vitrail.training.task import Task
from vitrail.training.world import World


def make_stream(task: Task, world: World) -> Stream:
    recipe = task.recipe
    return Stream(
        source=task.train,
        how=task.objective.model.passport.preprocessing,
        augmentation=recipe.augmentation,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        balance=not isinstance(recipe.goal, Masked) and recipe.goal.balance,
        native=task.objective.native,
        workers=recipe.workers,
        rank=world.rank,
        world=world.size,
        device=world.device,
    )


def total_steps(recipe: Recipe, stream: Stream) -> int:
    return recipe.schedule.steps or max(round(recipe.schedule.epochs * stream.steps), 1)
