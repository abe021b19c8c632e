"""The model of a run that begins from nothing."""

from dataclasses import replace
from typing import Any

from vitrail.models.catalogue import build, change, find
from vitrail.models.model import Model
from vitrail.training.recipe import DEFAULT_MODEL, Recipe


def fresh_model(recipe: Recipe, fields: dict[str, Any]) -> Model:
    """Fresh weights. Images keep their aspect ratio: they are resized until they cover the model's
    size, and the centre is cropped, because what is stretched looks unlike the crops that
    augmentation trains on."""
    model = build(change(find(recipe.model or DEFAULT_MODEL), fields))
    how = model.passport.preprocessing
    model.passport = replace(model.passport, preprocessing=replace(how, resize=how.size))
    return model
