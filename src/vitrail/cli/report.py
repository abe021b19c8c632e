"""`vitrail report`: training runs side by side."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.options import ARGUMENTS, Out, OutputOptions, OverwriteOption
from vitrail.cli.output import say, say_json, say_report


@dataclass(frozen=True)
class Report(OverwriteOption, OutputOptions):
    """Which runs to compare, and where to write the page."""

    runs: Annotated[tuple[str, ...], Parameter(group=ARGUMENTS)]
    """Directories of training runs, finished or not."""
    _: KW_ONLY
    out: Out = None
    """Directory for report.html and runs.json."""


def report(options: Report) -> None:
    """Compare training runs: best scores, curves in one chart, settings that differ.

    Examples:
      vitrail report runs/a runs/b
      vitrail report runs/a runs/b runs/c --out comparison
    """
    from vitrail.tasks.report import report as run

    found = run(*options.runs, out=options.out, overwrite=options.overwrite)
    if options.json:
        say_json(found.facts())
        return
    say(*found.text().splitlines())
    say_report(options.out)
