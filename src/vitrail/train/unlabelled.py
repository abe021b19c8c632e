"""From a recipe that needs no labels to its objective, fresh or taken up where a run ended."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport
from vitrail.models.catalogue import build, change, find
from vitrail.models.model import Model
from vitrail.objectives.catalogue import make_unlabelled
from vitrail.objectives.objective import Objective
from vitrail.train.loop import Judge
from vitrail.train.recipe import Recipe
from vitrail.weights.files import read_foreign
from vitrail.weights.hub import HUB, fetch
from vitrail.weights.load import load
from vitrail.weights.mae import decoder_of, read_mae
from vitrail.weights.native import FOR_PRETRAINING, is_native, objective_of, read_beside

DEFAULT = "vit_s_16"


def prepare_unlabelled(recipe: Recipe) -> Objective:
    """An objective that needs no labels around a model without a head. A run of the same objective
    goes on with what that had beside its model; of any other the model alone is taken."""
    torch.manual_seed(recipe.seed)
    goal, fields = recipe.goal, {"num_classes": 0, **recipe.fields}
    if recipe.start is None:
        model = build(change(find(recipe.model or DEFAULT), fields))
    else:
        model = load(recipe.start, model=recipe.model, **fields)
    model.passport = replace(model.passport, labels=None, config=asdict(model.config))
    options, more = dict(goal.options), dict[str, Any]()
    theirs = foreign_autoencoder(recipe)
    if theirs is not None:
        options = decoder_of(theirs) | options  # type: ignore[operator]
    if goal.objective == "beit":
        if goal.tokenizer is None:
            raise UserError("beit predicts the words of a tokenizer: name one with --tokenizer")
        more["tokenizer"] = load(goal.tokenizer)
    objective = make_unlabelled(goal.objective, model, options, **more)
    if theirs is not None:
        shapes = {name: tensor.shape for name, tensor in objective.state_dict().items()}
        state, _ = read_mae(theirs, shapes, where=str(recipe.start))
        objective.load_state_dict(state)
    elif recipe.start is not None and objective_of(model.passport) == goal.objective:
        take_up(objective, model, recipe.start)
    return objective


def foreign_autoencoder(recipe: Recipe) -> dict[str, Tensor] | None:
    """The tensors of a masked autoencoder of another code base, if the run begins from one that
    has its decoder."""
    if recipe.goal.objective != "mae" or recipe.start is None:
        return None
    path = fetch(recipe.start) if recipe.start.startswith(HUB) else Path(recipe.start)
    if is_native(path):
        return None
    tensors = dict(read_foreign(path).tensors)
    return None if decoder_of(tensors) is None else tensors


def take_up(objective: Objective, model: Model, start: str) -> None:
    """Go on with what the run had beside its model."""
    beside, own = read_beside(start), objective.state_dict()
    wrong = [n for n, t in beside.items() if n not in own or own[n].shape != t.shape]
    if wrong:
        raise UserError(
            f"{start}: its {wrong[0]} does not fit the objective that is asked for: "
            "give the options it was trained with"
        )
    objective.load_state_dict(own | beside)
    model.passport = with_all(model.passport)


def with_all(passport: Passport) -> Passport:
    """Without the sentence that tells what was left out: nothing is."""
    kept = tuple(one for one in passport.origin.changes if not one.endswith(FOR_PRETRAINING))
    return replace(passport, origin=replace(passport.origin, changes=kept))


def by_loss(objective: Objective) -> Judge:
    """By what an objective tells of images; the less the loss the better."""

    def judge(
        answers: NDArray[np.float32], targets: NDArray[np.float32]
    ) -> tuple[float, dict[str, float]]:
        scores = objective.scores(answers)
        return -scores["loss"], {f"val_{name}": value for name, value in scores.items()}

    return judge
