"""Curves of what a run logged: training and validation together, then every other value."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.pages.charts import Chart, Point, line_chart
from vitrail.pages.render import either
from vitrail.pages.translation import count, page_text

# Values that are shares of 1, the higher the better: title, and what it means.
SHARES = {
    "accuracy": ("Accuracy", "of the images are classified correctly"),
    "top5": ("Top-5 accuracy", "of the images have their label among the top five predictions"),
    "mean_precision": (
        "Mean average precision",
        "how well the images of a class are ranked above all others, averaged over classes",
    ),
    "exact": ("Exact match", "of the images have exactly their labels predicted"),
}
TITLES = {
    "loss": "Loss",
    "val_loss": "Validation loss",
    "accuracy": "Accuracy",
    "train_accuracy": "Training accuracy",
    **{name: title for name, (title, _) in SHARES.items() if name != "accuracy"},
    "grad_norm": "Gradient norm",
    "data_seconds": "Seconds waiting for data",
    "data_share": "Time spent waiting for data",
    "lr": "Learning rate",
}
# Drawn in one chart, training first in all of them, so that each keeps its colour.
PAIRS = {"loss": "val_loss", "accuracy": "train_accuracy"}
TRAINING = ("loss", "train_accuracy")
NOT_DRAWN = ("step", "epoch", "seconds")

Line = Mapping[str, Any]


def training_curves(lines: Sequence[Line], best_step: int | None = None) -> list[Chart]:
    """A chart for each value of metrics.jsonl. Of values that tie for the best, that of `best_step`
    is marked."""
    lines = [with_waiting_share(line) for line in lines]
    paired = {PAIRS[name] for name in PAIRS if any(name in line for line in lines)}
    found = [_chart(lines, name, best_step) for name in logged_names(lines) if name not in paired]
    return [chart for chart in found if chart is not None]


def logged_names(lines: Sequence[Line]) -> list[str]:
    """What was logged: known values in their order, then the others."""
    names = dict.fromkeys(name for line in lines for name in line if name not in NOT_DRAWN)
    return [*(name for name in TITLES if name in names), *(n for n in names if n not in TITLES)]


def points_of(lines: Sequence[Line], name: str) -> list[Point]:
    """(step, value) of each line that has this value; what is not finite, which the log writes as
    null, stays as a gap.

    >>> points_of([{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}], "loss")
    [(1.0, 2.0), (2.0, nan)]
    """
    return [
        (float(line["step"]), math.nan if line[name] is None else float(line[name]))
        for line in lines
        if isinstance(line.get("step"), int | float)
        and isinstance(line.get(name, ""), int | float | None)
        and not isinstance(line[name], bool)
    ]


def title_of(name: str) -> str:
    return page_text(TITLES.get(name) or SHARES.get(name, (name, ""))[0])


def is_share(name: str) -> bool:
    return name in SHARES or name in ("train_accuracy", "data_share")


def with_waiting_share(line: Line) -> Line:
    """A line with the share of its time that was spent waiting, where both are known."""
    waited, whole = line.get("data_seconds"), line.get("seconds")
    if not isinstance(waited, int | float) or not isinstance(whole, int | float) or whole <= 0:
        return line
    share = {"data_share": min(waited / whole, 1.0)}
    return {**{name: line[name] for name in line if name != "data_seconds"}, **share}


def finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point[1])]


def _chart(lines: Sequence[Line], name: str, best_step: int | None) -> Chart | None:
    """None without a finite point."""
    points = points_of(lines, name)
    known = finite(points)
    if not known:
        return None
    best, share = name in SHARES, is_share(name)
    step, value = known[-1]
    if best:
        step, value = max(known, key=lambda point: (point[1], point[0] == best_step))
    lost = len(points) - len(known)
    where = (either(value, share), f"{step:,.0f}")
    notes = [page_text("best {} at step {}" if best else "last {} at step {}", *where)]
    notes += [page_text("{} not finite", count(lost, "value"))] if lost else []
    other = PAIRS.get(name, "")
    beside = finite(points_of(lines, other))
    title = page_text("Training loss") if name == "loss" and not beside else title_of(name)
    series = {title: points}
    if beside:
        pair = (points, beside) if name in TRAINING else (beside, points)
        series = dict(zip((page_text("training"), page_text("validation")), pair, strict=True))
    if beside and name in TRAINING:
        notes.append(page_text("validation {}", either(beside[-1][1], share)))
    mark = (step, value) if best else None
    return line_chart(title, series, share=share, mark=mark, note="; ".join(notes))
