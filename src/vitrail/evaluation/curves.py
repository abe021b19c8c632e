"""Drawings for a page, which take their colours from it: values by step, and confusions."""

import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.findings import count
from vitrail.data.findings_page import shown

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 22, 10, 36  # room for the numbers at the axes
SMALLEST = 1e-9  # what is nearer to 0 cannot be told from it
MOST_POINTS = 400  # more cannot be told apart in that width
MOST_DOTS = 60  # beyond these a line says it better
MOST_ROOMY = 12  # classes with large cells in the table
MAP_SIDE, MAP_LEFT, MAP_TOP = 560, 150, 30
MOST_CELLS = 280  # in a row of the map: of more classes several share a cell
MAP_LABELS = 12
RIGHT_COLOUR, WRONG_COLOUR = (52, 134, 196), (217, 84, 52)  # seen on white and on black

STYLE = """
.curves { display: grid; gap: .8em;
  grid-template-columns: repeat(auto-fit, minmax(min(26em, 100%), 1fr)); }
.curves figcaption { display: flex; flex-wrap: wrap; justify-content: space-between;
  gap: 0 1em; margin-bottom: .5em; }
.curves figcaption b { font-weight: 600; }
.curve { width: 100%; height: auto; display: block; }
.curve text, .map text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.curve .grid, .map .frame { stroke: var(--line); stroke-width: 1; fill: none; }
.curve .axis { stroke: var(--soft); stroke-width: 1; }
.curve .line { stroke: var(--accent); stroke-width: 2; fill: none; stroke-linejoin: round;
  stroke-linecap: round; }
.curve .area { fill: var(--accent); opacity: .09; }
.curve .dot { fill: var(--accent); }
.curve .best { fill: var(--card); stroke: var(--accent); stroke-width: 2.5; }
.curve .line.training { stroke-dasharray: 5 4; }
.curve .line.validation { stroke: rgb(var(--bad)); }
.curve .area.training { display: none; }
.curve .area.validation, .curve .dot.validation { fill: rgb(var(--bad)); }
.curve .best.validation { stroke: rgb(var(--bad)); }
.legend .key { display: inline-block; width: 1.6em; vertical-align: .25em; margin-left: .8em; }
.legend .key.training { border-top: 2px dashed var(--accent); }
.legend .key.validation { border-top: 2px solid rgb(var(--bad)); }
table.confusion { border-collapse: separate; border-spacing: 2px; }
.confusion td { min-width: 2em; padding: .3em .45em; border: 0; text-align: right;
  border-radius: 3px; font-variant-numeric: tabular-nums; background: rgb(var(--bad) / var(--s)); }
.confusion td.right { background: rgb(var(--good) / var(--s)); }
.confusion td.none { background: none; color: var(--soft); opacity: .45; }
.confusion th { border: 0; padding: .25em .5em; white-space: nowrap;
  max-width: min(12em, 32vw);
  overflow: hidden; text-overflow: ellipsis; }
.confusion tbody th { position: sticky; left: 0; background: var(--page);
  text-align: right; color: var(--ink); }
.confusion thead th { vertical-align: bottom; text-align: center; color: var(--ink); }
.confusion.dense { border-spacing: 1px; font-size: .8em; }
.confusion.dense td { padding: .25em .3em; min-width: 1.5em; }
.confusion.dense thead th { padding: .25em .1em; }
.confusion thead th.corner { color: var(--soft); text-align: right; }
.confusion thead th span { writing-mode: vertical-rl; transform: rotate(180deg);
  max-height: 12em; overflow: hidden; text-overflow: ellipsis; }
.map { width: 100%; max-width: 46em; height: auto; display: block; }
.map image { image-rendering: pixelated; }
"""

# Values that are shares of 1: the higher the better. Title, and what it means.
SHARES = {
    "accuracy": ("Accuracy", "of the images are answered right"),
    "top5": ("Top-5 accuracy", "of the images have their label among the first five answers"),
    "mean_precision": (
        "Mean average precision",
        "how well the images of a class are put before all others, on average",
    ),
    "exact": (
        "All labels right",
        "of the images have each of their labels found and no other said",
    ),
}
TITLES = {
    "loss": "Loss",
    "val_loss": "Validation loss",
    "accuracy": "Accuracy",
    "train_accuracy": "Training accuracy",
    "grad_norm": "Gradient norm",
    "data_seconds": "Seconds waiting for images",
    "data_share": "Share of the time spent waiting for images",
    "lr": "Learning rate",
}
# What is drawn into the same figure, and the names of the two.
PAIRS = {
    "loss": ("val_loss", "training", "validation"),
    "accuracy": ("train_accuracy", "validation", "training"),
}

