"""What a task would do: the record of a dry run."""

from dataclasses import dataclass
from typing import Any

from vitrail.core.html_text import html_table
from vitrail.core.json_text import plain_values


@dataclass(frozen=True)
class DryRun:
    """Everything was checked, nothing was computed or written. `details` describe what the verb
    would write to `out`."""

    verb: str
    out: str
    details: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain_values({"dry_run": True, "verb": self.verb, "out": self.out, **self.details})

    def __repr__(self) -> str:
        details = ", ".join(f"{name} {value}" for name, value in self.details.items())
        return f"DryRun({self.verb} to {self.out}: {details})"

    def _repr_html_(self) -> str:
        return html_table(f"Dry run of {self.verb}", {"out": self.out, **self.details})
