"""`vitrail report`: training runs side by side."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from vitrail.cli.options import OutputOptions
from vitrail.cli.output import say, say_json


@dataclass(frozen=True)
class Report(OutputOptions):
    """Which runs to compare, and where to write the page."""

    runs: tuple[str, ...]
    """Directories of training runs, finished or not."""
    _: KW_ONLY
    out: str | None = None
    """A directory for report.html, with curves over each other, and runs.json."""
    overwrite: bool = False
    """Replace these where they exist."""


def report(asked: Report) -> None:
    """Compare training runs: best scores, curves over each other, settings that differ.

    Examples:
      vitrail report runs/a runs/b
      vitrail report runs/a runs/b runs/c --out comparison
    """
    from pathlib import Path

    from vitrail.tasks.report import PAGE
    from vitrail.tasks.report import report as run

    found = run(*asked.runs, out=asked.out, overwrite=asked.overwrite)
    if asked.json:
        say_json(found.facts())
        return
    say(*found.text().splitlines())
    if asked.out is not None:
        say("", f"the page: {Path(asked.out) / PAGE}")
