"""Explanations as HTML: one file with its images and curves inside, and nothing that must run."""

import base64
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TextIO

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.core.html_text import escape_html
from vitrail.explanation.overlays import LEGEND
from vitrail.explanation.verdict import (
    CLEAR_CORRELATION,
    ERRORS,
    MAX_CORRELATION,
    REMOVED_SHARES,
    RULE,
    Finding,
    MethodCheck,
)

PLACE = "\0"  # where the body of a page goes
QUALITY = 90  # of the pictures inside, JPEG
WIDE, HIGH, LEFT, BELOW = 272, 190, 34, 30  # pixels of a drawing and of its axes

# The look of the training report (`evaluation/report_page.py`).
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
.explain .verdict.unclear { border-left-color: var(--soft); }
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
class Explanation:
    """All that a page tells, but for the images, which are written as they come."""

    title: str
    facts: Mapping[str, str]
    panels: Sequence[str] = ()
    checks: Mapping[str, MethodCheck] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)  # image: why it cannot be read


def image_section(name: str, answer: str, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]) -> str:
    """One image: what the model predicts, and what methods show, each under its name."""
    figures = "".join(
        f'<figure><img src="{_inside(pixels)}" alt="{escape_html(f"{caption} of {name}")}">'
        f"<figcaption>{escape_html(caption)}</figcaption></figure>"
        for caption, pixels in images.items()
    )
    return (
        f'{_image_heading(name)}<p>{escape_html(answer)}</p><div class="gallery">{figures}</div>\n'
    )


def panel_section(name: str, panel: UInt8[np.ndarray, "h w 3"]) -> str:
    """Layers and heads of one image."""
    return (
        f'{_image_heading(name)}<div class="sideways" tabindex="0">'
        f'<img src="{_inside(panel)}" alt="layers and heads of {escape_html(name)}"></div>\n'
    )


def write_page(told: Explanation, images: TextIO, page: TextIO) -> None:
    """The whole page; `images` has the sections of all images, which are copied piece by piece."""
    parts = {
        "images": ("Images", None),
        "trust": ("Can the maps be trusted?", _verdicts(told.checks)),
        "panels": ("Layers and heads", "".join(told.panels)),
        "unread": ("Images passed over", _problems(told.problems)),
    }
    parts = {name: part for name, part in parts.items() if part[1] != ""}
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in parts.items())
    body = f"<header>{_heading(told)}<nav>{links}</nav></header>\n"
    head, tail = PAGE.format(title=escape_html(told.title), style=STYLE, body=PLACE).split(PLACE)
    page.write(head + body)
    for name, (title, section) in parts.items():
        page.write(f'<section id="{name}"><h2>{title}</h2>\n')
        if section is None:
            page.write(f'<p class="soft">{LEGEND}.</p>\n')
            images.seek(0)
            shutil.copyfileobj(images, page)
        else:
            page.write(section)
        page.write("</section>\n")
    page.write(tail)


def _image_heading(name: str) -> str:
    """The file's name; where it lies is told to whoever rests on it."""
    return f'<h3 title="{escape_html(name)}">{escape_html(PurePath(name).name or name)}</h3>'


def _heading(told: Explanation) -> str:
    facts = "".join(
        f"<div><dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd></div>"
        for name, value in told.facts.items()
    )
    trust = "".join(
        f"<p><b>{escape_html(method)}: {check.verdict.sentence}</b></p>"
        for method, check in told.checks.items()
    )
    return f'<h1>{escape_html(told.title)}</h1>\n<dl class="facts">{facts}</dl>\n{trust}'


def _problems(problems: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape_html(name)}</code></td><td>{escape_html(reason)}</td></tr>"
        for name, reason in problems.items()
    )
    return f"<table><tr><th>image</th><th>reason</th></tr>{rows}</table>\n" if rows else ""


# The verdict


STYLES: dict[Finding, str] = {"yes": " fine", "no": "", "unclear": " unclear"}


def _verdicts(checks: Mapping[str, MethodCheck]) -> str:
    if not checks:
        return ""
    cards = "".join(_verdict(method, check) for method, check in checks.items())
    rule = "".join(f'<p class="soft">{escape_html(text)}</p>\n' for text in (RULE, ERRORS))
    return rule + cards


def _verdict(method: str, check: MethodCheck) -> str:
    verdict = check.verdict
    reasons = "".join(f"<li>{escape_html(reason)}</li>" for reason in verdict.reasons)
    whole, empty = check.curves.deletion[:, 0], check.curves.deletion[:, -1]
    without = check.random.mean(dim=(0, 1))  # (shares, images): what random maps leave
    usual = torch.stack([whole, *without, empty], dim=1)
    shares = torch.tensor([0, *REMOVED_SHARES, 1])
    drawings = [
        _figure(
            _curve_drawing((check.curves.shares, own), random),
            f"{name}: the model's score while cells {verb} in the order of the map; dashed: random "
            "maps",
        )
        for name, verb, own, random in (
            ("deletion", "are blurred", check.curves.deletion, (shares, usual)),
            ("insertion", "come back", check.curves.insertion, (1 - shares, usual)),
        )
    ]
    drawings.append(
        _figure(
            _bar_drawing({"head": verdict.head_correlation, "all weights": verdict.correlation}),
            "absolute rank correlation with maps of models with shuffled weights; dashed: at most "
            f"{MAX_CORRELATION:g} passes, {CLEAR_CORRELATION:g} fails",
        )
    )
    return (
        f'<div class="card verdict{STYLES[verdict.tracks]}">'
        f"<h3>{escape_html(method)}: {verdict.sentence}</h3><ul>{reasons}</ul>"
        f'<div class="drawings">{"".join(drawings)}</div></div>\n'
    )


def _figure(drawing: str, caption: str) -> str:
    style = f'style="max-width:{WIDE}px"'
    return f"<figure {style}>{drawing}<figcaption>{escape_html(caption)}</figcaption></figure>"


Line = tuple[Float[Tensor, "S"], Float[Tensor, "B S"]]


def _curve_drawing(own: Line, random: Line) -> str:
    """The means over images, shares from left to right, scores from 0 to 1."""
    mean, usual = (_path(shares, curves.mean(dim=0)) for shares, curves in (own, random))
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


def _bar_drawing(alike: Mapping[str, float]) -> str:
    """A bar for each kind of shuffling, and both limits."""
    step, begin = 26, 84
    room = WIDE - begin - 36
    bars = "".join(
        f'<text x="{begin - 6}" y="{number * step + step / 2 + 4:.1f}" text-anchor="end">'
        f"{escape_html(name)}</text>"
        f'<rect class="bar" x="{begin}" y="{number * step + 3:.1f}" '
        f'width="{value * room:.1f}" height="{step - 6:.1f}"/>'
        f'<text x="{begin + value * room + 5:.1f}" '
        f'y="{number * step + step / 2 + 4:.1f}">{value:.2f}</text>'
        for number, (name, value) in enumerate(alike.items())
    )
    high = len(alike) * step + 6
    limits = "".join(
        f'<line class="limit" x1="{begin + limit * room:.1f}" x2="{begin + limit * room:.1f}" '
        f'y1="0" y2="{high}"/>'
        for limit in (MAX_CORRELATION, CLEAR_CORRELATION)
    )
    return (
        f'<svg viewBox="0 0 {WIDE} {high}" width="{WIDE}" height="{high}" role="img">{bars}'
        f"{limits}</svg>"
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
