"""From one dialect to another, tensor by tensor: nothing is computed, so every bit arrives."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport, ResizeMethod
from vitrail.models.catalogue import change
from vitrail.models.vit import ViTConfig
from vitrail.weights.atomic import write_directory, write_file
from vitrail.weights.dialect import Dialect
from vitrail.weights.dialects import choose, dialects_called
from vitrail.weights.files import SUFFIXES, write_tensors
from vitrail.weights.load import Checkpoint, open_checkpoint, refit
from vitrail.weights.native import write_native
from vitrail.weights.rows import Tensors, write


@dataclass(frozen=True)
class Conversion:
    """What was read, what was written, and where the two ecosystems compute differently."""

    source: Checkpoint
    out: Path
    to: str
    tensors: int
    changes: tuple[str, ...]
    cautions: tuple[str, ...]


def convert(
    source: str | Path,
    out: str | Path,
    *,
    to: str,
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    method: ResizeMethod | None = None,
    overwrite: bool = False,
    changes: dict[str, Any] | None = None,
) -> Conversion:
    """Write a checkpoint in another dialect: a file where `out` has a known suffix, else a
    directory with sidecars.

    >>> convert("pets-model", "pets-timm", to="timm").tensors
    152
    """
    if to != "vitrail":
        dialects_called(to)  # a wrong name is told before anything is read
    opened = open_checkpoint(source, model=model, dialect=dialect, grid=grid, said=changes or {})
    config = change(opened.config, changes or {})
    state, passport = refit(opened, config, method=method)
    out = Path(out)
    speaks = None if to == "vitrail" else choose(to, config)
    if speaks is None:
        if out.suffix in SUFFIXES:
            raise UserError(
                f"{out}: a Vitrail checkpoint is a directory: give a name without suffix"
            )
        write_native(state, passport, out, overwrite=overwrite)
    else:
        state = write_foreign(state, passport, config, speaks, out, overwrite=overwrite)
    cautions = speaks.cautions(config) if speaks else []
    done = passport.origin.changes
    return Conversion(opened, out, speaks.name if speaks else to, len(state), done, tuple(cautions))


def write_foreign(
    state: Tensors,
    passport: Passport,
    config: ViTConfig,
    dialect: Dialect,
    out: Path,
    *,
    overwrite: bool = False,
) -> Tensors:
    """Our tensors in a dialect's names; gives back what was written."""
    tensors = write(dialect.rows(config), state, where=f"the {dialect.name} dialect")
    if out.suffix in SUFFIXES:
        write_file(
            out,
            lambda draft: write_tensors(tensors, draft, wrapped=dialect.wrapped),
            overwrite=overwrite,
        )
        return tensors
    sidecars = dialect.sidecars(replace(passport, config=asdict(config)), config)

    def fill(directory: Path) -> None:
        name = f"model{dialect.suffix}"
        write_tensors(tensors, directory / name, wrapped=dialect.wrapped)
        for name, content in sidecars.items():
            (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    write_directory(out, fill, overwrite=overwrite)
    return tensors
