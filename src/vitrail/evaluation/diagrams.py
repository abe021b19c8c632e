"""Drawings of calibration and robustness for a page, which take their colours from it."""

import numpy as np

from vitrail.data.findings_page import shown
from vitrail.evaluation.calibration import Reliability
from vitrail.evaluation.corruptions import CORRUPTIONS, SEVERITIES
from vitrail.evaluation.curves import percent
from vitrail.evaluation.robustness import Robustness

SIDE, LEFT, TOP, BELOW = 260, 46, 10, 40  # the square, and the room around it
LOWER = 46  # height of the bars that tell how many answers there are
GAP = 14

STYLE = """
.pair { display: grid; gap: .8em; margin: .8em 0;
  grid-template-columns: repeat(auto-fit, minmax(min(20em, 100%), 1fr)); }
.pair figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1em;
  margin-bottom: .5em; }
.pair figcaption b { font-weight: 600; }
.reliability { width: 100%; max-width: 26em; height: auto; display: block; margin: auto; }
.reliability text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.reliability .grid { stroke: var(--line); stroke-width: 1; fill: none; }
.reliability .ideal { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 4; fill: none; }
.reliability .right { fill: var(--accent); opacity: .75; }
.reliability .beyond { fill: rgb(var(--bad)); opacity: .45; }
.reliability .spare { fill: rgb(var(--good)); opacity: .55; }
.reliability .many { fill: var(--soft); opacity: .5; }
table.heat { border-collapse: separate; border-spacing: 2px; }
.heat td { border: 0; border-radius: 3px; padding: .25em .7em; text-align: right;
  font-variant-numeric: tabular-nums; background: rgb(var(--good) / var(--s)); }
.heat th { border: 0; padding: .25em .7em .25em 0; }
.heat tbody th { color: var(--ink); }
.heat thead th { text-align: right; }
.heat thead th:first-child { text-align: left; }
.heat tbody td.mean { font-weight: 600; background: none; }
.heat tfoot td { font-weight: 600; background: none; }
.report ul.soft { font-size: .9em; }
"""


def reliability_diagram(bins: Reliability, title: str) -> str:
    """Of the answers in each bin of confidence the share that is right; red is confidence beyond
    that share, green what is right beyond the confidence. Below, how many answers they are."""
    count, most = len(bins.counts), max(int(bins.counts.max()), 1)
    wide = SIDE / count
    base, foot = TOP + SIDE, TOP + SIDE + GAP + LOWER
    drawn = [axes(base, foot)]
    for place in range(count):
        answers = int(bins.counts[place])
        if not answers:
            continue
        x, right, sure = LEFT + place * wide, bins.accuracy[place], bins.confidence[place]
        low, high = sorted((float(right), float(sure)))
        told = (
            f"{answers:,} answers with a confidence of {percent(float(sure))} on average: "
            f"{percent(float(right))} are right"
        )
        bars = (
            ("right", base, SIDE * low),
            ("beyond" if sure > right else "spare", base - SIDE * low, SIDE * (high - low)),
            ("many", foot, LOWER * answers / most),
        )
        drawn.append(f"<g><title>{told}</title>")
        drawn += [
            f'<rect class="{kind}" x="{x + 1:.1f}" y="{bottom - tall:.1f}" '
            f'width="{wide - 2:.1f}" height="{tall:.1f}"/>'
            for kind, bottom, tall in bars
        ]
        drawn.append("</g>")
    drawn.append(f'<path class="ideal" d="M{LEFT} {base}L{LEFT + SIDE} {TOP}"/>')
    label = f"{title}: expected calibration error {percent(bins.ece)}"
    return (
        f'<svg class="reliability" viewBox="0 0 {LEFT + SIDE + 18} {foot + BELOW}" role="img" '
        f'aria-label="{shown(label)}">{"".join(drawn)}</svg>'
    )


def axes(base: int, foot: int) -> str:
    drawn = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x, y = LEFT + SIDE * share, base - SIDE * share
        drawn.append(
            f'<path class="grid" d="M{LEFT} {y:.1f}h{SIDE}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
            f'<text x="{x:.1f}" y="{foot + 15}" text-anchor="middle">{share:.0%}</text>'
        )
    drawn.append(f'<path class="grid" d="M{LEFT} {foot}h{SIDE}"/>')
    drawn.append(
        f'<text x="{LEFT + SIDE / 2}" y="{foot + 32}" text-anchor="middle">confidence</text>'
        f'<text transform="translate(10 {TOP + SIDE / 2}) rotate(-90)" text-anchor="middle">'
        "share that is right</text>"
    )
    return "".join(drawn)


def corruption_table(found: Robustness) -> str:
    """Rows are corruptions, columns severities; the greener, the more is left."""
    heads = "".join(f'<th scope="col">{severity}</th>' for severity in SEVERITIES)
    rows = []
    for name, values in zip(CORRUPTIONS, found.values, strict=True):
        cells = "".join(
            f'<td style="--s:{0.75 * value / max(found.clean, value, 1e-9):.2f}">'
            f"{percent(float(value))}</td>"
            for value in values
        )
        rows.append(
            f'<tr><th scope="row">{name}</th>{cells}'
            f'<td class="mean">{percent(float(values.mean()))}</td></tr>\n'
        )
    means = "".join(f"<td>{percent(float(value))}</td>" for value in found.values.mean(axis=0))
    return (
        f'<table class="heat"><thead><tr><th>severity</th>{heads}<th>mean</th></tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody><tfoot><tr><th>mean</th>{means}"
        f"<td>{percent(float(np.mean(found.values)))}</td></tr></tfoot></table>\n"
    )
