"""`vitrail.doctor`: what is wrong with a data set, before anything is trained on it."""

from pathlib import Path

from vitrail.core.errors import writing
from vitrail.core.json_text import to_json
from vitrail.data.doctor import examine
from vitrail.data.findings import Findings
from vitrail.data.sources import open_data
from vitrail.tasks.progress import OnProgress, silent, steps_of
from vitrail.tasks.results import writing_results

PAGE, FACTS = "doctor.html", "doctor.json"


def doctor(
    data: str | Path,
    *,
    val_share: float = 0.1,
    out: str | Path | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    on_progress: OnProgress = silent,
) -> Findings:
    """Examine every image: broken files, duplicates, leakage between splits, classes, sizes. Where
    there is no validation split, `val_share` of the images are drawn as training draws them. `out`
    gets doctor.html, a page with images, and doctor.json.

    >>> found = doctor("digits")
    >>> found.images, len(found.broken)
    (1797, 0)
    """
    with writing_results(out, "doctor", (PAGE, FACTS), overwrite=overwrite) as draft:
        found = examine(
            open_data(data, val_share=val_share),
            str(data),
            threads=threads,
            on_progress=steps_of(on_progress, "examining images"),
        )
        if draft is not None:
            with writing(draft):
                found.save_html(draft / PAGE)
                (draft / FACTS).write_text(to_json(found.facts()) + "\n", encoding="utf-8")
    return found
