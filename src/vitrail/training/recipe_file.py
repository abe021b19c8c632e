"""`recipe.yaml`: a recipe as people read and change it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.training.recipe import Recipe
from vitrail.weights.atomic import write_file

NAME = "recipe.yaml"


def to_yaml(recipe: Recipe) -> str:
    """
    >>> print(to_yaml(Recipe(data="digits")).splitlines()[0])
    data: digits
    """
    text: str = yaml.safe_dump(plain(asdict(recipe)), sort_keys=False, allow_unicode=True, width=96)
    return text


def plain(value: Any) -> Any:
    """Lists for tuples, which YAML has no word for."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple | list) else value


def write_recipe(recipe: Recipe, out: Path) -> None:
    def fill(path: Path) -> None:
        path.write_text(to_yaml(recipe), encoding="utf-8")

    write_file(out / NAME, fill, overwrite=True)


def read_recipe(path: Path) -> Recipe:
    """A recipe that was written, perhaps changed by hand since; every field is checked."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"{path}: is no recipe that can be read: {said}") from None
    return validate(Recipe, values, where=str(path))
