"""Parts of a page about what a model gets right and wrong, shared by the reports of training runs
and of evaluations."""

import math
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.outputs import Outputs
from vitrail.data.findings import count
from vitrail.data.findings_page import bar, shown
from vitrail.data.images import BadImage, decode
from vitrail.data.likeness import TINY
from vitrail.data.source import Source
from vitrail.evaluation.classify import (
    ClassMetrics,
    class_metrics,
    confusion_matrix,
    top_confusions,
)
from vitrail.evaluation.curves import confusion_map, confusion_table, percent
from vitrail.evaluation.mistakes import LabelledPrediction, Order, mistakes

MOST_CLASSES_IN_A_TABLE = 30
MOST_CONFUSED, MOST_MISTAKES, MOST_LABELS = 15, 24, 6
THUMBNAIL = 192  # pixels of the longer side
OPENED = 30  # rows that are shown without a click

FIRST = {
    "confidence": "The ones the model was surest of",
    "loss": "Those whose truth the model finds least likely",
}
THOSE = {
    "confidence": "that the model was surest of",
    "loss": "whose truth the model finds least likely",
}

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
.report .caution { border-left: 4px solid rgb(var(--bad)); font-weight: 600; }
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


def facts_of(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<div><dt>{shown(name)}</dt><dd>{shown(told)}</dd></div>" for name, told in facts.items()
    )
    return f'<dl class="facts">{rows}</dl>'


def confusions(outputs: Outputs) -> str:
    if outputs.multi_label or not outputs.images:
        return ""
    if len(outputs.labels) <= MOST_CLASSES_IN_A_TABLE:
        return (
            "<p>How many images of each class (rows) were said to be what (columns). Green is "
            "right, red is wrong; the stronger the colour, the larger the share of the row.</p>\n"
            '<div class="sideways" tabindex="0">'
            f"{confusion_table(confusion_matrix(outputs), outputs.labels)}</div>\n"
        )
    rows = "".join(
        f'<tr><td>{shown(pair.truth)}</td><td>{shown(pair.predicted)}</td><td class="number">'
        f'{pair.images:,}</td><td class="number">{percent(pair.share)}</td></tr>'
        for pair in top_confusions(outputs, MOST_CONFUSED)
    )
    listed = wide_table(("these images", "were said to be", "#images", "#share of the class"), rows)
    return (
        f"{f'<p>The most frequent confusions:</p>{listed}' if rows else no_mistake(outputs)}"
        "<p>All classes at once. Rows are the truth, columns what was said; blue is right, red is "
        "wrong, and the stronger the colour, the larger the share of the row.</p>"
        f"{confusion_map(confusion_matrix(outputs), outputs.labels)}\n"
    )


def classes(outputs: Outputs) -> str:
    """A row for each class, in their order."""
    if not outputs.targets.any():
        return ""
    rows = class_metrics(outputs)
    marked = sum(row.marked for row in rows)
    key = "average precision" if outputs.multi_label else "F1"
    worst_told = f" Marked red: the lowest {key}." if marked else ""
    average = ("#average precision",) if outputs.multi_label else ()
    heads = ("class", "#images", "#precision", "#recall", "#F1", *average, "")
    explained = (
        " Average precision: how well the images of a class are put before all others."
        if outputs.multi_label
        else ""
    )
    body = "".join(class_row(row, outputs.multi_label) for row in rows)
    return (
        "<p>Precision: of the images said to be of a class, the share that are. Recall: of the "
        "images of a class, the share that were found. F1: their harmonic mean, high only where "
        f"both are.{explained} A dash: there is nothing to divide by (a class that is never "
        f"predicted has no precision), and the mean leaves it out.{worst_told}</p>\n"
        f"{wide_table(heads, body, mean_row(rows, outputs.multi_label))}"
    )


def class_row(row: ClassMetrics, several: bool) -> str:
    values = [row.precision, row.recall, row.f1, *([row.average_precision] if several else [])]
    cells = "".join(f'<td class="number">{dash(value)}</td>' for value in values)
    length = 0 if math.isnan(values[-1]) else round(1000 * values[-1])
    mark = ' class="marked"' if row.marked else ""
    return (
        f"<tr{mark}><td>{shown(row.label)}</td>"
        f'<td class="number">{row.images:,}</td>{cells}'
        f'<td style="width:25%">{bar(length, 1000)}</td></tr>\n'
    )


