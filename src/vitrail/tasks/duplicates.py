"""`vitrail.duplicates`: which embedded images are nearly the same."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError, printable
from vitrail.core.json_text import plain_values
from vitrail.inference.nearest import Pair, find_duplicates
from vitrail.inference.parts import read_manifest
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.image_pages import show_duplicates
from vitrail.tasks.results import writing_results

FACTS = "duplicates.json"


@dataclass(frozen=True)
class DuplicateReport(HtmlRecord):
    """Pairs of near duplicates, the most alike first; the least cosine of a pair, and where that
    threshold comes from."""

    directory: str
    pairs: tuple[Pair, ...]
    threshold: float
    threshold_source: str

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain_values(asdict(self))

    def html(self) -> str:
        where = self.directory
        return show_duplicates(self.pairs, where, self.threshold, self.threshold_source)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        shown = [printable(f"{one.cosine:.4f}  {one.one}  {one.other}") for one in self.pairs[:5]]
        pairs = "1 pair" if len(self) == 1 else f"{len(self):,} pairs"
        title = f"DuplicateReport({pairs} in {printable(self.directory)}"
        return "\n".join([f"{title}, cosine at least {self.threshold:.6g})", *shown])


def duplicates(
    directory: str | Path,
    *,
    threshold: float | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> DuplicateReport:
    """Find every two images of a directory that `embed` wrote whose features have a cosine of at
    least `threshold`. By default it is chosen from the data: pairs count that are far closer to
    each other than is usual in it. `out` gets report.html and duplicates.json.

    >>> from vitrail import embed
    >>> index = embed("pets-model", "photos/", out="vectors")
    >>> len(duplicates("vectors", threshold=1))
    0
    """
    folder = Path(directory)
    if read_manifest(folder).output != "pooled":
        raise UserError(f"{folder}: holds tokens, but duplicates are found by pooled features")
    with writing_results(out, "duplicates", (PAGE, FACTS), overwrite=overwrite) as draft:
        found = find_duplicates(folder, threshold=threshold)
        limit = (found.threshold, found.threshold_source)
        report = DuplicateReport(str(directory), found.pairs, *limit)
        if draft is not None:
            report.save_report(draft, FACTS)
    return report