UNDRAWN = ("step", "seconds")

Point = tuple[float, float]
Tell = Callable[[float], str]


def percent(share: float) -> str:
    """A share of 1 for people; what is not all or nothing never looks like it.

    >>> percent(0.9612), percent(1), percent(0.99999), percent(0.00001)
    ('96.1%', '100%', '>99.9%', '<0.1%')
    """
    if share in (0, 1):
        return f"{share:.0%}"
    if not 0.0005 <= share < 0.9995 and 0 < share < 1:
        return "<0.1%" if share < 0.5 else ">99.9%"
    return f"{share:.1%}"


def short_number(value: float) -> str:
    """
    >>> short_number(0.00025), short_number(1.23456), short_number(1e-7)
    ('0.00025', '1.235', '1e-07')
    """
    return f"{value:.4g}"


def points_of(lines: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    """(step, value) of each line that has this value; what is not finite, which the log writes as
    null, stays as a gap."""
    return [
        (float(line["step"]), math.nan if line[name] is None else float(line[name]))
        for line in lines
        if isinstance(line.get("step"), int | float)
        and isinstance(line.get(name, ""), int | float | None)
        and not isinstance(line[name], bool)
    ]


def curves_of(lines: Sequence[Mapping[str, Any]], kept: int | None = None) -> str:
    """Losses, accuracies, then every other value that was logged. `kept` is the step whose weights
    were kept: of values that tie, that one is the best."""
    lines = [with_share(line) for line in lines]
    names = dict.fromkeys(name for line in lines for name in line if name not in UNDRAWN)
    ordered = [*(name for name in TITLES if name in names), *(n for n in names if n not in TITLES)]
    beside = {PAIRS[name][0] for name in names if name in PAIRS}
    figures = "".join(
        figure(points_of(lines, name), name, other_of(lines, name), kept)
        for name in ordered
        if name not in beside
    )
    return f'<div class="curves">{figures}</div>\n' if figures else "<p>Nothing was logged.</p>\n"


def with_share(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line with the share of its time that was spent waiting, where both are known."""
    waited, whole = line.get("data_seconds"), line.get("seconds")
    if not isinstance(waited, int | float) or not isinstance(whole, int | float) or whole <= 0:
        return line
    share = {"data_share": min(waited / whole, 1.0)}
    return {**{name: line[name] for name in line if name != "data_seconds"}, **share}


def other_of(lines: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    """Finite points of what is drawn beside a value."""
    if name not in PAIRS:
        return []
    return [point for point in points_of(lines, PAIRS[name][0]) if math.isfinite(point[1])]


def highest(points: Sequence[Point], kept: int | None) -> Point:
    return max(points, key=lambda point: (point[1], point[0] == kept))


def figure(
    points: Sequence[Point], name: str, other: Sequence[Point] = (), kept: int | None = None
) -> str:
    """One curve under its title, or two, with the number that matters most; "" without a finite
    point."""
    title = TITLES.get(name) or SHARES.get(name, (name, ""))[0]
    title = "Training loss" if name == "loss" and not other else title
    share = name in SHARES or name == "data_share"
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return ""
    best = name in SHARES
    step, value = highest(finite, kept) if best else finite[-1]
    ringed = (step, value) if best else None
    tell = percent if share else short_number
    told = f"{'best' if best else 'last'} {tell(value)}"
    lost = len(points) - len(finite)
    more = f"; {count(lost, 'value')} not a number" if lost else ""
    legend, kinds = "", ("", "")
    if other:
        first, second = kinds = PAIRS[name][1:]
        legend = (
            f'<p class="soft legend"><span class="key {first}"></span> {first} '
            f'<span class="key {second}"></span> {second}, last {tell(other[-1][1])}</p>'
        )
    return (
        f'<figure class="card"><figcaption><b>{shown(title)}</b><span class="soft">{told} at step '
        f"{step:,.0f}{more}</span></figcaption>"
        f"{curve(points, title=title, share=share, best=ringed, other=other, kinds=kinds)}"
        f"{legend}</figure>\n"
    )


def curve(
    points: Sequence[Point],
    *,
    title: str,
    share: bool,
    best: Point | None = None,
    other: Sequence[Point] = (),
    kinds: tuple[str, str] = ("", ""),
) -> str:
    """A line by step, with axes, ticks and numbers, and an `other` one beside it, in the colours of
    their `kinds`. A `share` is of 1 and told in percent; the `best` point is ringed."""
    finite = [point for point in points if math.isfinite(point[1])]
    tell = percent if share else short_number
    values = [value for _, value in finite]
    drawn = [*values, *(value for _, value in other)]
    last = max(step for step, _ in (*finite, *other))
    place = Frame(max(last, 1), ticks(min(drawn), max(drawn), share=share))
    segments = [thin(part) for part in split(points)]
    dotted = finite
    if len(finite) > MOST_DOTS:  # only those that no line would show
        dotted = [part[0] for part in segments if len(part) == 1]
    mine, theirs = (f" {kind}".rstrip() for kind in kinds)
    dots = [dot(place, point, tell, f"dot{mine}") for point in dotted]
    if len(other) <= MOST_DOTS:
        dots += [dot(place, point, tell, f"dot{theirs}") for point in other]
    if best is not None:
        dots.append(dot(place, best, tell, f"best{mine}", 5))
    told = (
        f"{title} by step: {tell(values[0])} at step {finite[0][0]:,.0f}, "
        f"{tell(values[-1])} at step {finite[-1][0]:,.0f}"
    )
    beside = ""
    if other:
        path = "L".join(place.at(point) for point in thin(list(other)))
        beside = f'<path class="line{theirs}" d="M{path}"/>'
    return (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{shown(told)}">'
        f"{axes(place, share)}{''.join(line(place, part, mine) for part in segments)}{beside}"
        f"{''.join(dots)}</svg>"
    )


class Frame:
    """From steps, 0 to `last`, and values to places in the drawing."""

    def __init__(self, last: float, up: Sequence[float]) -> None:
        self.last, self.up = last, up

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.last

    def y(self, value: float) -> float:
        low, high = self.up[0], self.up[-1]
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    def at(self, point: Point) -> str:
        return f"{self.x(point[0]):.1f} {self.y(point[1]):.1f}"


def ticks(low: float, high: float, *, whole: bool = False, share: bool = False) -> list[float]:
    """Round numbers from at most `low` to at least `high`; `whole` ones, or none beyond 0 and 1.

    >>> ticks(0, 97, whole=True), ticks(1, 1, share=True)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.9, 0.92, 0.94, 0.96, 0.98, 1.0])
    >>> ticks(1e-30, 2e-30)[:2]
    [0.0, 0.02]
    """
    from matplotlib.ticker import MaxNLocator

    if max(abs(low), abs(high)) < SMALLEST:
        low = high = 0.0
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(low) / 10 or 0.1
        low, high = (low - room if low else low), high + room
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    locator = MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=2)
    return [round(float(value), 12) for value in locator.tick_values(low, high)]


def ticks_as_text(values: Sequence[float], *, share: bool) -> list[str]:
    """All with as many decimals as they need to differ.

    >>> ticks_as_text([0.25, 0.3], share=False), ticks_as_text([0.25, 0.3], share=True)
    (['0.25', '0.30'], ['25%', '30%'])
    """
    decimals = max(math.ceil(-math.log10(values[1] - values[0]) - 1e-6), 0)
    if share:
        return [f"{value:.{max(decimals - 2, 0)}%}" for value in values]
    if decimals > 5 or max(map(abs, values)) >= 1e5:
        return [f"{value:.4g}" for value in values]
    return [f"{value:,.{decimals}f}" for value in values]


def split(points: Sequence[Point]) -> list[list[Point]]:
    """Runs of finite points."""
    parts: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def thin(points: list[Point]) -> list[Point]:
    """Few enough to draw: the lowest and the highest of each stretch."""
    if len(points) <= MOST_POINTS:
        return points
    values = np.array([value for _, value in points])
    kept = {0, len(points) - 1}
    for stretch in np.array_split(np.arange(len(points)), MOST_POINTS // 2):
        kept |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
    return [points[place] for place in sorted(kept)]


def axes(place: Frame, share: bool) -> str:
    drawn = []
    for value, told in zip(place.up, ticks_as_text(place.up, share=share), strict=True):
        y = place.y(value)
        drawn.append(
            f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{told}</text>'
        )
    base = HEIGHT - BOTTOM
    drawn.append(f'<path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>')
    for step in ticks(0, place.last, whole=True):
        if step <= place.last:
            x = place.x(step)
            drawn.append(
                f'<path class="axis" d="M{x:.1f} {base}v4"/>'
                f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{step:,.0f}</text>'
            )
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn.append(f'<text x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">step</text>')
    return "".join(drawn)


def line(place: Frame, points: Sequence[Point], kind: str = "") -> str:
    path = "L".join(place.at(point) for point in points)
    base, first, last = HEIGHT - BOTTOM, place.x(points[0][0]), place.x(points[-1][0])
    return (
        f'<path class="area{kind}" d="M{first:.1f} {base}L{path}L{last:.1f} {base}Z"/>'
        f'<path class="line{kind}" d="M{path}"/>'
    )


def dot(place: Frame, point: Point, tell: Tell, kind: str = "dot", radius: float = 2.5) -> str:
    """A point that says its numbers to whoever rests on it."""
    x, y = place.at(point).split()
    told = f"step {point[0]:,.0f}: {tell(point[1])}"
    return f'<circle class="{kind}" cx="{x}" cy="{y}" r="{radius}"><title>{told}</title></circle>'


def confusion_table(matrix: NDArray[np.int64], labels: Sequence[str]) -> str:
    """(K, K) in numbers: rows are the truth, columns what was said, colour is the share of the
    row."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    names = [shown(label) for label in labels]
    heads = "".join(f'<th scope="col" title="{name}"><span>{name}</span></th>' for name in names)
    rows = []
    for truth, name in enumerate(names):
        cells = [f'<th scope="row" title="{name}">{name}</th>']
        for said, number in enumerate(matrix[truth].tolist()):
            if not number:
                cells.append('<td class="none">0</td>')
                continue
            kind = ' class="right"' if truth == said else ""
            strength = 0.12 + 0.6 * shares[truth, said]
            cells.append(
                f'<td{kind} style="--s:{strength:.2f}" title="{name} said to be {names[said]}">'
                f"{number}</td>"
            )
        rows.append(f"<tr>{''.join(cells)}</tr>\n")
    kind = "confusion dense" if len(labels) > MOST_ROOMY else "confusion"
    return (
        f'<table class="{kind}"><thead><tr><th class="corner">truth ↓ said →</th>'
        f"{heads}</tr></thead>\n"
        f"<tbody>{''.join(rows)}</tbody></table>\n"
    )