def mean_row(rows: Sequence[ClassMetrics], several: bool) -> str:
    """Over classes that have images; one that is never predicted has no precision, and is left out
    of that mean (scikit-learn's zero_division=nan)."""
    present = [row for row in rows if row.images]
    columns = [
        [row.precision for row in present],
        [row.recall for row in present],
        [row.f1 for row in present],
        *([[row.average_precision for row in present]] if several else []),
    ]
    cells = "".join(f'<td class="number">{dash(mean_of(column))}</td>' for column in columns)
    images = sum(row.images for row in rows)
    return f'<tr><td>mean of classes</td><td class="number">{images:,}</td>{cells}<td></td></tr>'


def mean_of(values: Sequence[float]) -> float:
    """
    >>> mean_of([0.5, float("nan"), 1.0])
    0.75
    """
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


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


def worst(
    outputs: Outputs,
    source: Source,
    root: str = "",
    *,
    order: Order = "confidence",
    most: int = MOST_MISTAKES,
) -> str:
    """Pictures of mistakes, `most` at most; their names are told as seen from `root`."""
    if not outputs.targets.any():
        return ""
    if not len(outputs.wrong):
        return no_mistake(outputs)
    cards = list(islice(mistake_cards(outputs, source, root, order, 10 * most), most))
    of = f"{len(outputs.wrong):,} of {count(outputs.images, 'image')}"
    if not cards:
        return f"<p>{of} are answered wrongly, but none of their pictures can be read now.</p>\n"
    if len(cards) == len(outputs.wrong):
        which = f"{FIRST[order]} come first."
    else:
        which = f"These are the {len(cards)} {THOSE[order]}."
    red = "Red: said but not there, or there but missed. " if outputs.multi_label else ""
    return (
        f"<p>{of} are answered wrongly. {which} {red}In percent: the probability that the model "
        "gives. They are worth a look: sometimes it is the label that is wrong.</p>\n"
        f'<div class="gallery">{"".join(cards)}</div>\n'
    )


def no_mistake(outputs: Outputs) -> str:
    return f"<p>There is no mistake on {count(outputs.images, 'image')}.</p>\n"


def mistake_cards(
    outputs: Outputs, source: Source, root: str, order: Order, tried: int
) -> Iterator[str]:
    for mistake in islice(mistakes(outputs, order), tried):
        uri = thumbnail(source, mistake.index)
        if uri is not None:
            name = source.name(mistake.index)
            yield mistake_card(
                outputs, mistake, uri, name.removeprefix(f"{root.rstrip('/')}/"), name
            )


def mistake_card(
    outputs: Outputs, mistake: LabelledPrediction, uri: str, short: str, name: str
) -> str:
    truth = {label for label, _ in mistake.truth}
    said = {label for label, _ in mistake.predicted}
    short = shown(short)
    tiny = ' class="tiny"' if uri.startswith("data:image/png") else ""
    return (
        f'<figure class="card"><img{tiny} src="{uri}" alt="{short}"><figcaption>'
        f'<div><span class="soft">said</span><span>'
        f"{told_labels(mistake.predicted, truth)}</span></div>"
        f'<div><span class="soft">truth</span><span>'
        f"{told_labels(mistake.truth, said if outputs.multi_label else truth)}</span></div>"
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
        return "<p>None of those that were read.</p>\n"
    rows = "".join(
        f"<tr><td><code>{shown(name)}</code></td><td>{shown(reason)}</td></tr>\n"
        for name, reason in sorted(broken.items())
    )
    opened = " open" if len(broken) <= OPENED else ""
    return (
        f"<details{opened}><summary>{count(len(broken), 'image')} could not be read; the "
        f"run went on without</summary>\n{wide_table(('image', 'reason'), rows)}</details>\n"
    )


def thumbnail(source: Source, index: int) -> str | None:
    """A small picture as a data URI; None where the image cannot be read."""
    try:
        raw = source.read(index)
        if isinstance(raw, bytes):
            raw = decode(raw, source.name(index), at_least=(THUMBNAIL, THUMBNAIL))
    except (BadImage, OSError):
        return None
    return data_uri(raw)


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Pixels (H, W) or (H, W, C) as a small picture within a page."""
    small = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    tiny = min(small.size) < TINY  # small enough to be shown as it is
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
    kind, file = "png" if tiny else "jpeg", BytesIO()
    small.convert("L" if small.mode == "L" else "RGB").save(file, kind, quality=80)
    return f"data:image/{kind};base64,{b64encode(file.getvalue()).decode()}"
