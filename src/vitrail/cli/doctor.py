"""`vitrail doctor`: what is wrong with a data set, before anything is trained on it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass

from vitrail.cli.output import say, say_json

PAGE, FACTS = "doctor.html", "doctor.json"


@dataclass(frozen=True)
class Doctor:
    """Which data to look at, and where to write what was found."""

    data: str
    """A folder of class folders, a manifest (.csv, .tsv, .parquet), tars, an .npz, hf:owner/name,
    torchvision:NAME:ROOT, digits, planted or fashion-mnist."""
    _: KW_ONLY
    out: str | None = None
    """A directory for doctor.html, a page with images, and doctor.json."""
    overwrite: bool = False
    """Replace these where they exist."""
    val_share: float = 0.1
    """Share of the images that training would validate on, where the data has no val part; the
    same are drawn here."""
    threads: int | None = None
    """Threads to decode with; as many as there are processors unless said."""
    json: bool = False
    """Print a JSON object."""


def doctor(asked: Doctor) -> None:
    """Look at every image: broken files, duplicates, leakage between splits, classes, sizes."""
    from functools import partial
    from pathlib import Path

    from vitrail.cli.display import progress
    from vitrail.core.errors import writing
    from vitrail.core.json_text import to_json
    from vitrail.data.doctor import examine
    from vitrail.data.findings_page import page
    from vitrail.data.sources import open_data
    from vitrail.weights.results import Results

    where = None if asked.out is None else Results(Path(asked.out), "doctor", asked.overwrite)
    if where is not None:
        where.check([PAGE, FACTS])
    data = open_data(asked.data, val_share=asked.val_share)
    with nullcontext() if where is None else where.draft() as draft:
        with progress() as watch:
            found = examine(
                data, asked.data, threads=asked.threads, watch=partial(watch, "looking at images")
            )
        if draft is not None:
            with writing(draft):
                (draft / PAGE).write_text(page(found), encoding="utf-8")
                (draft / FACTS).write_text(to_json(found.facts()) + "\n", encoding="utf-8")
    if asked.json:
        say_json(found.facts())
        return
    say(*found.text().splitlines())
    if where is not None:
        say("", f"the page with images: {where.out / PAGE}")
