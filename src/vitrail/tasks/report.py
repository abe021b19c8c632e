"""`vitrail.report`: training runs side by side, with their scores, curves and settings."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.json_text import plain_values
from vitrail.pages.render import number
from vitrail.pages.runs import (
    RunSummary,
    best_values,
    format_setting,
    runs_page,
    settings_that_differ,
)
from vitrail.tasks.html_record import PAGE, HtmlRecord
from vitrail.tasks.results import writing_results
from vitrail.training.log import Log
from vitrail.training.recipe_file import NAME as RECIPE
from vitrail.training.recipe_file import as_plain_values, read_recipe

FACTS = "runs.json"


@dataclass(frozen=True, repr=False)
class RunComparison(HtmlRecord):
    """Runs by name, the best value of each of their scores, and the settings that differ."""

    runs: tuple[RunSummary, ...]

    @property
    def settings(self) -> dict[str, list[Any]]:
        """Fields of the recipes that differ, with the value of each run."""
        return dict(settings_that_differ(self.runs))

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        runs = [
            {
                "run": run.name,
                **run.facts,
                "best": {name: asdict(best) for name, best in best_values(run).items()},
            }
            for run in self.runs
        ]
        return plain_values({"runs": runs, "settings": self.settings})

    def html(self) -> str:
        """The page: scores, curves over each other, settings that differ."""
        return runs_page(self.runs)

    def __repr__(self) -> str:
        return "\n".join(["RunComparison", *self.score_lines()])

    def score_lines(self) -> list[str]:
        """The state and the best values of each run."""
        lines = []
        for run in self.runs:
            best = best_values(run).items()
            scores = ", ".join(f"{name} {number(one.value)} ({one.place})" for name, one in best)
            lines.append(f"{run.name}: {run.facts['state']}; best {scores or 'unknown'}")
        return lines

    def text(self) -> str:
        """What a person reads in a terminal."""
        lines = self.score_lines()
        lines += [
            f"  {name}: {' | '.join(map(format_setting, values))}"
            for name, values in self.settings.items()
        ]
        return "\n".join(lines)


def report(
    *runs: str | Path | Sequence[str | Path], out: str | Path | None = None, overwrite: bool = False
) -> RunComparison:
    """Compare training runs by their directories: best scores, curves over each other, and the
    settings that differ. Directories are given one by one or as a list. `out` gets report.html and
    runs.json.

    >>> report("runs/no-such-run")
    Traceback (most recent call last):
    vitrail.core.errors.UserError: runs/no-such-run: must be the directory of a training run, with \
recipe.yaml and metrics.jsonl
    """
    names = list(_run_names(runs))
    if not names:
        raise UserError("report needs at least one run directory, got none")
    if len({Path(name).resolve() for name in names}) < len(names):
        raise UserError("a run was given twice: name each run directory once")
    with writing_results(out, "report", (PAGE, FACTS), overwrite=overwrite) as draft:
        found = RunComparison(tuple(_summary(Path(name), name) for name in names))
        if draft is not None:
            found.save_report(draft, FACTS)
    return found


def _run_names(runs: Iterable[Any]) -> Iterator[str]:
    for run in runs:
        if isinstance(run, str | Path):
            yield str(run).rstrip("/") or "/"
        elif isinstance(run, list | tuple):
            yield from _run_names(run)
        else:
            raise UserError(f"runs must be directories, got {type(run).__name__}")


def _summary(run: Path, name: str) -> RunSummary:
    """A run as its directory tells it, finished or not."""
    if not (run / RECIPE).is_file():
        raise UserError(
            f"{name}: must be the directory of a training run, with {RECIPE} and metrics.jsonl"
        )
    lines = Log.read(run)
    finished = (run / "outcome.json").is_file()
    step = max((line["step"] for line in lines), default=0)
    facts = {"state": "finished" if finished else "not finished", "steps": step}
    return RunSummary(name, as_plain_values(read_recipe(run / RECIPE)), lines, facts)
