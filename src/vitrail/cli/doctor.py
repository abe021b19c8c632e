"""`vitrail doctor`: what is wrong with a data set, before anything is trained on it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from vitrail.cli.options import OutputOptions
from vitrail.cli.output import say, say_json
from vitrail.cli.progress import progress


@dataclass(frozen=True)
class Doctor(OutputOptions):
    """Which data to look at, and where to write what was found."""

    data: str
    """A folder of class folders, a manifest (.csv, .tsv, .parquet), tars, an .npz, hf:owner/name,
    torchvision:NAME:ROOT, digits, planted or fashion-mnist."""
    _: KW_ONLY
    out: str | None = None
    """A directory for report.html, a page with images, and doctor.json."""
    overwrite: bool = False
    """Replace these where they exist."""
    val_share: float = 0.1
    """Share of the images that training would validate on, where the data has no val part; the
    same are drawn here."""
    threads: int | None = None
    """Threads to decode with. [default: one for each processor]"""


def doctor(asked: Doctor) -> None:
    """Examine every image: broken files, duplicates, leakage between splits, classes, sizes.

    Examples:
      vitrail doctor photos
      vitrail doctor photos --out photos-report
    """
    from pathlib import Path

    from vitrail.tasks.doctor import PAGE
    from vitrail.tasks.doctor import doctor as run

    with progress() as watch:
        found = run(
            asked.data,
            val_share=asked.val_share,
            out=asked.out,
            overwrite=asked.overwrite,
            threads=asked.threads,
            on_progress=watch,
        )
    if asked.json:
        say_json(found.facts())
        return
    say(*found.text().splitlines())
    if asked.out is not None:
        say("", f"the page with images: {Path(asked.out) / PAGE}")
