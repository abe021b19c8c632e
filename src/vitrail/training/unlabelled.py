"""From a recipe that needs no labels to its objective, fresh or taken up where a run ended."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport
from vitrail.models.model import Model
from vitrail.objectives.catalogue import make_unlabelled
from vitrail.objectives.objective import Objective
from vitrail.training.fresh import fresh_model
from vitrail.training.goal import Masked
from vitrail.training.optimiser import MODEL
from vitrail.training.recipe import Recipe
from vitrail.training.task import Scorer
from vitrail.weights.files import read_foreign
from vitrail.weights.hub import located
from vitrail.weights.load import load
from vitrail.weights.mae import decoder_of, read_mae
from vitrail.weights.native import FOR_PRETRAINING, is_native, objective_of, read_beside


def prepare_unlabelled(recipe: Recipe, goal: Masked) -> Objective:
    """An objective that needs no labels around a model without a head. A run of the same objective
    goes on with what that had beside its model; of any other the model alone is taken."""
    check_recipe(recipe, goal)
    torch.manual_seed(recipe.seed)
    fields = {"num_classes": 0, **recipe.fields}
    if recipe.start is None:
        model = fresh_model(recipe, fields)
    else:
        model = load(recipe.start, model=recipe.model, **fields)
    model.passport = replace(model.passport, labels=None, config=asdict(model.config))
    options, more = dict(goal.options), dict[str, Any]()
    theirs = foreign_autoencoder(recipe)
    if theirs is not None:
        options = decoder_of(theirs) | options  # type: ignore[operator]
    if goal.tokenizer is not None:
        more["tokenizer"] = load(goal.tokenizer)
    objective = make_unlabelled(goal.objective, model, options, **more)
    if theirs is not None:
        shapes = {name: tensor.shape for name, tensor in objective.state_dict().items()}
        state, _ = read_mae(theirs, shapes, where=str(recipe.start))
        objective.load_state_dict(state)
    elif recipe.start is not None and objective_of(model.passport) == goal.objective:
        take_up(objective, model, recipe.start)
    return objective


def check_recipe(recipe: Recipe, goal: Masked) -> None:
    """What has no say without labels is refused rather than passed over."""
    augmentation = recipe.augmentation
    if goal.objective == "beit" and goal.tokenizer is None:
        raise UserError("beit predicts the tokens of a tokenizer: give one with tokenizer")
    idle = {
        "goal.tokenizer": goal.tokenizer is not None and goal.objective != "beit",
        "augmentation.mixup": augmentation.mixup != 0,
        "augmentation.cutmix": augmentation.cutmix != 0,
        "augmentation.repeats": augmentation.repeats != 1,
        "lora": recipe.lora is not None,
    }
    for name, is_set in idle.items():
        if is_set:
            raise UserError(f"{name} does not apply to {goal.objective}: leave it out")


def foreign_autoencoder(recipe: Recipe) -> dict[str, Tensor] | None:
    """The tensors of a masked autoencoder of another code base, if the run begins from one that
    has its decoder."""
    if recipe.goal.objective != "mae" or recipe.start is None:
        return None
    path = located(recipe.start)
    if is_native(path):
        return None
    tensors = dict(read_foreign(path).tensors)
    return None if decoder_of(tensors) is None else tensors


def take_up(objective: Objective, model: Model, start: str) -> None:
    """Go on with what the run had beside its model: all of it, or, if it was not kept, nothing."""
    beside = read_beside(located(start))
    own = {n: t for n, t in objective.state_dict().items() if not n.startswith(MODEL)}
    if not beside:
        anew = ", ".join(dict.fromkeys(name.partition(".")[0] for name in own))
        note = (f"{anew}: fresh weights, since the checkpoint has none",) if own else ()
        model.passport = with_changes(model.passport, (*model.passport.origin.changes, *note))
        return
    shapes = ({name: tuple(t.shape) for name, t in state.items()} for state in (beside, own))
    theirs, ours = shapes
    for name in (*theirs, *ours):
        if theirs.get(name) != ours.get(name):
            here, there = (shapes.get(name, "not there") for shapes in (theirs, ours))
            raise UserError(
                f"{start}: its {name} is {here}, the options give {there}: use the options and the "
                f"image size that it was trained with"
            )
    objective.load_state_dict(objective.state_dict() | beside)
    changes = model.passport.origin.changes  # nothing is left out
    changes = tuple(
        one for one in changes if not one.endswith(FOR_PRETRAINING)
    )  # nothing is left out
    model.passport = with_changes(model.passport, changes)


def with_changes(passport: Passport, changes: tuple[str, ...]) -> Passport:
    return replace(passport, origin=replace(passport.origin, changes=changes))


def score_by_loss(objective: Objective) -> Scorer:
    """By what an objective tells of images."""

    def scorer(
        outputs: NDArray[np.float32], targets: NDArray[np.float32]
    ) -> tuple[str, dict[str, float]]:
        scores = objective.scores(outputs)
        return "val_loss", {f"val_{name}": value for name, value in scores.items()}

    return scorer
