"""`vitrail.convert`: a checkpoint in another dialect, bit for bit."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.weights.atomic import check_writable
from vitrail.weights.convert import Conversion, check_target, plan_conversion


def convert(
    source: str | Path,
    out: str | Path,
    *,
    to: str = "vitrail",
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    method: ResizeMethod | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    overwrite: bool = False,
    dry_run: bool = False,
    **changes: Any,
) -> Conversion:
    """Read a checkpoint in one dialect and write it in another: a file where `out` has a known
    suffix, else a directory with the config files of the dialect. `model`, `dialect`, `grid` and
    `changes` are those of `load`; `method` is how positions are resized; `mean` and `std`
    are those of pixels where the file does not specify them. With `dry_run` nothing is
    written.

    >>> done = convert("pets-model", "pets-timm", to="timm")
    >>> done.to, done.tensors
    ('timm', 152)
    """
    check_target(to, Path(out))
    if os.path.lexists(out) and not overwrite:
        raise UserError(f"{out}: already exists: choose another name, or pass overwrite=True")
    check_writable(Path(out))
    done, write_files = plan_conversion(
        source,
        out,
        to=to,
        model=model,
        dialect=dialect,
        grid=grid,
        method=method,
        changes=changes,
        mean_std=(mean, std),
    )
    if dry_run:
        return replace(done, dry_run=True)
    write_files(overwrite)
    return done
