"""Where an axis begins and ends, and the round numbers on it."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALLEST = 1e-9  # values closer to 0 than this are drawn as 0


def ticks(values: Sequence[float], *, share: bool = False, from_zero: bool = True) -> list[float]:
    """Round numbers around all values; with `from_zero` from 0 where nothing is negative, and a
    share that comes beyond one half up to 1.

    >>> ticks([0.91, 0.93], share=True), ticks([2.3, 0.4])
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    >>> ticks([0.65, 0.83], share=True, from_zero=False), ticks([1, 1], share=True, from_zero=False)
    ([0.65, 0.7, 0.75, 0.8, 0.85], [0.9, 0.92, 0.94, 0.96, 0.98, 1.0])
    """
    from matplotlib.ticker import MaxNLocator

    low, high = min(values), max(values)
    if max(abs(low), abs(high)) < SMALLEST:
        low = high = 0.0
    if from_zero and low >= 0:
        low = 0.0
    if share:
        low, high = max(low, 0.0), 1.0 if from_zero and 0.5 < high <= 1 else high
    if high - low < 0.02 * max(abs(low), abs(high)) or high == low:  # noise must not fill the axis
        room = 0.1 * max(abs(low), abs(high)) or 0.1
        low, high = (low - room if low else low), 1.0 if share and high <= 1 else high + room
    locator = MaxNLocator(nbins=5, steps=[1, 2, 5, 10], min_n_ticks=2)
    return [round(float(value), 12) for value in locator.tick_values(low, high)]


def tick_texts(values: Sequence[float], share: bool) -> list[str]:
    """All with as many decimals as they need to differ.

    >>> tick_texts([0.25, 0.3], share=False), tick_texts([0.25, 0.3], share=True)
    (['0.25', '0.30'], ['25%', '30%'])
    """
    decimals = max(math.ceil(-math.log10(values[1] - values[0]) - 1e-6), 0)
    if share:
        return [f"{value:.{max(decimals - 2, 0)}%}" for value in values]
    if decimals > 4 or max(map(abs, values)) >= 1e5:
        return [f"{value:.3g}" for value in values]
    return [f"{value:,.{decimals}f}" for value in values]


def x_limits(xs: Sequence[float], log: bool) -> tuple[float, float]:
    """From 0 if the first point is near it, with room for the dots at both ends.

    >>> x_limits([25, 1000], log=False)
    (-15.0, 1015.0)
    """
    first, last = (math.log10(x) if log else x for x in (min(xs), max(xs)))
    if first == last:
        first, last = first - 1, last + 1
    elif not log and 0 < first <= last / 2:
        first = 0.0
    room = 0.015 * (last - first)
    low, high = first - room, last + room
    return (10**low, 10**high) if log else (low, high)


def set_linear_ticks(axes: "Axes") -> None:
    """Few numbers, whole ones where at least three of them are in sight."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_xlim()
    whole = math.floor(high) - math.ceil(low) > 1
    locator = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=whole)
    step = min(abs(b - a) for a, b in pairwise(locator.tick_values(low, high)))
    exact = (n for n in range(12) if math.isclose(round(step, n), step, rel_tol=1e-6))
    decimals = next(exact, 12)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.{decimals}f}")


def set_log_ticks(axes: "Axes") -> None:
    """Powers of ten without markup, where there are few of them also twice and five times, and
    where there is no room for two of these, as on a linear axis."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = axes.get_xlim()
    steps = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    places = [step * 10.0**power for power in powers for step in steps]
    axes.xaxis.set_minor_formatter(NullFormatter())
    if sum(low <= place <= high for place in places) < 2:
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: short_power(f"{value:.3g}"))
        return
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axes.xaxis.set_major_formatter(lambda value, _: power_text(value))


def power_text(value: float) -> str:
    """
    >>> power_text(100.0), power_text(1e12), power_text(0.01)
    ('100', '1e12', '0.01')
    """
    if 1e-3 <= value < 1e5:
        return f"{value:,.0f}" if value >= 1 else f"{value:g}"
    return short_power(f"{value:.0e}")


def short_power(text: str) -> str:
    """
    >>> short_power("1.55e+10"), short_power("2e-05")
    ('1.55e10', '2e-5')
    """
    return text.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
