"""What a task would do: the record of a dry run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.core.html_text import html_table
from vitrail.core.json_text import plain_values


@dataclass(frozen=True)
class DryRun:
    """Everything was checked, nothing was computed or written. `details` describe what the verb
    would compute, and write to `out`."""

    verb: str
    out: str | None
    details: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain_values({"dry_run": True, "verb": self.verb, "out": self.out, **self.details})

    def __repr__(self) -> str:
        details = ", ".join(f"{name} {summarise(value)}" for name, value in self.details.items())
        where = "" if self.out is None else f" to {self.out}"
        return f"DryRun({self.verb}{where}: {details})"

    def _repr_html_(self) -> str:
        return html_table(f"Dry run of {self.verb}", {"out": self.out, **self.details})


def summarise(value: Any) -> Any:
    """A value for one line: of a list of records their number.

    >>> summarise([{"run": "a"}, {"run": "b"}]), summarise(["report.html"])
    (2, ['report.html'])
    """
    records = isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
    return len(value) if records else value


def plan_images(
    verb: str,
    names: tuple[str, str],
    images: Mapping[str, int],
    *,
    batch_size: int,
    out: str | Path | None,
    files: Sequence[str],
    details: Mapping[str, Any] | None = None,
) -> DryRun:
    """The dry run of a verb over images, given by how many there are of each split or kind;
    `names` are those of the model and of the data.

    >>> plan_images("probe", ("m", "d"), {"train": 9, "test": 3}, batch_size=4, out=None, files=())
    DryRun(probe: model m, data d, images {'train': 9, 'test': 3}, batches 4, files [])
    """
    batches = sum(math.ceil(count / batch_size) for count in images.values())
    model, data = names
    written = [] if out is None else list(files)
    facts: dict[str, Any] = {"model": model, "data": data, "images": dict(images)}
    facts |= {"batches": batches, **(details or {}), "files": written}
    return DryRun(verb, None if out is None else str(out), facts)
