"""Cross-validation: a run for each fold, and what their scores are together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError, printable
from vitrail.core.json_text import plain_values, to_json
from vitrail.core.ranges import check_count
from vitrail.evaluation.intervals import t_interval
from vitrail.pages.runs import runs_page
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.report import report
from vitrail.tasks.run import Run
from vitrail.tasks.run_options import Observer, RunOptions
from vitrail.tasks.training_run import start_run
from vitrail.training.launcher import launched
from vitrail.training.progress import Progress
from vitrail.training.recipe_file import NAME
from vitrail.weights.atomic import write_file

FACTS = "folds.json"


@dataclass(frozen=True, kw_only=True, repr=False)
class CrossValidation(HtmlRecord):
    """The runs of all folds in OUT/fold-1, OUT/fold-2, …: each image was validated on once, by
    weights that never saw it. `mean` is of the folds' best scores, `interval` its 95 % interval by
    Student's t, which is a little too narrow, because the folds share training images; None if all
    folds have the same score, from which no interval follows."""

    out: Path
    runs: Sequence[Run]
    folds: int
    report: Path | None = None

    @property
    def stopped(self) -> bool:
        """Whether a signal ended one of the runs: the same call with resume=True continues."""
        return any(run.stopped for run in self.runs)

    @property
    def metric(self) -> str:
        return self.runs[0].metric

    @property
    def scores(self) -> list[float]:
        return [run.score for run in self.runs if run.score is not None]

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return t_interval(self.scores) if len(set(self.scores)) > 1 else None

    @property
    def headline(self) -> str:
        """
        In a few words, such as "accuracy 0.9731 (0.9662 to 0.9800 with 95% confidence), the mean of
        5 folds".
        """
        if self.mean is None:
            return "no fold was evaluated"
        low_high = self.interval
        between = "" if low_high is None else f" ({low_high[0]:.4f} to {low_high[1]:.4f} with 95%"
        between += " confidence)" if between else ""
        return f"{self.metric} {self.mean:.4f}{between}, the mean of {len(self.scores)} folds"

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain_values(
            {
                "out": str(self.out),
                "folds": self.folds,
                "stopped": self.stopped,
                "metric": self.metric,
                "mean": self.mean,
                "interval": self.interval,
                "report": None if self.report is None else str(self.report),
                "runs": [run.facts() for run in self.runs],
            }
        )

    def html(self) -> str:
        """The page: the mean, the folds' scores, and their curves over each other."""
        names = [str(run.out) for run in self.runs]
        return runs_page(report(*names).runs, summary=self.headline)

    def __repr__(self) -> str:
        return printable(f"CrossValidation({str(self.out)!r}: {self.headline})")


def cross_validate(options: RunOptions, observer: Observer) -> CrossValidation:
    """A run for each fold, one after another. A dry run is that of the first fold."""
    assert options.folds is not None
    check_count("folds", options.folds, at_least=2)
    if launched():
        raise UserError("folds are not for torchrun: use processes=N, which each fold has then")
    out = Path(options.out or f"runs/{Path(options.data).stem}")
    if options.dry_run:
        plan = start_run(fold_options(options, out, 1), observer)
        return CrossValidation(out=out, runs=(plan,), folds=options.folds)
    check_free(options, out)
    runs: list[Run] = []
    for fold in range(1, options.folds + 1):
        name = f"fold {fold} of {options.folds}"
        observer.show_step(Progress(0, 0, math.nan, 0.0, messages=(name,)))
        now = options if not runs else as_long_as(options, runs[0])
        runs.append(start_run(fold_options(now, out, fold), observer))
        if runs[-1].stopped:
            return CrossValidation(out=out, runs=tuple(runs), folds=options.folds)
    done = CrossValidation(out=out, runs=tuple(runs), folds=options.folds, report=out / PAGE)
    done.save_html(out / PAGE, overwrite=True)

    def fill(path: Path) -> None:
        path.write_text(to_json(done.facts(), indent=1) + "\n", encoding="utf-8")

    write_file(out / FACTS, fill, overwrite=True)
    return done


def fold_options(options: RunOptions, out: Path, fold: int) -> RunOptions:
    """Those of one fold. A budget of minutes is that of all folds."""
    resume: Any = "auto" if options.resume else False
    minutes = options.minutes
    if minutes is not None and options.folds is not None:
        minutes = minutes / options.folds
    return replace(
        options, out=str(out / f"fold-{fold}"), fold=fold, resume=resume, minutes=minutes
    )


def as_long_as(options: RunOptions, first: Run) -> RunOptions:
    """Where time decides, the first fold is measured, and the others have its schedule: scores of
    runs of different lengths say nothing together."""
    if options.minutes is None:
        return options
    schedule = asdict(first.recipe.schedule)
    places = {f"schedule.{name}": value for name, value in schedule.items()}
    return replace(options, minutes=None, set={**options.changes, **places})


def check_free(options: RunOptions, out: Path) -> None:
    """Refuse, before the first run, what the last one would overwrite."""
    if (out / NAME).exists():
        raise UserError(f"{out}: already contains a run: choose another directory for the folds")
    if options.resume is True and not (out / "fold-1" / NAME).is_file():
        raise UserError(f"{out}: no folds to resume here: give the directory of the folds")
    for name in (PAGE, FACTS):
        if not options.resume and (out / name).exists():
            raise UserError(f"{out / name}: already exists: choose another out directory")
