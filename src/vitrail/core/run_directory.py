"""The directory of a run, which is often given where one of its models is meant."""

from os.path import exists, isdir, isfile
from pathlib import Path

from vitrail.core.errors import UserError


def refuse_run(source: str | Path) -> None:
    """A directory of a run holds models; it is none itself."""
    folder = Path(source)
    # by os.path, which answers for any name, however long
    if isfile(folder / "recipe.yaml") and not exists(folder / "config.json"):
        inside = [name for name in ("best", "last") if isdir(folder / name)]
        hint = f"use {folder / inside[0]}" if inside else "it has saved no model yet"
        raise UserError(f"{source}: is a run directory, not a model: {hint}")
