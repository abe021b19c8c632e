"""How a finished run ended, kept so that resuming it opens no data and says the same again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.cli.display import tell
from vitrail.cli.output import say
from vitrail.core.errors import UserError
from vitrail.training.checkpoint import steps_in
from vitrail.training.recipe_file import NAME as RECIPE
from vitrail.weights.atomic import write_file
from vitrail.weights.native import is_native

NAME = "outcome.json"


def write_outcome(out: Path, facts: Mapping[str, Any]) -> None:
    """OUT/outcome.json, the last file that a run writes."""

    def fill(path: Path) -> None:
        path.write_text(json.dumps({**facts, "finished": state_of(out)}, indent=1) + "\n", "utf-8")

    write_file(out / NAME, fill, overwrite=True)


def read_outcome(out: Path) -> dict[str, Any] | None:
    """None where something is left to do: the run is not finished, its recipe was changed since, or
    results are missing."""
    try:
        facts: Any = json.loads((out / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    report = out / "report.html"
    if not isinstance(facts, dict) or facts.pop("finished", None) != state_of(out):
        return None
    if not report.is_file():
        return None
    for name in ("last", *(("best",) if facts.get("best") is not None else ())):
        if not is_native(out / name):
            raise UserError(
                f"{out / name}: missing, although the run is finished: copy it back, or train "
                "again with another --out"
            )
    return {**facts, "out": str(out), "report": str(report)}


def state_of(out: Path) -> list[str]:
    """What a finished run goes on from, were it resumed: its recipe and its last checkpoint."""
    recipe = hashlib.sha256((out / RECIPE).read_bytes()).hexdigest()
    return [recipe, *(path.name for path in steps_in(out / "steps")[-1:])]


def tell_finished(facts: Mapping[str, Any], *, json: bool) -> None:
    if not json:
        say(f"{facts['out']}: this run is finished, at step {facts['step']} of {facts['total']}")
    tell(facts, json=json)
