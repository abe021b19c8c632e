"""Every recipe by its name, and the one that is taken when none is named."""

from collections.abc import Callable

from vitrail.core.errors import UserError, nearest
from vitrail.recipes.beit import beit, beit_22k
from vitrail.recipes.choice import Choice
from vitrail.recipes.deit import deit, deit_distilled
from vitrail.recipes.mobilevit import mobilevit
from vitrail.recipes.paper import finetune, imagenet1k, imagenet21k, jft
from vitrail.recipes.small import small
from vitrail.recipes.swin import swin
from vitrail.recipes.tune import tune
from vitrail.training.recipe import Recipe

RECIPES: dict[str, Callable[[Choice], Recipe]] = {
    "small": small,
    "tune": tune,
    "imagenet1k": imagenet1k,
    "imagenet21k": imagenet21k,
    "jft": jft,
    "finetune": finetune,
    "deit": deit,
    "deit_distilled": deit_distilled,
    "swin": swin,
    "beit": beit,
    "beit_22k": beit_22k,
    "mobilevit": mobilevit,
}


def choose(name: str | None, choice: Choice) -> Recipe:
    """The recipe of that name; without one `tune` where there is a checkpoint to begin from, and
    `small` where there is none."""
    if name is None:
        name = "small" if choice.start is None else "tune"
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}, {nearest(name, RECIPES)}")
    return RECIPES[name](choice)
