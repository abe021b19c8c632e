"""`vitrail models`: which models there are."""

import json as machine
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Models:
    """Which names to print, and how."""

    pattern: str = "*"
    """Names to keep, as in a shell: "swin*"."""
    _: KW_ONLY
    json: bool = False
    """Print a JSON list."""


def models(asked: Models) -> None:
    """Print the names of the models, sorted."""
    from vitrail.models.catalogue import list_models

    names = list_models(asked.pattern)
    print(machine.dumps(names) if asked.json else "\n".join(names))
