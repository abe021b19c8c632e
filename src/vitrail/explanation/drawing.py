"""Tiles, images and axes of figures, by matplotlib in whatever style it is set to."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TICKS = 26  # on a side
DASHED = (0, (4, 3))


def ink() -> Any:
    """The colour of text."""
    from matplotlib import rcParams

    return rcParams["text.color"]


def new_figure(width: float, height: float) -> "Figure":
    """A figure of this size in inches, without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def mosaic(tiles: NDArray[Any], gap: int = 1) -> NDArray[np.float64]:
    """Tiles (R, C, r, c) or (R, C, r, c, 3) as one image, with `gap` empty cells between."""
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
    """A list of tiles (K, …) in rows of `columns`, the last one padded with empty tiles."""
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
    step = math.ceil(len(names) / MAX_TICKS)
    places = np.arange(0, len(names), step)
    axis.set_xticks(places, [str(place + 1) for place in places])
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_xlabel("depth")
    axis.set_ylabel(label)
    axis.grid(axis="y", color=ink(), alpha=0.12, linewidth=0.6)
    axis.set_axisbelow(True)


def evenly_spaced(count: int, most: int) -> list[int]:
    """At most `most` of `count` indices, evenly spread, with the first and the last.

    >>> evenly_spaced(12, 4)
    [0, 4, 7, 11]
    """
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count))})
