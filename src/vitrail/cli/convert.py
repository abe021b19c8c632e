"""`vitrail convert`: the same weights in another dialect."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Convert:
    """Which checkpoint to read, and what to write."""

    source: str
    """A native directory or a foreign file."""
    out: Path
    """The directory to write."""
    _: KW_ONLY
    to: str = "vitrail"
    """The dialect to write: vitrail, timm."""
    model: str | None = None
    """The model's name, where the file does not tell."""


def convert(asked: Convert) -> None:
    """Read a checkpoint in one dialect and write it in another."""
    from vitrail.core.errors import UserError

    if asked.to != "vitrail":
        raise UserError(f"cannot write dialect {asked.to} yet: use --to vitrail")
    from vitrail.weights.load import load
    from vitrail.weights.native import save

    save(load(asked.source, model=asked.model), asked.out)
