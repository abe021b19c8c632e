"""Charts by matplotlib as SVG in the colours of the page, each with its numbers in a table."""

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import numpy as np
from markupsafe import Markup

from vitrail.core.errors import printable
from vitrail.pages.render import either, percent
from vitrail.pages.ticks import set_linear_ticks, set_log_ticks, tick_texts, ticks, x_limits
from vitrail.pages.translation import page_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The light palette of style.css. In a page's SVG each becomes the variable of the same name, so
# that it follows the page into the dark; in a PNG it is the colour itself, on white.
INK, SOFT, LINE, CARD = "#1d2730", "#52606d", "#d5dde4", "#ffffff"
GOOD, BAD = "#23703f", "#b23a21"
SERIES = ("#1f669f", "#c4472a", "#23703e", "#7c4aa5", "#8a5a00", "#5a6672")
# Of figures with a line for each model: apart for every kind of colour vision (tests/pages).
MODELS = (
    "#1e669f", "#cf5a0c", "#291ab4", "#0e4634", "#65195f", "#771407",
    "#4d9489", "#889546", "#243281", "#ad195d", "#0d6d32", "#9e61e6",
)  # fmt: skip
VARIABLES = {
    INK: "currentColor",
    SOFT: "var(--soft)",
    LINE: "var(--line)",
    CARD: "var(--card)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    **{colour: f"var(--series-{place})" for place, colour in enumerate(SERIES, 1)},
    **{colour: f"var(--model-{place})" for place, colour in enumerate(MODELS, 1)},
}
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "text.color": INK,
    "axes.titlesize": 10,
    "axes.prop_cycle": f"cycler('color', {list(MODELS)!r})",
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "path.simplify": False,
    "svg.fonttype": "none",  # text stays text
    "savefig.facecolor": "none",
}
WIDTH, HEIGHT = 380, 205  # points of a chart: letters keep a size that can be read on a phone
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 8, 38
DPI = 200
MAX_POINTS, MAX_DOTS, MAX_ROWS = 400, 40, 60

Point = tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """A drawing, and the same in numbers: `columns` head the `rows`; of a long curve `left_out`
    points are in the drawing only. `legend` has names, numbers of colours and who is dashed."""

    title: str
    svg: Markup
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    legend: Sequence[tuple[str, int, bool]] = ()
    left_out: int = 0


@contextmanager
def chart_style() -> Iterator[None]:
    """The style, for as long as something is drawn."""
    from matplotlib import rc_context

    with rc_context(STYLE):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float) -> "Figure":
    """A figure of so many inches that no window shows; what is drawn finds its own room."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def figure_svg(figure: "Figure", label: str, **attributes: str) -> Markup:
    """A figure as an SVG element that takes the colours of the page; `label` is read aloud. Artists
    whose gid is x-axis, y-axis or series have it as their class; colours of `VARIABLES` become the
    page's."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file, salt = io.StringIO(), sha256(f"{label}{attributes}".encode("utf-8", "replace"))
    with chart_style(), rc_context({"svg.hashsalt": salt.hexdigest()}), warnings.catch_warnings():
        # letters that the font lacks are drawn by the browser, in a font that has them
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None})
    drawn = file.getvalue()
    box = re.search(r'viewBox="([^"]*)"', drawn)
    assert box is not None, "a drawing without a size"
    drawn = re.sub(r"^<svg[^>]*>", "", drawn[drawn.index("<svg") :])
    drawn = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", drawn, flags=re.S)
    drawn = re.sub(r'<g id="(x-axis|y-axis|series)[^"]*"', r'<g class="\1"', drawn)
    # names that nothing refers to, and that two drawings on a page would share
    drawn = re.sub(r'(<g|<image[^>]*?) id="[^"]*"', r"\1", drawn)
    drawn = re.sub(r"<defs>\s*</defs>|\n\s*", "", drawn.replace("\n<", "<").replace("\n", " "))
    for colour, variable in VARIABLES.items():
        drawn = drawn.replace(colour, variable)
    given = Markup("").join(
        Markup(' {}="{}"').format(name.replace("_", "-"), value)
        for name, value in attributes.items()
    )
    # pixels: letters stay as large as a page's, or readable in one that scrolls sideways
    widest, least = (round(factor * 72 * figure.get_figwidth()) for factor in (1.75, 0.75))
    size = f"max-width:{widest}px" + (
        f";min-width:{least}px" if "data_frame" not in attributes else ""
    )
    names = Markup('xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"')
    start = Markup('<svg viewBox="{}" style="{}" role="img" aria-label="{}" {}{}>')
    return start.format(box[1], size, printable(label), names, given) + Markup(drawn)


