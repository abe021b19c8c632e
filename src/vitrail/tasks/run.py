"""`Run`: what came of a training run, as train, pretrain and resume return it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from vitrail.core.broken import BrokenImage, list_broken
from vitrail.core.errors import UserError, printable
from vitrail.core.json_text import plain_values
from vitrail.training.checkpoint import steps_in
from vitrail.training.log import Log
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_file import NAME as RECIPE
from vitrail.training.recipe_file import as_plain_values, read_recipe
from vitrail.training.task import Outcome
from vitrail.weights.atomic import write_file
from vitrail.weights.native import is_native

REPORT, OUTCOME = "report.html", "outcome.json"
REQUEUE = "requeue.json"  # there while a run that a scheduler stopped waits to go on
SCHEDULER_SIGNALS = ("SIGTERM", "SIGUSR1")


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """A training run in the directory `out`: the checkpoints `best` and `last`, the `report`, and
    how it ended. `metric` names the score that chose the best weights, `scores` are all of that
    evaluation, `test` those of a test split, and `broken` the images that could not be used.
    """

    out: Path
    recipe: Recipe
    step: int
    total: int
    stopped: bool = False  # by a signal, before its end: `vitrail.resume(run.out)` continues
    stopped_by: str | None = None  # the signal: SIGINT, SIGTERM or SIGUSR1
    metric: str = ""
    score: float | None = None
    scores: Mapping[str, float]
    best_step: int = 0
    best: Path | None = None
    last: Path | None = None
    report: Path | None = None
    test: Mapping[str, Any] | None = None
    broken: Sequence[BrokenImage] = ()
    notes: Sequence[str] = ()
    plan: Sequence[str] = ()  # of a dry run: nothing else came of it
    was_finished: bool = False  # before it was resumed

    @property
    def needs_requeue(self) -> bool:
        """Whether a scheduler stopped it: queued again, the same command goes on."""
        return self.stopped_by in SCHEDULER_SIGNALS

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of OUT/metrics.jsonl."""
        return Log.read(self.out)

    def facts(self) -> dict[str, Any]:
        """What `--json` prints: the run in plain values; of a dry run its recipe."""
        if self.plan:
            return plain_values(as_plain_values(self.recipe))
        paths = {
            name: None if (path := getattr(self, name)) is None else str(path)
            for name in ("best", "last", "report")
        }
        facts = {
            "out": str(self.out),
            "step": self.step,
            "total": self.total,
            "stopped": self.stopped,
            "stopped_by": self.stopped_by,
            "metric": self.metric,
            "score": self.score,
            "scores": dict(self.scores),
            "best_step": self.best_step,
            **paths,
            "test": self.test,
            "broken": [asdict(one) for one in self.broken],
            "notes": list(self.notes),
        }
        return plain_values(facts)

    @property
    def headline(self) -> str:
        """How it ended, in a few words, such as "accuracy 0.9812 at step 300 of 400"."""
        if self.plan:
            return f"dry run of {self.total:,} steps"
        if self.score is None:
            return f"step {self.step:,} of {self.total:,}, not evaluated"
        stopped = f", interrupted at step {self.step:,}" if self.stopped else ""
        return (
            f"{self.metric} {self.score:.4f} at step {self.best_step:,} of {self.total:,}{stopped}"
        )

    def __repr__(self) -> str:
        return printable(f"Run({str(self.out)!r}: {self.headline})")

    def _repr_html_(self) -> str:
        paths = (("best", self.best), ("last", self.last), ("report", self.report))
        links = "".join(
            f'<li>{name}: <a href="{escape(str(path))}">{escape(str(path))}</a></li>'
            for name, path in paths
            if path is not None
        )
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return (
            f"<p><b>{escape(str(self.out))}</b>: {escape(self.headline)}</p><ul>{links}{notes}</ul>"
        )

    def save_html(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Copy the report to another file."""
        report = self.report
        if report is None:
            raise UserError(f"{self.out}: this run has no report")
        return write_file(Path(path), lambda draft: _copy(report, draft), overwrite=overwrite)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def ended_run(
    out: Path, recipe: Recipe, outcome: Outcome, *, notes: Sequence[str] = (), test: Any = None
) -> Run:
    """The record of a run that has just ended."""
    state, report = outcome.run_state, out / REPORT
    return Run(
        out=out,
        recipe=recipe,
        step=outcome.step,
        total=outcome.total,
        stopped=outcome.stopped,
        stopped_by=outcome.stopped_by,
        metric=state.metric,
        score=state.best,
        scores=state.best_scores,
        best_step=state.best_step,
        best=_checkpoint(out / "best"),
        last=_checkpoint(out / "last"),
        report=report if report.exists() else None,
        test=test,
        broken=list_broken(state.broken),
        notes=tuple(notes),
    )


def _checkpoint(path: Path) -> Path | None:
    return path if is_native(path) else None


def run_of(facts: Mapping[str, Any], out: Path, **more: Any) -> Run:
    """A run from its `facts`, in the directory where it is now."""
    paths: dict[str, Any] = {
        name: out / Path(facts[name]).name if facts[name] is not None else None
        for name in ("best", "last", "report")
    }
    plain = {name: value for name, value in facts.items() if name not in ("out", *paths)}
    plain["broken"] = tuple(BrokenImage(**one) for one in facts["broken"])
    return Run(out=out, recipe=read_recipe(out / RECIPE), **paths, **plain, **more)


def write_outcome(run: Run) -> None:
    """OUT/outcome.json, the last file that a run writes."""
    facts = {**run.facts(), "finished": _state_of(run.out)}

    def fill(path: Path) -> None:
        path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    write_file(run.out / OUTCOME, fill, overwrite=True)


def write_requeue(out: Path, outcome: Outcome) -> None:
    """OUT/requeue.json, for the script of a job: torchrun exits with 1 whatever its processes exit
    with."""
    facts = {"stopped_by": outcome.stopped_by, "step": outcome.step}

    def fill(path: Path) -> None:
        path.write_text(json.dumps(facts) + "\n", encoding="utf-8")

    write_file(out / REQUEUE, fill, overwrite=True)


def read_outcome(out: Path) -> Run | None:
    """The run in `out`, if it is finished; None where something is left to do: it is not at its
    end, its recipe was changed since, or its report is missing."""
    try:
        facts: Any = json.loads((out / OUTCOME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or facts.pop("finished", None) != _state_of(out):
        return None
    if not (out / REPORT).is_file():
        return None
    try:
        run = run_of(facts, out, was_finished=True)
    except (KeyError, TypeError):  # of an earlier version: its report is written again
        return None
    for path in (run.best, run.last):
        if path is not None and not is_native(path):
            raise UserError(
                f"{path}: missing, although the run is finished: copy it back, or train again in "
                "another directory"
            )
    return run


def _state_of(out: Path) -> list[str]:
    """What a finished run would continue from: its recipe and its last checkpoint."""
    recipe = hashlib.sha256((out / RECIPE).read_bytes()).hexdigest()
    return [recipe, *(path.name for path in steps_in(out / "steps")[-1:])]
