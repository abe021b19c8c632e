"""The report of a run as HTML: one file with its drawings and pictures inside, and nothing that
must run."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from vitrail.data.findings import count
from vitrail.data.findings_page import PAGE, bar, shown
from vitrail.evaluate import curves
from vitrail.evaluate.curves import SHARES, confusion_map, confusion_table, curves_of, percent
from vitrail.evaluate.report import (
    ClassScore,
    Mistake,
    Report,
    class_scores,
    mistakes,
    most_confused,
    thumbnail,
)

MOST_CLASSES_IN_A_TABLE = 30
MOST_CONFUSED, MOST_MISTAKES, MOST_LABELS = 15, 24, 6
MOST_TRIED = 10 * MOST_MISTAKES  # mistakes whose picture is looked for
OPENED = 30  # rows that are shown without a click

STYLE = """
.report { --ink: #1d2730; --soft: #5d6b78; --line: #dfe5ea; --card: #fff; --accent: #2f75ad;
  --good: 46 125 79; --bad: 201 78 48; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); }
@media (prefers-color-scheme: dark) { .report { --ink: #e4e9ed; --soft: #9aa7b3; --line: #36424d;
  --card: #1c242b; --accent: #6db3e8; --good: 84 176 122; --bad: 228 108 80; } }
.report h1 { font-size: 2em; line-height: 1.2; margin: .6em 0 .1em; overflow-wrap: anywhere; }
.report h2 { font-size: 1.4em; margin: 2em 0 .3em; padding-top: .9em;
  border-top: 1px solid var(--line); }
.report p { margin: .3em 0 .8em; max-width: 50em; }
.report .soft { color: var(--soft); }
.report small, .report p.soft { font-size: .9em; }
.report code { font-size: .92em; overflow-wrap: anywhere; }
.report a { color: var(--accent); }
.report nav { display: flex; flex-wrap: wrap; gap: .2em 1.2em; margin: 1.2em 0 0; }
.report .cards { display: grid; gap: .8em; margin: 1.3em 0 .9em;
  grid-template-columns: repeat(auto-fill, minmax(min(18em, 100%), 1fr)); }
.report .card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .8em 1em; min-width: 0; }
.report .card.score { border-top: 4px solid var(--accent); }
.report .score b { display: block; font-size: 2.3em; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.report dl.facts { display: grid; gap: .7em 1.5em; margin: 1em 0;
  grid-template-columns: repeat(auto-fill, minmax(9em, 1fr)); }
.report dl.facts dt { color: var(--soft); font-size: .87em; }
.report dl.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.report figure { margin: 0; }
.report .scroll { overflow: auto; max-height: 44em; }
.report .sideways { overflow-x: auto; }
.report table { border-collapse: collapse; }
.report th { font-weight: 500; color: var(--soft); font-size: .87em; text-align: left; }
.report td, .report th { padding: .3em .9em .3em 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
.report .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.report table.wide { width: 100%; }
.report .wide thead th { position: sticky; top: 0; background: var(--page); z-index: 1; }
.report { --page: #f6f8fa; --bar: #7da7c9; }
@media (prefers-color-scheme: dark) { .report { --page: #12181d; --bar: #4d7da3; } }
.report .bar { display: block; height: .6em; margin-top: .45em; background: var(--bar);
  border-radius: 2px; min-width: 1px; }
.report .wide td:first-child, .report .wide th:first-child { padding-left: .8em; min-width: 7em; }
.report tr.marked td:first-child { box-shadow: inset 4px 0 rgb(var(--bad)); }
.report tr.marked .bar { background: rgb(var(--bad)); }
.report tfoot td { font-weight: 600; border-bottom: 0; }
.report .gallery { display: grid; gap: .8em;
  grid-template-columns: repeat(auto-fill, minmax(10.6em, 1fr)); }
.report .gallery .card { padding: .6em; }
.report .gallery img { display: block; width: 100%; height: 9.6em; object-fit: contain;
  border-radius: 4px; background: rgb(127 127 127 / .1); }
.report img.tiny { image-rendering: pixelated; }
.report .gallery figcaption { font-size: .87em; line-height: 1.4; margin-top: .5em;
  overflow-wrap: anywhere; }
.report .gallery div { display: grid; grid-template-columns: 3em 1fr; }
.report .wrong { color: rgb(var(--bad)); }
.report summary { cursor: pointer; margin-bottom: .6em; }
.report .recipe { columns: 26em; column-gap: 2em; }
.report .recipe table { width: 100%; break-inside: avoid; margin-bottom: 1.4em; }
.report .recipe caption { text-align: left; font-weight: 600; }
.report .recipe td:first-child { color: var(--soft); width: 45%; }
.report .recipe td { overflow-wrap: anywhere; }
@media print { .report .scroll { max-height: none; overflow: visible; } }
"""


def report_page(report: Report) -> str:
    """The whole page."""
    parts = {
        "curves": ("Curves", curves_of(report.lines)),
        "confusions": ("Confusions", confusions(report)),
        "classes": ("Classes", classes(report)),
        "mistakes": ("Worst mistakes", worst(report)),
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
    model, data = (shown(str(report.recipe.get(key, "?"))) for key in ("model", "data"))
    judged = f"{count(report.images, 'image')} of <code>{shown(report.part)}</code>"
    cards = ""
    for name, value in (report.scores.values if report.scores else {}).items():
        title, meaning = SHARES.get(name, (name, ""))
        told = percent(value) if name in SHARES else curves.short_number(value)
        cards += (
            f'<div class="card score">{shown(title)}<b>{told}</b>'
            f'<small class="soft">{meaning}</small></div>'
        )
    return (
        f"<h1>{shown(report.title)}</h1><p><code>{model}</code> trained on <code>{data}</code>, "
        f'judged on {judged}.</p>\n<div class="cards">{cards}</div>\n{certainty(report)}'
        f"{facts_of(report.facts)}\n"
    )


def facts_of(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<div><dt>{shown(name)}</dt><dd>{shown(told)}</dd></div>" for name, told in facts.items()
    )
    return f'<dl class="facts">{rows}</dl>'


def certainty(report: Report) -> str:
    """How far the scores can be trusted."""
    if report.scores is None:
        return "<p>There is no labelled image to judge the model by.</p>"
    notes = []
    if report.not_numbers:
        notes.append(
            f"<b>For {count(report.not_numbers, 'image')} the model's answer is not a number: "
            "training went astray, a lower learning rate helps.</b>"
        )
    if not report.several:
        from scipy.stats import binomtest  # type: ignore[import-untyped]

        right = report.images - len(report.wrong)
        low, high = binomtest(right, report.images).proportion_ci(method="wilson")
        notes.append(
            f"{right:,} of {count(report.images, 'image')} are right; on other images like these "
            f"the accuracy lies between {percent(low)} and {percent(high)}, with 95% confidence."
        )
    notes.append(
        "If these images also chose which weights are the best, expect a little less on new ones."
    )
    return f'<p class="soft">{" ".join(notes)}</p>\n'


def confusions(report: Report) -> str:
    if report.several or not report.images:
        return ""
    if len(report.labels) <= MOST_CLASSES_IN_A_TABLE:
        return (
            "<p>How many images of each class (rows) were said to be what (columns). Green is "
            "right, red is wrong; the stronger the colour, the larger the share of the row.</p>\n"
            '<div class="sideways" tabindex="0">'
            f"{confusion_table(report.confusion, report.labels)}</div>\n"
        )
    rows = "".join(
        f'<tr><td>{shown(pair.truth)}</td><td>{shown(pair.said)}</td><td class="number">'
        f'{pair.images:,}</td><td class="number">{percent(pair.share)}</td></tr>'
        for pair in most_confused(report, MOST_CONFUSED)
    )
    listed = wide_table(("these images", "were said to be", "#images", "#share of the class"), rows)
    return (
        f"{f'<p>The most frequent confusions:</p>{listed}' if rows else no_mistake(report)}"
        "<p>All classes at once. Rows are the truth, columns what was said; blue is right, red is "
        "wrong, and the stronger the colour, the larger the share of the row.</p>"
        f"{confusion_map(report.confusion, report.labels)}\n"
    )


def classes(report: Report) -> str:
    """A row for each class, in their order."""
    if report.scores is None:
        return ""
    rows = class_scores(report)
    marked = sum(row.marked for row in rows)
    key = "average precision" if report.several else "F1"
    worst_told = f" Marked red: the lowest {key}." if marked else ""
    average = ("#average precision",) if report.several else ()
    heads = ("class", "#images", "#precision", "#recall", "#F1", *average, "")
    explained = (
        " Average precision: how well the images of a class are put before all others."
        if report.several
        else ""
    )
    body = "".join(class_row(row, report.several) for row in rows)
    return (
        "<p>Precision: of the images said to be of a class, the share that are. Recall: of the "
        "images of a class, the share that were found. F1: their harmonic mean, high only where "
        f"both are.{explained} A dash: there is nothing to divide by.{worst_told}</p>\n"
        f"{wide_table(heads, body, mean_row(rows, report.several))}"
    )


def class_row(row: ClassScore, several: bool) -> str:
    values = [row.precision, row.recall, row.f1, *([row.average_precision] if several else [])]
    cells = "".join(f'<td class="number">{dash(value)}</td>' for value in values)
    length = 0 if math.isnan(values[-1]) else round(1000 * values[-1])
    mark = ' class="marked"' if row.marked else ""
    return (
        f"<tr{mark}><td>{shown(row.label)}</td>"
        f'<td class="number">{row.images:,}</td>{cells}'
        f'<td style="width:25%">{bar(length, 1000)}</td></tr>\n'
    )


def mean_row(rows: Sequence[ClassScore], several: bool) -> str:
    """Over classes that have images; one that is never said counts with a precision of 0."""
    present = [row for row in rows if row.images]
    columns = [
        [row.precision for row in present],
        [row.recall for row in present],
        [row.f1 for row in present],
        *([[row.average_precision for row in present]] if several else []),
    ]
    cells = "".join(
        f'<td class="number">{dash(float(np.nan_to_num(column).mean()))}</td>' for column in columns
    )
    images = sum(row.images for row in rows)
    return f'<tr><td>mean of classes</td><td class="number">{images:,}</td>{cells}<td></td></tr>'


def wide_table(heads: Sequence[str], rows: str, foot: str = "") -> str:
    """As wide as the page, scrolled where it is long; "#" begins the head of numbers."""
    cells = "".join(
        f'<th scope="col" class="{"number" if head.startswith("#") else "text"}">'
        f"{head.removeprefix('#')}</th>"
        for head in heads
    )
    return (
        f'<div class="scroll" tabindex="0"><table class="wide"><thead><tr>{cells}</tr></thead>\n'
        f"<tbody>{rows}</tbody><tfoot>{foot}</tfoot></table></div>\n"
    )


def dash(value: float) -> str:
    return "–" if math.isnan(value) else percent(value)


def worst(report: Report) -> str:
    if report.scores is None:
        return ""
    if not len(report.wrong):
        return no_mistake(report)
    cards = list(islice(mistake_cards(report), MOST_MISTAKES))
    of = f"{len(report.wrong):,} of {count(report.images, 'image')}"
    if not cards:
        return f"<p>{of} are answered wrongly, but none of their pictures can be read now.</p>\n"
    if len(cards) == len(report.wrong):
        which = "The ones the model was surest of come first."
    else:
        which = f"These are the {len(cards)} that the model was surest of."
    red = "Red: said but not there, or there but missed. " if report.several else ""
    return (
        f"<p>{of} are answered wrongly. {which} {red}In percent: the probability that the model "
        "gives. They are worth a look: sometimes it is the label that is wrong.</p>\n"
        f'<div class="gallery">{"".join(cards)}</div>\n'
    )


def no_mistake(report: Report) -> str:
    return f"<p>There is no mistake on {count(report.images, 'image')}.</p>\n"


def mistake_cards(report: Report) -> Iterator[str]:
    for mistake in islice(mistakes(report), MOST_TRIED):
        uri = thumbnail(report.source, mistake.index)
        if uri is not None:
            yield mistake_card(report, mistake, uri)


def mistake_card(report: Report, mistake: Mistake, uri: str) -> str:
    truth = {label for label, _ in mistake.truth}
    said = {label for label, _ in mistake.said}
    name = report.source.name(mistake.index)
    # as seen from the data set
    short = shown(name.removeprefix(f"{str(report.recipe.get('data', '')).rstrip('/')}/"))
    tiny = ' class="tiny"' if uri.startswith("data:image/png") else ""
    return (
        f'<figure class="card"><img{tiny} src="{uri}" alt="{short}"><figcaption>'
        f'<div><span class="soft">said</span><span>{told_labels(mistake.said, truth)}</span></div>'
        f'<div><span class="soft">truth</span><span>'
        f"{told_labels(mistake.truth, said if report.several else truth)}</span></div>"
        f'<code title="{shown(name)}">{short}</code></figcaption></figure>\n'
    )


def told_labels(labels: Sequence[tuple[str, float]], other: set[str]) -> str:
    """Labels with probabilities; those that the other side does not have are wrong, and first."""
    ranked = sorted(labels, key=lambda named: named[0] in other)
    told = [
        f'<b class="{"fine" if label in other else "wrong"}">{shown(label)}</b> {percent(chance)}'
        for label, chance in ranked[:MOST_LABELS]
    ]
    more = [f"and {len(labels) - MOST_LABELS} more"] if len(labels) > MOST_LABELS else []
    return "<br>".join([*told, *more]) or "nothing"


def passed_over(broken: Mapping[str, str]) -> str:
    """Every image that was left out, by name."""
    if not broken:
        return "<p>None of those that the run read.</p>\n"
    rows = "".join(
        f"<tr><td><code>{shown(name)}</code></td><td>{shown(reason)}</td></tr>\n"
        for name, reason in sorted(broken.items())
    )
    opened = " open" if len(broken) <= OPENED else ""
    return (
        f"<details{opened}><summary>{count(len(broken), 'image')} could not be read; the "
        f"run went on without</summary>\n{wide_table(('image', 'reason'), rows)}</details>\n"
    )


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