def confusion_map(matrix: NDArray[np.int64], labels: Sequence[str]) -> str:
    """(K, K) as a picture: rows are the truth, columns what was said, colour is the share of the
    row."""
    side = len(matrix)
    uri = f"data:image/png;base64,{b64encode(map_png(matrix)).decode()}"
    names = []
    for place in np.unique(np.linspace(0, side - 1, min(MAP_LABELS, side)).astype(int)):
        y = MAP_TOP + MAP_SIDE * (place + 0.5) / side
        label = labels[place] if len(labels[place]) <= 20 else f"{labels[place][:19]}…"
        names.append(
            f'<path class="frame" d="M{MAP_LEFT - 6} {y:.1f}h6"/>'
            f'<text x="{MAP_LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{shown(label)}</text>'
        )
    width, height = MAP_LEFT + MAP_SIDE + 2, MAP_TOP + MAP_SIDE + 8
    box = f'x="{MAP_LEFT}" y="{MAP_TOP}" width="{MAP_SIDE}" height="{MAP_SIDE}"'
    return (
        f'<svg class="map" viewBox="0 0 {width} {height}" role="img" aria-label="Confusion matrix '
        f'of {side:,} classes as a picture; the list names the most frequent confusions">'
        f'<image {box} href="{uri}" preserveAspectRatio="none"/><rect class="frame" {box}/>'
        f'<text x="{MAP_LEFT}" y="{MAP_TOP - 10}">what was said: the same classes from left to '
        f"right</text>{''.join(names)}</svg>"
    )


def map_png(matrix: NDArray[np.int64]) -> bytes:
    """Transparent where nothing is, so that it lies on any page."""
    bins = np.arange(len(matrix)) * min(len(matrix), MOST_CELLS) // len(matrix)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    cells = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    shares = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1)
    pixels = np.empty((*cells.shape, 4), dtype=np.uint8)
    pixels[..., :3] = WRONG_COLOUR
    pixels[np.arange(len(cells)), np.arange(len(cells)), :3] = RIGHT_COLOUR
    # a single confusion must be seen too, beside classes that are always right
    pixels[..., 3] = np.where(cells > 0, 64 + 191 * np.sqrt(shares), 0).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "png", optimize=True)
    return file.getvalue()
