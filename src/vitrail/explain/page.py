"""Explanations as HTML: one file with its pictures and curves inside, and nothing that must run."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.core.html_text import escape_html
from vitrail.explain.faithfulness import MOST_ALIKE, RULE, Curves, Verdict
from vitrail.explain.pictures import LEGEND

QUALITY = 90  # of the pictures inside, JPEG
WIDE, HIGH, LEFT, BELOW = 272, 190, 34, 30  # pixels of a drawing and of its axes

# The look of the training report (`evaluate/report_page.py`).
STYLE = """
.explain { --ink: #1d2730; --soft: #5d6b78; --line: #dfe5ea; --card: #fff; --accent: #2f75ad;
  --good: 46 125 79; --bad: 201 78 48; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); }
@media (prefers-color-scheme: dark) { .explain { --ink: #e4e9ed; --soft: #9aa7b3; --line: #36424d;
  --card: #1c242b; --accent: #6db3e8; --good: 84 176 122; --bad: 228 108 80; } }
.explain h1 { font-size: 2em; line-height: 1.2; margin: .6em 0 .1em; overflow-wrap: anywhere; }
.explain h2 { font-size: 1.4em; margin: 2em 0 .3em; padding-top: .9em;
  border-top: 1px solid var(--line); }
.explain h3 { font-size: 1.1em; margin: 1.4em 0 .4em; overflow-wrap: anywhere; }
.explain p { margin: .3em 0 .8em; max-width: 50em; }
.explain .soft { color: var(--soft); }
.explain small, .explain p.soft { font-size: .9em; }
.explain code { font-size: .92em; overflow-wrap: anywhere; }
.explain a { color: var(--accent); }
.explain nav { display: flex; flex-wrap: wrap; gap: .2em 1.2em; margin: 1.2em 0 0; }
.explain dl.facts { display: grid; gap: .7em 1.5em; margin: 1em 0;
  grid-template-columns: repeat(auto-fill, minmax(9em, 1fr)); }
.explain dl.facts dt { color: var(--soft); font-size: .87em; }
.explain dl.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.explain .card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .8em 1em; min-width: 0; margin: 0 0 1em; }
.explain .verdict { border-left: 5px solid rgb(var(--bad)); }
.explain .verdict.fine { border-left-color: rgb(var(--good)); }
.explain .verdict h3 { margin-top: 0; }
.explain .verdict ul { margin: .3em 0 .8em; padding-left: 1.2em; max-width: 60em; }
.explain .drawings { display: flex; flex-wrap: wrap; gap: 1em 1.6em; }
.explain figure { margin: 0; }
.explain figcaption { font-size: .87em; color: var(--soft); overflow-wrap: anywhere; }
.explain .gallery { display: grid; gap: .8em;
  grid-template-columns: repeat(auto-fill, minmax(13em, 1fr)); }
.explain .gallery img { display: block; width: 100%; border-radius: 4px; }
.explain .sideways { overflow-x: auto; background: #fff; border-radius: 8px;
  border: 1px solid var(--line); }
.explain .sideways img { display: block; }
.explain table { border-collapse: collapse; }
.explain td, .explain th { padding: .3em .9em .3em 0; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top; }
.explain svg { font: 11px system-ui, sans-serif; display: block; max-width: 100%; }
.explain svg text { fill: var(--soft); }
.explain svg .axis { stroke: var(--line); }
.explain svg .map { stroke: var(--accent); fill: none; stroke-width: 2.4; }
.explain svg .chance { stroke: var(--soft); fill: none; stroke-width: 1.4;
  stroke-dasharray: 4 3; }
.explain svg .bar { fill: var(--accent); }
.explain svg .limit { stroke: rgb(var(--bad)); stroke-dasharray: 4 3; }
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 2em auto; max-width: 62em; padding: 0 1.2em; background: #f6f8fa; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #12181d; }} }}
{style}</style>
</head>
<body class="explain">
{body}
</body>
</html>
"""


@dataclass(frozen=True)
class Explained:
    """One picture: what the model says of it, and what methods show, each under its name."""

    name: str
    said: str
    pictures: Mapping[str, UInt8[np.ndarray, "H W 3"]]
    panel: UInt8[np.ndarray, "h w 3"] | None = None


@dataclass(frozen=True)
class Judged:
    """What a check of one method found."""

    method: str
    verdict: Verdict
    curves: Curves
    chance: Sequence[Curves]


@dataclass(frozen=True)
class Explanation:
    """All that a page tells."""

    title: str
    facts: Mapping[str, str]
    explained: Sequence[Explained]
    judged: Sequence[Judged] = ()
    problems: Mapping[str, str] = field(default_factory=dict)  # picture: why it cannot be read


def explain_page(told: Explanation) -> str:
    """The whole page."""
    parts = {
        "pictures": ("Pictures", _pictures(told)),
        "trust": ("Can the maps be trusted?", _verdicts(told.judged)),
        "panels": ("Layers and heads", _panels(told)),
        "unread": ("Pictures passed over", _problems(told.problems)),
    }
    parts = {name: part for name, part in parts.items() if part[1]}
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in parts.items())
    sections = "".join(
        f'<section id="{name}"><h2>{title}</h2>\n{body}</section>\n'
        for name, (title, body) in parts.items()
    )
    body = f"<header>{_heading(told)}<nav>{links}</nav></header>\n{sections}"
    return PAGE.format(title=escape_html(told.title), style=STYLE, body=body)


def _heading(told: Explanation) -> str:
    facts = "".join(
        f"<div><dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd></div>"
        for name, value in told.facts.items()
    )
    trust = "".join(
        f"<p><b>{escape_html(each.method)}: {each.verdict.sentence}</b></p>" for each in told.judged
    )
    return f'<h1>{escape_html(told.title)}</h1>\n<dl class="facts">{facts}</dl>\n{trust}'


def _pictures(told: Explanation) -> str:
    body = f'<p class="soft">{LEGEND}.</p>\n'
    for one in told.explained:
        figures = "".join(
            f'<figure><img src="{_inside(pixels)}" alt="{escape_html(f"{caption} of {one.name}")}">'
            f"<figcaption>{escape_html(caption)}</figcaption></figure>"
            for caption, pixels in one.pictures.items()
        )
        body += (
            f"<h3>{escape_html(one.name)}</h3><p>{escape_html(one.said)}</p>"
            f'<div class="gallery">{figures}</div>\n'
        )
    return body if told.explained else ""


def _panels(told: Explanation) -> str:
    return "".join(
        f'<h3>{escape_html(one.name)}</h3><div class="sideways" tabindex="0"><img '
        f'src="{_inside(one.panel)}" alt="layers and heads of {escape_html(one.name)}"></div>\n'
        for one in told.explained
        if one.panel is not None
    )


def _problems(problems: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape_html(name)}</code></td><td>{escape_html(reason)}</td></tr>"
        for name, reason in problems.items()
    )
    return f"<table><tr><th>picture</th><th>reason</th></tr>{rows}</table>\n" if rows else ""


# The verdict


def _verdicts(judged: Sequence[Judged]) -> str:
    if not judged:
        return ""
    return f'<p class="soft">{escape_html(RULE)}</p>\n{"".join(map(_verdict, judged))}'


def _verdict(each: Judged) -> str:
    reasons = "".join(f"<li>{escape_html(reason)}</li>" for reason in each.verdict.reasons)
    shares = each.curves.shares
    drawings = [
        _figure(
            _curve_drawing(shares, curve, [getattr(one, name) for one in each.chance]),
            f"{name}: the model's score while cells {verb} in the order of the map; dashed: random",
        )
        for name, curve, verb in (
            ("deletion", each.curves.deletion, "are blurred"),
            ("insertion", each.curves.insertion, "come back"),
        )
    ]
    drawings.append(
        _figure(
            _bar_drawing(each.verdict.shuffled),
            "rank correlation with the map, weights shuffled from the head down; dashed: the limit",
        )
    )
    return (
        f'<div class="card verdict{" fine" if each.verdict.tracks else ""}">'
        f"<h3>{escape_html(each.method)}: {each.verdict.sentence}</h3><ul>{reasons}</ul>"
        f'<div class="drawings">{"".join(drawings)}</div></div>\n'
    )


def _figure(drawing: str, caption: str) -> str:
    style = f'style="max-width:{WIDE}px"'
    return f"<figure {style}>{drawing}<figcaption>{escape_html(caption)}</figcaption></figure>"


def _curve_drawing(
    shares: Float[Tensor, "S"], curve: Float[Tensor, "B S"], chance: Sequence[Tensor]
) -> str:
    """The means over pictures, shares from left to right, scores from 0 to 1."""
    mean = _path(shares, curve.mean(dim=0))
    usual = _path(shares, torch.stack(list(chance)).mean(dim=(0, 1)))
    steps = "".join(
        f'<line class="axis" x1="{LEFT}" x2="{WIDE}" y1="{_up(level):.0f}" y2="{_up(level):.0f}"/>'
        f'<text x="{LEFT - 6}" y="{_up(level) + 4:.0f}" text-anchor="end">{level:g}</text>'
        for level in (0, 0.5, 1)
    )
    words = "".join(
        f'<text x="{_along(share):.0f}" y="{HIGH - BELOW + 18}" text-anchor="{anchor}">'
        f"{share:.0%}</text>"
        for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" role="img">{steps}{words}'
        f'<polyline class="chance" points="{usual}"/><polyline class="map" points="{mean}"/></svg>'
    )


def _bar_drawing(shuffled: Sequence[tuple[str, float]]) -> str:
    """A bar a layer, the head first."""
    step = min((HIGH - BELOW) / len(shuffled), 26)
    begin, room = 120, WIDE - 120 - 36
    bars = "".join(
        f'<text x="{begin - 6}" y="{number * step + step / 2 + 4:.1f}" text-anchor="end">'
        f"{escape_html(name)}</text>"
        f'<rect class="bar" x="{begin}" y="{number * step + 3:.1f}" '
        f'width="{max(alike, 0) * room:.1f}" height="{step - 6:.1f}"/>'
        f'<text x="{begin + max(alike, 0) * room + 5:.1f}" '
        f'y="{number * step + step / 2 + 4:.1f}">{alike:.2f}</text>'
        for number, (name, alike) in enumerate(shuffled)
    )
    limit = begin + MOST_ALIKE * room
    high = round(len(shuffled) * step + 6)
    return (
        f'<svg viewBox="0 0 {WIDE} {high}" width="{WIDE}" height="{high}" role="img">{bars}'
        f'<line class="limit" x1="{limit}" x2="{limit}" y1="0" y2="{high}"/></svg>'
    )


def _path(shares: Float[Tensor, "S"], values: Float[Tensor, "S"]) -> str:
    return " ".join(
        f"{_along(share):.1f},{_up(value):.1f}"
        for share, value in zip(shares.tolist(), values.tolist(), strict=True)
    )


def _along(share: float) -> float:
    return LEFT + share * (WIDE - LEFT - 2)


def _up(score: float) -> float:
    return 6 + (1 - score) * (HIGH - BELOW - 6)


def _inside(pixels: UInt8[np.ndarray, "H W 3"]) -> str:
    """A picture as part of the page."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
