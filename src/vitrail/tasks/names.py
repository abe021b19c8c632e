"""What models are called in records and on pages."""

from pathlib import Path

from torch import nn


def name_of(model: str | Path | nn.Module) -> str:
    """A path as it was given; a module by its class."""
    return type(model).__name__ if isinstance(model, nn.Module) else str(model)


def short_name(model: str) -> str:
    """
    >>> short_name("runs/pets/best"), short_name("hf-hub:owner/name")
    ('pets', 'name')
    """
    path = Path(model)
    return path.parent.name if path.name in ("best", "last") else path.name
