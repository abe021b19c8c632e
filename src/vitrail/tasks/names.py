"""What models are called in records and on pages."""

from pathlib import Path

from vitrail.tasks.models import AnyModel, source_of


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
