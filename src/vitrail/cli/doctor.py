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
    from functools import partial
    from pathlib import Path

    from vitrail.cli.display import progress
    from vitrail.core.errors import writing
    from vitrail.data.doctor import examine
    from vitrail.data.findings_page import page
    from vitrail.data.sources import open_data

    data = open_data(asked.data, seed=asked.seed)
    out = None if asked.out is None else Path(asked.out)
    if out is not None:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    with progress() as watch:
        found = examine(
            data, asked.data, threads=asked.threads, watch=partial(watch, "looking at images")
        )
    facts = machine.dumps(found.facts(), ensure_ascii=True)
    print(facts if asked.json else found.text())
    if out is None:
        return
    with writing(out):
        (out / "doctor.html").write_text(page(found), encoding="utf-8")
        (out / "doctor.json").write_text(facts + "\n", encoding="utf-8")
    if not asked.json:
        print(f"\nthe page with pictures: {out / 'doctor.html'}")
