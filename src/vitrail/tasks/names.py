"""What models are called in records and on pages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from vitrail.core.errors import UserError
from vitrail.models.catalogue import variant_of
from vitrail.models.model import Model
from vitrail.models.summary import family_title
from vitrail.tasks.models import AnyModel, source_of

# Models that are drawn together: a list, or a mapping that gives each a name.
SeveralModels: TypeAlias = list[Any] | tuple[Any, ...] | Mapping[str, Any]


def name_of(model: AnyModel) -> str:
    """The path that a model is loaded from, as it was given; of a module that was made or changed
    in memory its class."""
    source = source_of(model)
    return type(model).__name__ if source is None else source.source


def short_name(model: str) -> str:
    """
    >>> short_name("runs/pets/best"), short_name("hf-hub:owner/name")
    ('pets', 'name')
    """
    path = Path(model)
    return path.parent.name if path.name in ("best", "last") else path.name


def named_models(models: SeveralModels) -> dict[str, AnyModel]:
    """Models by the names that a page tells them apart by: given ones, else short ones, else the
    whole path, with a number where all that is the same.

    >>> list(named_models(["runs/pets/best", "runs/cats/best"]))
    ['pets', 'cats']
    """
    if isinstance(models, Mapping):
        named = {str(name): model for name, model in models.items()}
    else:
        listed = list(models)
        shorts = [short_label(one) for one in listed]
        named = {}
        for one, short in zip(listed, shorts, strict=True):
            label = short if shorts.count(short) == 1 else name_of(one)
            number, name = 2, label
            while name in named:
                name, number = f"{label} {number}", number + 1
            named[name] = one
    if not named:
        raise UserError("at least one model is needed, got none")
    return named


def short_label(model: AnyModel) -> str:
    """The architecture of a model in memory, the short name of one that is loaded."""
    if isinstance(model, Model) and source_of(model) is None:
        return variant_of(model.config) or family_title(model)
    return short_name(name_of(model))
