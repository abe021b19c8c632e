"""`vitrail.doctor`: what is wrong with a data set, before anything is trained on it."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from vitrail.data.doctor import examine
from vitrail.data.findings import Findings
from vitrail.data.sources import open_data
from vitrail.pages.data_report import data_page
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.progress import OnProgress, silent, steps_of
from vitrail.tasks.results import writing_results

FACTS = "doctor.json"


@dataclass(frozen=True, repr=False)
class DataReport(Findings, HtmlRecord):
    """Everything that `doctor` found in a data set: it prints as text, and has a page, whose path
    is `report` if it was written."""

    report: str | None = None

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON: all but the images themselves."""
        facts = super().facts()
        broken = [{**bad.pop("image"), **bad} for bad in facts.pop("broken")]
        named = [{"image": bad.pop("name"), **bad} for bad in broken]
        for split in facts["splits"]:
            split["broken_images"] = split.pop("broken")
        return {"report": facts.pop("report"), **facts, "broken": named}

    def html(self) -> str:
        return data_page(super().facts(), **page_images(self))


def page_images(found: Findings) -> dict[str, Any]:
    """The images that a page about findings shows."""
    samples = [asdict(sample) for sample in found.samples]
    return {"samples": samples, "thumbnails": found.thumbnails}


def doctor(
    data: str | Path,
    *,
    val_share: float = 0.1,
    out: str | Path | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    on_progress: OnProgress = silent,
) -> DataReport:
    """Examine every image: broken files, duplicates, leakage between splits, classes, sizes. Where
    there is no validation split, `val_share` of the images are drawn as training draws them. `out`
    gets report.html, a page with images, and doctor.json.

    >>> found = doctor("digits")
    >>> found.images, len(found.broken)
    (1797, 0)
    """
    with writing_results(out, "doctor", (PAGE, FACTS), overwrite=overwrite) as draft:
        findings = examine(
            open_data(data, val_share=val_share),
            str(data),
            threads=threads,
            on_progress=steps_of(on_progress, "examining images"),
        )
        found = DataReport(
            **{field.name: getattr(findings, field.name) for field in fields(findings)},
            report=None if out is None else str(Path(out) / PAGE),
        )
        if draft is not None:
            found.save_report(draft, FACTS)
    return found
