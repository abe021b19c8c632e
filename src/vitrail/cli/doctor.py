"""`vitrail doctor`: what is wrong with a data set, before anything is trained on it."""

from __future__ import annotations

import json as machine
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Doctor:
    """Which data to look at, and where to write what was found."""

    data: str
    """A folder of class folders, a manifest (.csv, .tsv, .parquet), tars, an .npz, hf:owner/name,
    torchvision:NAME:ROOT, fashion-mnist or digits."""
    _: KW_ONLY
    out: str | None = None
    """A directory for doctor.html, a page with pictures, and doctor.json."""
    seed: int = 0
    """The seed by which validation images are drawn where the data has none."""
    threads: int | None = None
    """Threads to decode with; as many as there are processors unless said."""
    json: bool = False
    """Print a JSON object."""


def doctor(asked: Doctor) -> None:
    """Look at every image: broken files, duplicates, leakage between splits, classes, sizes."""
    from pathlib import Path

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from vitrail.core.errors import UserError
    from vitrail.data.doctor import examine
    from vitrail.data.findings_page import page
    from vitrail.data.sources import open_data

    data = open_data(asked.data, seed=asked.seed)
    out = None if asked.out is None else Path(asked.out)
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror or error}") from None
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    silent = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=silent) as progress:
        task = progress.add_task("looking at images", total=None)
        found = examine(
            data,
            asked.data,
            threads=asked.threads,
            watch=lambda done, total: progress.update(task, completed=done, total=total),
        )
    facts = machine.dumps(found.facts(), ensure_ascii=True)
    print(facts if asked.json else found.text())
    if out is None:
        return
    try:
        (out / "doctor.html").write_text(page(found), encoding="utf-8")
        (out / "doctor.json").write_text(facts + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from None
    if not asked.json:
        print(f"\nthe page with pictures: {out / 'doctor.html'}")
