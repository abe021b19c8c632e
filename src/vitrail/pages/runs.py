"""Several runs side by side: scores, curves over each other, and the settings that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.pages.charts import SERIES, Chart, Point, line_chart
from vitrail.pages.curves import (
    SHARES,
    finite,
    is_share,
    logged_names,
    points_of,
    title_of,
    with_waiting_share,
)
from vitrail.pages.render import Section, either, render, render_page, setting
from vitrail.pages.translation import count, page_text, translated_sentence

MAX_RUNS = len(SERIES)  # in one chart: more lines than colours cannot be told apart
LOWER = ("loss", "val_loss")  # the lower the better


@dataclass(frozen=True)
class RunSummary:
    """A run by name: its recipe, the lines of its metrics.jsonl, and facts such as its state."""

    name: str
    recipe: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]] = field(repr=False)
    facts: Mapping[str, str | int] = field(default_factory=dict)


def runs_page(runs: Sequence[RunSummary], *, summary: str | None = None) -> str:
    """The page of one run or several; names must differ. `summary` stands above them all."""
    differing = settings_that_differ(runs)
    rows = [(name, [format_setting(value) for value in values]) for name, values in differing]
    sections = [
        Section("scores", "Scores", render("run_scores.html", **score_table(runs))),
        Section(
            "curves",
            "Curves",
            render("run_curves.html", charts=run_charts(runs), shown=MAX_RUNS, total=len(runs)),
        ),
        Section(
            "settings",
            "Settings that differ",
            render("run_settings.html", names=[run.name for run in runs], rows=rows),
        ),
    ]
    title = runs[0].name if len(runs) == 1 else count(len(runs), "run")
    lead = (
        None
        if summary is None
        else render("sentence.html", text=translated_sentence(summary), code=None)
    )
    if any(name == "data" for name, _ in differing):
        text = page_text("the runs used different data: scores are not comparable")
        lead = render("note.html", text=text)
    return render_page(title, sections, kind="training runs", lead=lead)


@dataclass(frozen=True)
class BestValue:
    """The best of a score, at the first step that had it, and the epoch if the run logged it."""

    value: float
    step: int
    epoch: float | None = None

    @property
    def place(self) -> str:
        """
        >>> BestValue(0.9, 1200, 3.0).place
        'step 1,200, epoch 3'
        """
        epoch = "" if self.epoch is None else f", epoch {self.epoch:.4g}"
        return f"step {self.step:,}{epoch}"

    @property
    def page_place(self) -> str:
        """The same in the language of the page."""
        step = page_text("step {}", f"{self.step:,}")
        if self.epoch is None:
            return step
        return f"{step}, {page_text('epoch {}', f'{self.epoch:.4g}')}"


def best_values(run: RunSummary) -> dict[str, BestValue]:
    """The best of each score, and of each loss."""
    epochs = {line["step"]: line.get("epoch") for line in run.lines}
    best = {}
    for name in (*SHARES, "val_loss", "loss"):
        points = finite(points_of(run.lines, name))
        if points:
            lowest = 1 if name in LOWER else -1
            step, value = min(points, key=lambda point: (lowest * point[1], point[0]))
            best[name] = BestValue(value, int(step), epochs.get(step))
    return best


def score_table(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Heads, and a row for each run whose cells say whether they are the best of their column."""
    best = {run.name: best_values(run) for run in runs}
    scores = {run: {name: one.value for name, one in found.items()} for run, found in best.items()}
    names = [
        name for name in (*SHARES, "val_loss", "loss") if any(name in s for s in scores.values())
    ]
    facts = list(dict.fromkeys(name for run in runs for name in run.facts))
    winners = {
        name: (min if name in LOWER else max)(s[name] for s in scores.values() if name in s)
        for name in names
    }
    rows = [
        {
            "name": run.name,
            "facts": [_fact_text(run.facts.get(name, "")) for name in facts],
            "scores": [
                (
                    either(scores[run.name].get(name), is_share(name)),
                    len(runs) > 1 and scores[run.name].get(name) == winners[name],
                    best[run.name][name].page_place if name in best[run.name] else "",
                )
                for name in names
            ],
        }
        for run in runs
    ]
    titles = [
        page_text("training loss") if name == "loss" else title_of(name).lower() for name in names
    ]
    heads = [page_text("best {}", title) for title in titles]
    return {"heads": heads, "fact_heads": facts, "rows": rows}


def _fact_text(value: str | int) -> str:
    return f"{value:,}" if isinstance(value, int) else page_text(value)


def run_charts(runs: Sequence[RunSummary]) -> list[Chart]:
    """A chart for each value that was logged, with a line for each run."""
    logged = {run.name: [with_waiting_share(line) for line in run.lines] for run in runs[:MAX_RUNS]}
    names = logged_names([line for lines in logged.values() for line in lines])
    charts = []
    for name in names:
        series: dict[str, list[Point]] = {
            run: points for run, lines in logged.items() if finite(points := points_of(lines, name))
        }
        if series:
            title = page_text("Training loss") if name == "loss" else title_of(name)
            charts.append(line_chart(title, series, share=is_share(name)))
    return charts


def settings_that_differ(runs: Sequence[RunSummary]) -> list[tuple[str, list[Any]]]:
    """Fields of the recipes, by the name that `--set` knows, whose values are not all the same.

    >>> recipes = ({"lr": rate, "optimiser": {"kind": "adamw"}} for rate in (1, 2))
    >>> settings_that_differ([RunSummary("run", recipe, []) for recipe in recipes])
    [('lr', [1, 2])]
    >>> recipes = ({"fields": {"stem": []}}, {"fields": {}})
    >>> settings_that_differ([RunSummary("run", recipe, []) for recipe in recipes])
    [('fields.stem', [[], None])]
    """
    flat = [_flatten(run.recipe) for run in runs]
    names = dict.fromkeys(name for recipe in flat for name in recipe)
    rows = [(name, [recipe.get(name) for recipe in flat]) for name in names]
    return [(name, values) for name, values in rows if len(set(map(format_setting, values))) > 1]


def format_setting(value: Any) -> str:
    """What a recipe does not set, or does not have, is a dash.

    >>> format_setting(None), format_setting(0.5)
    ('–', '0.5')
    """
    return "–" if value is None else setting(value)


def _flatten(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        elif name != "reasons":
            flat[f"{prefix}{name}"] = value
    return flat
