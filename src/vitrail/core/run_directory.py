"""The directory of a run, which is often given where one of its models is meant."""

from pathlib import Path

from vitrail.core.errors import UserError


def refuse_run(source: str | Path) -> None:
    """A directory of a run holds models; it is none itself."""
    folder = Path(source)
    if (folder / "recipe.yaml").is_file() and not (folder / "config.json").exists():
        inside = [name for name in ("best", "last") if (folder / name).is_dir()]
        hint = f"use {folder / inside[0]}" if inside else "it has saved no model yet"
        raise UserError(f"{source}: is the directory of a run, not a model: {hint}")
