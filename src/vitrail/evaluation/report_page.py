"""The report of a run as HTML: one file with its drawings and pictures inside, and nothing that
must run."""

import shlex
from collections.abc import Mapping
from typing import Any

from vitrail.data.findings import count
from vitrail.data.findings_page import PAGE, shown
from vitrail.evaluation import curves
from vitrail.evaluation.classify import score_outputs
from vitrail.evaluation.curves import SHARES, curves_of, percent
from vitrail.evaluation.intervals import wilson_interval
from vitrail.evaluation.judged_page import STYLE, classes, confusions, facts_of, passed_over, worst
from vitrail.evaluation.report import Report


def report_page(report: Report) -> str:
    """The whole page."""
    parts = {
        "curves": ("Curves", curves_of(report.lines, report.best_step)),
        "confusions": ("Confusions", confusions(report)),
        "classes": ("Classes", classes(report)),
        "mistakes": (
            "Worst mistakes",
            worst(report, report.source, str(report.recipe.get("data", ""))),
        ),
        "passed-over": ("Images passed over", passed_over(report.broken)),
        "data": ("The data", doctor(report)),
        "recipe": ("Recipe", recipe_of(report.recipe)),
    }
    told = {name: part for name, part in parts.items() if part[1]}
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in told.items())
    # beside the other sections, not in one: the findings bring their own style
    found = {"data": report.findings.html() if report.findings else ""}
    sections = (
        f'<section class="report" id="{name}"><h2>{title}</h2>\n{body}</section>\n'
        f"{found.get(name, '')}\n"
        for name, (title, body) in told.items()
    )
    head = f'<header class="report">{heading(report)}<nav>{links}</nav></header>\n'
    body = f"<style>{STYLE}{curves.STYLE}</style>\n{head}{''.join(sections)}"
    page = PAGE.format(title=f"{shown(report.title)}: training report", body=body)
    # a name that is not valid Unicode must never keep the page from being written
    return page.encode("utf-8", "backslashreplace").decode()


def heading(report: Report) -> str:
    data = shown(str(report.recipe.get("data", "?")))
    judged = f", judged on {count(report.images, 'image')} of <code>{shown(report.split)}</code>"
    scores = score_outputs(report)
    cards = [
        card(name, value, *SHARES.get(name, (name, "")))
        for name, value in (scores.values if scores else {}).items()
    ]
    if report.test is not None:
        title = f"{SHARES[report.test.name][0]} on {report.test.split}"
        meaning = (
            f"{percent(report.test.interval[0])} to {percent(report.test.interval[1])} with 95% "
            f"confidence; {count(report.test.images, 'image')}, judged once, at the end"
        )
        cards.append(card(report.test.name, report.test.value, title, meaning))
    return (
        f"<h1>{shown(report.title)}</h1>{warnings(report)}<p>{shown(report.model)}. Trained on "
        f"<code>{data}</code>{judged if report.images else ''}.</p>\n"
        f'<div class="cards">{"".join(cards)}</div>\n{certainty(report)}'
        f"{facts_of(report.facts)}\n"
    )


def card(name: str, value: float, title: str, meaning: str) -> str:
    told = percent(value) if name in SHARES else curves.short_number(value)
    return (
        f'<div class="card score">{shown(title)}<b>{told}</b>'
        f'<small class="soft">{shown(meaning)}</small></div>'
    )


def warnings(report: Report) -> str:
    """What must be known before anything below is believed."""
    sentences = [*([report.stopped] if report.stopped else []), *report.warnings]
    return "".join(f'<p class="card caution">{shown(sentence)}</p>\n' for sentence in sentences)


def certainty(report: Report) -> str:
    """How far the scores can be trusted."""
    if not report.targets.any():
        return "<p>There is no labelled image to judge the model by.</p>" * (not report.stopped)
    notes = []
    if report.nonfinite:
        notes.append(
            f"<b>For {count(report.nonfinite, 'image')} the model's answer is not a number: "
            "training went astray, a lower learning rate helps.</b>"
        )
    if not report.multi_label:
        right = report.images - len(report.wrong)
        low, high = wilson_interval(right, report.images)
        notes.append(
            f"{right:,} of {count(report.images, 'image')} are right; on other images like these "
            f"the accuracy lies between {percent(low)} and {percent(high)}, with 95% confidence."
        )
    notes.append(
        f"The weights were chosen by these images (<code>{shown(report.split)}</code>), so expect "
        "a little less on new ones."
    )
    return f'<p class="soft">{" ".join(notes)}</p>\n'


def doctor(report: Report) -> str:
    if report.findings is None:
        data = shown(shlex.quote(str(report.recipe.get("data", "DATA"))))
        return (
            "<p>The data doctor finds broken files, duplicates, images that are in two parts at "
            f"once, and doubtful labels: <code>vitrail doctor {data} --out findings</code></p>\n"
        )
    return "<p>What the data doctor found.</p>\n"


def recipe_of(recipe: Mapping[str, Any]) -> str:
    """Reasons first, then every field under the name that `--set` knows."""
    reasons = "".join(f"<li>{shown(str(why))}</li>" for why in recipe.get("reasons", ()))
    groups: dict[str, dict[str, Any]] = {"": {}}
    for name, value in recipe.items():
        if isinstance(value, Mapping):
            groups[name] = dict(value)
        elif name != "reasons":
            groups[""][name] = value
    tables = "".join(recipe_table(name, values) for name, values in groups.items() if values)
    chosen = f"<p>Why it was chosen so:</p><ul>{reasons}</ul>\n" if reasons else ""
    return f'{chosen}<div class="recipe">{tables}</div>\n'


def recipe_table(group: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{shown(str(name))}</td><td><code>{shown(plain(value))}</code></td></tr>"
        for name, value in values.items()
    )
    return f"<table><caption>{shown(group or 'run')}</caption>{rows}</table>\n"


def plain(value: Any) -> str:
    """
    >>> plain((0.9, 0.999)), plain(None), plain({"a": True})
    ('0.9, 0.999', 'none', 'a: yes')
    """
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case Mapping():
            return ", ".join(f"{name}: {plain(each)}" for name, each in value.items()) or "none"
        case list() | tuple():
            return ", ".join(plain(each) for each in value) or "none"
    return str(value)
