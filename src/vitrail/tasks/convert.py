"""`vitrail.convert`: a checkpoint in another dialect, bit for bit."""

from pathlib import Path
from typing import Any

from vitrail.core.passport import ResizeMethod
from vitrail.weights.convert import Conversion
from vitrail.weights.convert import convert as convert_checkpoint


def convert(
    source: str | Path,
    out: str | Path,
    *,
    to: str = "vitrail",
    model: str | None = None,
    dialect: str | None = None,
    grid: tuple[int, int] | None = None,
    method: ResizeMethod | None = None,
    overwrite: bool = False,
    **changes: Any,
) -> Conversion:
    """Read a checkpoint in one dialect and write it in another: a file where `out` has a known
    suffix, else a directory with the config files of the dialect. `model`, `dialect`, `grid` and
    `changes` are those of `load`; `method` is how positions are resized.

    >>> done = convert("pets-model", "pets-timm", to="timm")
    >>> done.to, done.tensors
    ('timm', 152)
    """
    return convert_checkpoint(
        source,
        out,
        to=to,
        model=model,
        dialect=dialect,
        grid=grid,
        method=method,
        overwrite=overwrite,
        changes=changes,
    )
