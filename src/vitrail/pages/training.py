"""The reports of training runs, with labels and without: curves, mistakes, the data, the recipe."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.pages.charts import Chart, line_chart
from vitrail.pages.classification import (
    Example,
    by_class_section,
    classes_section,
    confusion_section,
    mistakes_section,
    skipped_section,
)
from vitrail.pages.curves import SHARES, training_curves
from vitrail.pages.render import Section, either, render, render_page
from vitrail.pages.translation import count, page_text

MAX_SHEETS = 12
PART = re.compile(r"([\d,]+) of ([\d,]+)")  # steps, of all of a run


@dataclass(frozen=True, kw_only=True)
class HeldOutScore:
    """The headline score of a split that chose nothing, with its 95 % interval."""

    split: str
    name: str
    value: float
    interval: tuple[float, float]
    images: int


@dataclass(frozen=True, kw_only=True)
class Classified:
    """What the best weights predict for the images of a split: `scores` by name, `classes` and
    `confusion` as in evaluation.json, `mistakes` and images `by_class` to show."""

    split: str
    images: int
    wrong: int
    multi_label: bool
    scores: Mapping[str, float]
    interval: tuple[float, float] | None  # of the accuracy
    classes: Sequence[Mapping[str, Any]]
    confusion: Any
    mistakes: Sequence[Example]
    by_class: Sequence[Example] = ()
    nonfinite: int = 0


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What every run tells: `model` in a few words, `lines` of metrics.jsonl, `warnings` that come
    before anything else, `stopped` where it was interrupted, `lr_finder` with lr, rates and losses
    of a learning rate range test, `augmented` a batch as the model saw it (data URIs)."""

    title: str
    model: str
    recipe: Mapping[str, Any]
    facts: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    broken: Mapping[str, str]
    best_step: int | None = None
    warnings: Sequence[str] = ()
    stopped: str | None = None
    lr_finder: Mapping[str, Any] | None = None
    augmented: Sequence[str] = field(default=(), repr=False)


def training_page(
    run: RunFacts,
    found: Classified | None,
    *,
    test: HeldOutScore | None = None,
    data_report: Markup | None = None,
) -> str:
    """The report of a run that learnt labels; `found` is None where no labelled image was there to
    judge by; `data_report` is what `data_report.data_body` gives."""
    data = str(run.recipe.get("data", ""))
    sections = [Section("curves", "Curves", _curves(run))]
    if found is not None:
        sections += [
            mistakes_section(
                {"Most confident": found.mistakes},
                images=found.images,
                wrong=found.wrong,
                multi_label=found.multi_label,
                root=data,
            )
        ]
        if found.confusion is not None:
            labels = [row["label"] for row in found.classes]
            sections.append(confusion_section(labels, found.confusion, examples=found.by_class))
        sections += [
            classes_section(found.classes, multi_label=found.multi_label, examples=found.by_class),
            by_class_section(found.by_class, root=data),
        ]
    sections += [
        Section("augmented", "Augmented images", _augmented(run)),
        skipped_section(run.broken),
        Section(
            "data",
            "Data",
            render("training_data.html", found=data_report, data=shlex.quote(data or "DATA")),
        ),
        Section("recipe", "Recipe", recipe_body(run.recipe)),
    ]
    cards = _cards(found, test)
    lead = render("training_lead.html", run=run, found=found, cards=cards, facts=_facts(run))
    return render_page(run.title, sections, kind="training report", lead=lead)


def pretraining_page(run: RunFacts, *, sheets: Mapping[int, str], rows: Sequence[str] = ()) -> str:
    """The report of a run that learnt without labels; `sheets` are images by step (data URIs), in
    `rows` of what was given, hidden and predicted."""
    steps = list(sheets)
    places = np.linspace(0, len(steps) - 1, MAX_SHEETS).round().astype(int)
    chosen = sorted({steps[place] for place in places if steps}, reverse=True)
    shown = {step: sheets[step] for step in chosen}
    sections = [
        Section("curves", "Curves", _curves(run)),
        Section(
            "predictions",
            "Masked patches and predictions",
            render("sheets.html", sheets=shown, rows=[page_text(row) for row in rows])
            if shown
            else Markup(),
        ),
        Section("augmented", "Augmented images", _augmented(run)),
        skipped_section(run.broken),
        Section("recipe", "Recipe", recipe_body(run.recipe)),
    ]
    lead = render("training_lead.html", run=run, found=None, cards=[], facts=_facts(run))
    return render_page(run.title, sections, kind="pre-training report", lead=lead)


def recipe_body(recipe: Mapping[str, Any]) -> Markup:
    """Reasons first, then every field under the name that `--set` knows."""
    run = page_text("run")
    groups: dict[str, dict[str, Any]] = {run: {}}
    for name, value in recipe.items():
        if isinstance(value, Mapping):
            groups[name] = dict(value)
        elif name != "reasons":
            groups[run][name] = value
    return render(
        "recipe.html",
        reasons=[str(reason) for reason in recipe.get("reasons", ())],
        groups={name: values for name, values in groups.items() if values},
    )


def finder_chart(found: Mapping[str, Any]) -> Chart:
    """Loss by learning rate, as the range test (arXiv:1506.01186) met it."""
    points = list(zip(found["rates"], found["losses"], strict=True))
    mark = min(points, key=lambda point: abs(np.log(point[0] / found["lr"])))
    return line_chart(
        page_text("Learning rate finder"),
        {page_text("smoothed loss"): points},
        x_label=page_text("learning rate"),
        log_x=True,
        from_zero=False,
        mark=mark,
        note=page_text("chosen: {}", f"{found['lr']:g}"),
    )


def _facts(run: RunFacts) -> dict[str, str]:
    """The facts of a run in the language of the page."""
    return {
        name: page_text("{} of {}", *part.groups()) if (part := PART.fullmatch(value)) else value
        for name, value in run.facts.items()
    }


def _curves(run: RunFacts) -> Markup:
    charts = training_curves(run.lines, run.best_step)
    if run.lr_finder is not None:
        charts.append(finder_chart(run.lr_finder))
    return render("curves.html", charts=charts)


def _augmented(run: RunFacts) -> Markup:
    return render("augmented.html", images=run.augmented) if run.augmented else Markup()


def _cards(found: Classified | None, test: HeldOutScore | None) -> list[dict[str, str]]:
    cards = []
    for name, value in (found.scores if found else {}).items():
        title, meaning = SHARES.get(name, (name, ""))
        shown = either(value, name in SHARES)
        cards.append(_card(page_text(title), shown, "", page_text(meaning)))
    if test is not None:
        low, high = (either(end, True) for end in test.interval)
        cards.append(
            _card(
                page_text("{} on {}", page_text(SHARES[test.name][0]), test.split),
                either(test.value, True),
                page_text("{} to {} (95% confidence)", low, high),
                page_text("{}, evaluated once, after training", count(test.images, "image")),
            )
        )
    return cards


def _card(title: str, value: str, note: str, meaning: str) -> dict[str, str]:
    return {"title": title, "value": value, "note": note, "meaning": meaning}
