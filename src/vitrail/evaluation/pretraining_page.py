"""The report of a run that learns without labels, as HTML: curves, and what was hidden and
guessed."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.findings_page import PAGE, shown
from vitrail.evaluation import curves
from vitrail.evaluation.curves import curves_of
from vitrail.evaluation.judged_page import STYLE, facts_of, passed_over
from vitrail.evaluation.report_page import recipe_of

MOST_SHEETS = 12


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """A run in plain values. `pictures` are sheets by step; `rows` name what a sheet shows."""

    title: str
    recipe: Mapping[str, Any]
    facts: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    pictures: Mapping[int, Path]
    rows: Sequence[str]
    broken: Mapping[str, str]
    warning: str | None = None
    stopped: str | None = None


def pretraining_page(told: Pretraining) -> str:
    """The whole page."""
    parts = {
        "curves": ("Curves", curves_of(told.lines)),
        "pictures": ("Pictures", sheets(told)),
        "passed-over": ("Images passed over", passed_over(told.broken)),
        "recipe": ("Recipe", recipe_of(told.recipe)),
    }
    parts = {name: part for name, part in parts.items() if part[1]}
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in parts.items())
    sections = "".join(
        f'<section class="report" id="{name}"><h2>{title}</h2>\n{body}</section>\n'
        for name, (title, body) in parts.items()
    )
    warning = "".join(
        f'<p class="card caution">{shown(sentence)}</p>'
        for sentence in (told.stopped, told.warning)
        if sentence
    )
    head = (
        f'<header class="report"><h1>{shown(told.title)}</h1>{warning}'
        f"{facts_of(told.facts)}<nav>{links}</nav></header>\n"
    )
    body = f"<style>{STYLE}{curves.STYLE}</style>\n{head}{sections}"
    page = PAGE.format(title=f"{shown(told.title)}: pre-training report", body=body)
    return page.encode("utf-8", "backslashreplace").decode()


def sheets(told: Pretraining) -> str:
    """The last of them first; of many, some are spread over the run."""
    steps = list(told.pictures)
    if not steps:
        return ""
    places = np.linspace(0, len(steps) - 1, MOST_SHEETS).round().astype(int)
    chosen = {steps[place] for place in places}
    body = f'<p class="soft">From top to bottom: {", ".join(told.rows)}.</p>'
    for step in sorted(chosen, reverse=True):
        data = b64encode(told.pictures[step].read_bytes()).decode()
        body += (
            f"<figure><figcaption>step {step:,}</figcaption>"
            f'<div class="sideways"><img alt="pictures at step {step}" '
            f'src="data:image/png;base64,{data}"></div></figure>'
        )
    return body