def svg_file(element: str) -> str:
    """An SVG element of a page as a file of its own, on white and in the light palette."""
    for colour, variable in VARIABLES.items():
        element = element.replace(variable, colour)
    alone = re.sub(r'style="max-width:[^"]*"', 'style="background:#fff"', element, count=1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{alone}'


def figure_png(figure: "Figure") -> bytes:
    """A figure in pixels, on white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = io.BytesIO()
    with chart_style():
        FigureCanvasAgg(figure)
        figure.savefig(file, format="png", dpi=DPI, facecolor="white")
    return file.getvalue()


def line_chart(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_label: str | None = None,
    share: bool = False,
    log_x: bool = False,
    from_zero: bool = True,
    mark: Point | None = None,
    intervals: Mapping[str, Sequence[Point]] | None = None,
    note: str = "",
) -> Chart:
    """Lines over the same axis, gaps where a value is not finite. A `share` is of 1 and shown in
    percent; an axis begins at 0 unless `from_zero` is false, so that noise stays small; `mark` is a
    point of one of the lines, drawn as a ring; `intervals` are the ends of those of each line.

    >>> line_chart("Loss", {"training": [(1, 2.0), (2, 1.0)]}).rows
    [['1', '2'], ['2', '1']]
    """
    x_label = page_text("step") if x_label is None else x_label
    points = [point for line in series.values() for point in line if math.isfinite(point[1])]
    ends = [end for line in (intervals or {}).values() for pair in line for end in pair]
    up = ticks([*(value for _, value in points), *ends], share=share, from_zero=from_zero)
    with chart_style():
        figure, axes = _axes(WIDTH, HEIGHT)
        if log_x:
            axes.set_xscale("log")
        axes.set_xlim(*x_limits([x for x, _ in points], log_x))
        axes.set_ylim(up[0], up[-1] + 0.02 * (up[-1] - up[0]))
        axes.set_yticks(up, tick_texts(up, share))
        (set_log_ticks if log_x else set_linear_ticks)(axes)
        for place, (name, line) in enumerate(series.items()):
            _draw_line(axes, line, place)
            if intervals is not None:
                _draw_intervals(axes, line, intervals[name], place)
        if mark is not None:
            place = [mark in line for line in series.values()].index(True)
            _draw_dots(axes, [mark], SERIES[place % len(SERIES)], 9)
            _draw_dots(axes, [mark], CARD, 4.5)
        axes.grid(axis="y", color=LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
        figure.text(middle / WIDTH, 3 / HEIGHT, x_label, ha="center", color=SOFT, size=10.5)
        across = [math.log10(x) if log_x else x for x in axes.get_xlim()]
        svg = figure_svg(
            figure,
            _description(title, series, x_label, share),
            data_frame=f"{LEFT} {TOP} {WIDTH - RIGHT} {HEIGHT - BOTTOM}",
            data_range=" ".join(f"{value:.8g}" for value in (*across, *axes.get_ylim())),
            data_percent="1" if share else "0",
            data_log="1" if log_x else "0",
        )
    rows, left_out = _rows(series, share, intervals or {})
    legend = [(name, place % len(SERIES) + 1, place % 2 == 1) for place, name in enumerate(series)]
    return Chart(title, svg, [x_label, *series], rows, note, legend, left_out)


def bar_chart(
    title: str,
    bars: Mapping[str, float],
    *,
    limits: Sequence[float] = (),
    share: bool = False,
    note: str = "",
    column: str | None = None,
) -> Chart:
    """Horizontal bars from 0, with dashed lines at `limits`."""
    wide = 1.02 * max([*bars.values(), *limits, 1.0 if share else 0.0]) or 1.0
    height = 26 * len(bars) + 30
    with chart_style():
        left = min(14 + 6.4 * max(map(width_of, bars)), WIDTH / 2)
        figure, axes = _axes(WIDTH, height, left=left, right=50, bottom=24)
        axes.barh(range(len(bars)), list(bars.values()), height=0.66, color=SERIES[0])
        axes.set_yticks(range(len(bars)), [_short(name) for name in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, wide)
        for place, value in enumerate(bars.values()):
            axes.annotate(
                either(value, share),
                (value, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1},
                zorder=4,
            )
        for limit in limits:
            axes.axvline(limit, color=BAD, linewidth=1, linestyle=(0, (4, 3)))
        if share:
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        svg = figure_svg(figure, page_text("{}: {} bars, the numbers follow", title, len(bars)))
    rows = [[name, either(value, share)] for name, value in bars.items()]
    return Chart(title, svg, ["", column or page_text("value")], rows, note)


def reliability_chart(
    title: str,
    counts: Sequence[int],
    confidence: Sequence[float],
    right: Sequence[float],
    *,
    note: str = "",
) -> Chart:
    """Accuracy in each bin of confidence: red where the confidence exceeds it, green where it
    exceeds the confidence. The bars below are the `counts` of predictions in each bin."""
    bins, most = len(counts), max(*counts, 1)
    width, height = 300, 340
    known = [place for place in range(bins) if counts[place]]
    with chart_style():
        figure, axes = _axes(width, height, left=58, bottom=96)
        below = figure.add_axes(
            (58 / width, 36 / height, (width - 58 - RIGHT) / width, 44 / height)
        )
        wide = 1 / bins
        for place in known:
            at, low = (place + 0.5) * wide, min(right[place], confidence[place])
            over = confidence[place] > right[place]
            rest = abs(confidence[place] - right[place])
            axes.bar(at, low, wide * 0.86, color=SERIES[0], alpha=0.8)
            axes.bar(at, rest, wide * 0.86, low, color=BAD if over else GOOD, alpha=0.5)
            below.bar(at, counts[place] / most, wide * 0.86, color=SOFT, alpha=0.6)
        axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1.2, linestyle=(0, (4, 4)))
        places = (0, 0.25, 0.5, 0.75, 1)
        axes.set(xlim=(0, 1), ylim=(0, 1), ylabel=page_text("accuracy"))
        axes.set_xticks(places, [""] * 5)
        axes.set_yticks(places, [f"{place:.0%}" for place in places])
        axes.grid(axis="y", color=LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        below.set(xlim=(0, 1), ylim=(0, 1), xlabel=page_text("confidence"))
        below.set_yticks([0, 1], ["0", f"{most:,}"])
        below.set_xticks(places, [f"{place:.0%}" for place in places])
        svg = figure_svg(figure, page_text("{}: reliability diagram. {}", title, note))
    rows = [
        [f"{counts[place]:,}", percent(confidence[place]), percent(right[place])] for place in known
    ]
    heads = [page_text("predictions"), page_text("mean confidence"), page_text("accuracy")]
    return Chart(title, svg, heads, rows, note)


def thin(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """Few enough to draw: the lowest and the highest of each stretch."""
    if len(points) <= most:
        return list(points)
    values = np.array([value for _, value in points])
    kept = {0, len(points) - 1}
    for stretch in np.array_split(np.arange(len(points)), most // 2):
        kept |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
    return [points[place] for place in sorted(kept)]


def _axes(
    width: float,
    height: float,
    *,
    left: float = LEFT,
    right: float = RIGHT,
    bottom: float = BOTTOM,
) -> tuple["Figure", "Axes"]:
    """Axes with room in points around them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes(
        (
            left / width,
            bottom / height,
            (width - left - right) / width,
            (height - TOP - bottom) / height,
        )
    )
    axes.xaxis.set_gid("x-axis")
    axes.yaxis.set_gid("y-axis")
    return figure, axes


def _draw_line(axes: "Axes", line: Sequence[Point], place: int) -> None:
    colour, dash = SERIES[place % len(SERIES)], (0, (5, 2)) if place % 2 else "-"
    parts = _split(line)
    xs, ys = list[float](), list[float]()
    for part in parts:
        few = thin(part)
        xs += [*(x for x, _ in few), math.nan]
        ys += [*(y for _, y in few), math.nan]
    axes.plot(xs, ys, color=colour, linestyle=dash, gid=f"series-{place}")
    finite = [point for part in parts for point in part]
    alone = [part[0] for part in parts if len(part) == 1]
    dots = finite if len(finite) <= MAX_DOTS else alone
    if dots:
        _draw_dots(axes, dots, colour, 4, gid=f"series-dots-{place}")


def _draw_intervals(axes: "Axes", line: Sequence[Point], ends: Sequence[Point], place: int) -> None:
    """An upright line from one end to the other at each point."""
    xs = [x for point in line for x in (point[0], point[0], math.nan)]
    ys = [y for low, high in ends for y in (low, high, math.nan)]
    axes.plot(
        xs, ys, color=SERIES[place % len(SERIES)], linewidth=1.2, gid=f"series-interval-{place}"
    )


def _draw_dots(
    axes: "Axes", points: Sequence[Point], colour: str, size: float, gid: str = "series-mark"
) -> None:
    """Lines of no length with round ends: they stay round when a curve is zoomed."""
    xs = [x for point in points for x in (point[0], point[0], math.nan)]
    ys = [y for point in points for y in (point[1], point[1], math.nan)]
    axes.plot(xs, ys, color=colour, linewidth=size, solid_capstyle="round", gid=gid, zorder=3)


def _split(points: Sequence[Point]) -> list[list[Point]]:
    """Runs of finite points."""
    parts: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def _rows(
    series: Mapping[str, Sequence[Point]],
    share: bool,
    intervals: Mapping[str, Sequence[Point]],
) -> tuple[list[list[str]], int]:
    """A row for each place that any line has a point at, of many some; how many are left out. A
    line may have several points at one place, which take as many rows."""
    known: list[dict[float, list[str]]] = []
    for name, line in series.items():
        ends = intervals.get(name, ())
        texts: dict[float, list[str]] = {}
        for number, (x, y) in enumerate(line):
            low_high = [either(end, share) for end in ends[number]] if number < len(ends) else []
            around = f" ({page_text('{} to {}', *low_high)})" if low_high else ""
            texts.setdefault(x, []).append(either(y, share) + around)
        known.append(texts)
    places = sorted({x for texts in known for x in texts})
    kept = places
    if len(places) > MAX_ROWS:
        kept = [places[i] for i in np.linspace(0, len(places) - 1, MAX_ROWS).round().astype(int)]
    rows = [
        [_x_text(x), *cells]
        for x in kept
        for cells in zip_longest(*(texts.get(x, []) for texts in known), fillvalue="")
    ]
    return rows, len(places) - len(kept)


def _x_text(x: float) -> str:
    return f"{x:,.0f}" if float(x).is_integer() else f"{x:.3g}"


def _description(
    title: str, series: Mapping[str, Sequence[Point]], x_label: str, share: bool
) -> str:
    """A chart in words, for screen readers: where each line begins and ends."""
    ends = []
    for name, line in series.items():
        finite = [point for point in line if math.isfinite(point[1])]
        if finite:
            (x0, y0), (x1, y1) = finite[0], finite[-1]
            text = page_text(
                "{} from {} at {} {} to {} at {} {}",
                *(name, either(y0, share), x_label, _x_text(x0)),
                *(either(y1, share), x_label, _x_text(x1)),
            )
            ends.append(text)
    return f"{title}: {'; '.join(ends)}"


def width_of(text: str) -> float:
    """In letters; those of Korean, Chinese and Japanese are wider.

    >>> width_of("cat"), width_of("고양이")
    (3.0, 5.25)
    """
    return sum(1.75 if east_asian_width(letter) in "WF" else 1.0 for letter in text)


def _short(name: str, most: int = 27) -> str:
    name = printable(name).replace("$", r"\$")
    return name if len(name) <= most else f"{name[: most - 1]}…"
