"""The model of a run that begins from nothing."""

from dataclasses import replace
from typing import Any

from vitrail.core.errors import UserError
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
    return with_bands(model, recipe)


def with_bands(model: Model, recipe: Recipe) -> Model:
    """A model that reads values as the recipe has measured them, if it has."""
    bands = recipe.bands
    if bands is None:
        return model
    if len(bands.mean) != model.config.channels:
        raise UserError(
            f"the model reads {model.config.channels} channels, the images have {len(bands.mean)} "
            f"bands: leave channels out, or set fields.channels={len(bands.mean)}"
        )
    how = replace(
        model.passport.preprocessing,
        bits=bands.bits,
        mean=bands.mean,
        std=bands.std,
        channel_order="rgb",
    )
    model.passport = replace(model.passport, preprocessing=how)
    return model
