"""`recipe.yaml`: a recipe as people read and change it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.core.yaml_text import load_yaml
from vitrail.training.goal import one_goal
from vitrail.training.recipe import Recipe
from vitrail.weights.atomic import write_file

NAME = "recipe.yaml"
# Fields by the names that they had in earlier versions, as dotted places.
RENAMED = {
    "average": "ema_decay",
    "watch": "monitor",
    "monitor.every": "monitor.eval_every_epochs",
    "monitor.save": "monitor.save_every_steps",
}


def to_yaml(recipe: Recipe) -> str:
    """
    >>> print(to_yaml(Recipe(data="digits")).splitlines()[0])
    data: digits
    """
    text: str = yaml.safe_dump(
        as_plain_values(recipe), sort_keys=False, allow_unicode=True, width=96
    )
    return text


def as_plain_values(recipe: Recipe) -> dict[str, Any]:
    """A recipe as YAML and JSON know it, with lists for tuples."""
    values: dict[str, Any] = _with_lists(asdict(recipe))
    return values


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(inner) for key, inner in value.items()}
    return [_with_lists(inner) for inner in value] if isinstance(value, tuple | list) else value


def write_recipe(recipe: Recipe, out: Path) -> None:
    def fill(path: Path) -> None:
        path.write_text(to_yaml(recipe), encoding="utf-8")

    write_file(out / NAME, fill, overwrite=True)


def read_recipe(path: Path) -> Recipe:
    """A recipe that was written, perhaps changed by hand since; every field is checked."""
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: the recipe cannot be read: {reason}") from None
    return validate(Recipe, with_new_names(values), where=str(path))


def with_new_names(values: Any) -> Any:
    """The values of a recipe with today's names in the place of earlier ones.

    >>> with_new_names({"average": 0.9, "watch": {"every": 2, "save": 5}})
    {'ema_decay': 0.9, 'monitor': {'eval_every_epochs': 2, 'save_every_steps': 5}}
    """
    if not isinstance(values, dict):
        return values
    values = {name: dict(part) if isinstance(part, dict) else part for name, part in values.items()}
    if isinstance(values.get("goal"), dict):
        values["goal"] = one_goal(values["goal"])
    for old, new in RENAMED.items():
        *outer, last = old.split(".")
        part = values
        for name in outer:
            part = part.get(name, {})
        if isinstance(part, dict) and last in part:
            part[new.rpartition(".")[2]] = part.pop(last)
    return values
