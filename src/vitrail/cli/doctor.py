"""`vitrail doctor`: problems of a data set, found before training."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from vitrail.cli.options import (
    Data,
    Out,
    OutputOptions,
    OverwriteOption,
    Threads,
    arguments_of,
)
from vitrail.cli.output import say, say_json
from vitrail.cli.progress import progress


@dataclass(frozen=True)
class Doctor(OverwriteOption, OutputOptions):
    """Which data to look at, and where to write what was found."""

    data: Data
    _: KW_ONLY
    out: Out = None
    """Directory for report.html, a page with images, and doctor.json."""
    val_share: float = 0.1
    """Share of the images held out for validation if the data has no val split, as in training."""
    threads: Threads = None


def doctor(options: Doctor) -> None:
    """Examine every image: broken files, duplicates, leakage between splits, classes, sizes.

    Examples:
      vitrail doctor photos
      vitrail doctor photos --out photos-report
    """
    from vitrail.tasks.doctor import doctor as run

    with progress() as on_progress:
        found = run(options.data, **arguments_of(options, run, on_progress=on_progress))
    if options.json:
        say_json(found.facts())
        return
    say(*found.text().splitlines())
    if found.report is not None:
        say("", f"report: {found.report}")
