"""Drawings in one quiet style: as SVG that takes the colours of the page it lies on, and as PNG."""

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, OTHER = "#1d2730", "#2f86c9", "#d95434"  # the last two are seen on white and on black
COLOURS = (ACCENT, OTHER, "#3a9d6c", "#a06cc4", "#c49a2b", "#7d8893")
QUIET: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.titlesize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",  # text stays text
    "savefig.facecolor": "none",
}
DPI = 200
NAMES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
MOST_NAMES = 26  # ticks on a side


@contextmanager
def quiet() -> Iterator[None]:
    """The style, for as long as something is drawn."""
    from matplotlib import rc_context

    with rc_context(QUIET):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float) -> "Figure":
    """A figure of so many inches that no window shows."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def as_svg(figure: "Figure", name: str) -> str:
    """The drawing as an SVG element: what is ink takes the colour of the text around it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.StringIO()
    with quiet(), rc_context({"svg.hashsalt": name}):  # the same bytes every time, no id twice
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None})
    drawn = file.getvalue()
    box = re.search(r'viewBox="([^"]*)"', drawn)
    assert box is not None, "a drawing without a size"
    inside = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    # names that nothing refers to, and that two drawings on a page would share
    inside = re.sub(r'(<g|<image[^>]*?) id="[^"]*"', r"\1", re.sub(r"^<svg[^>]*>", "", inside))
    widest = round(120 * figure.get_figwidth())  # pixels: text stays as large as a page's
    start = (
        f'<svg class="plate" viewBox="{box[1]}" style="max-width:{widest}px" role="img" {NAMES}>'
    )
    return start + inside.replace(INK, "currentColor")


def as_svg_file(element: str) -> str:
    """The element as a file of its own, on white, which readers in the dark need."""
    white = f'style="background:#fff;color:{INK}"'
    alone = re.sub(r'style="max-width:[^"]*"', white, element, count=1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{alone}'


def as_png(figure: "Figure") -> bytes:
    """The drawing in pixels, on white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = io.BytesIO()
    with quiet():
        FigureCanvasAgg(figure)
        figure.savefig(file, format="png", dpi=DPI, facecolor="white")
    return file.getvalue()


def mosaic(tiles: NDArray[Any], gap: int = 1) -> NDArray[np.float64]:
    """Tiles (R, C, r, c) or (R, C, r, c, 3) as one image, with so many empty cells between."""
    down, across, high, wide = tiles.shape[:4]
    shape = (down * (high + gap) - gap, across * (wide + gap) - gap, *tiles.shape[4:])
    whole = np.full(shape, np.nan)
    for row in range(down):
        for column in range(across):
            top, left = row * (high + gap), column * (wide + gap)
            whole[top : top + high, left : left + wide] = tiles[row, column]
    return whole


def with_holes(colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Colours (r, c, 3) with what is not a number made transparent."""
    alpha = np.isfinite(colours).all(axis=-1, keepdims=True)
    return np.concatenate([np.nan_to_num(colours, nan=1.0).clip(0, 1), alpha], axis=-1)


def in_rows(tiles: NDArray[Any], columns: int) -> NDArray[Any]:
    """A list of tiles (K, …) as rows of so many, the last one filled up with empty ones."""
    rows = math.ceil(len(tiles) / columns)
    missing = np.full((rows * columns - len(tiles), *tiles.shape[1:]), np.nan)
    return np.concatenate([tiles, missing]).reshape(rows, columns, *tiles.shape[1:])


def show(axis: "Axes", image: NDArray[Any], **how: Any) -> Any:
    """An image whose pixels stay squares at any size, without a frame."""
    from matplotlib import colormaps

    if "cmap" in how:
        how["cmap"] = colormaps[how["cmap"]].with_extremes(bad=(0, 0, 0, 0))
    shown = axis.imshow(image, interpolation="none", **how)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    return shown


def key(figure: "Figure", shown: Any, axes: Any, label: str) -> None:
    """The scale of colours beside an image."""
    bar = figure.colorbar(shown, ax=axes, shrink=0.75, aspect=24, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(label)


def by_depth(axis: "Axes", names: Sequence[str], label: str) -> None:
    """An axis of layers, each under its number, from 1."""
    step = math.ceil(len(names) / MOST_NAMES)
    places = np.arange(0, len(names), step)
    axis.set_xticks(places, [str(place + 1) for place in places])
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_xlabel("depth")
    axis.set_ylabel(label)
    axis.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    axis.set_axisbelow(True)


def spread_out(count: int, most: int) -> list[int]:
    """At most so many of `count` things, the first and the last among them.

    >>> spread_out(12, 4)
    [0, 4, 7, 11]
    """
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count))})
