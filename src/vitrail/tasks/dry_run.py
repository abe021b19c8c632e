"""What a task would do, for those who want to know before it begins."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DryRun:
    """Everything was checked, nothing was computed or written. `details` says what the
    verb would do with `out`."""

    verb: str
    out: str
    details: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"dry_run": True, "verb": self.verb, "out": self.out, **self.details}

    def __repr__(self) -> str:
        details = ", ".join(f"{name} {value}" for name, value in self.details.items())
        return f"DryRun({self.verb} to {self.out}: {details})"
