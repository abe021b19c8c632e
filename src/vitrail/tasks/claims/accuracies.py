"""Findings, tables and charts that many claims share: accuracies of models, seed by seed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.evaluation.findings import Finding, crossed_interval
from vitrail.evaluation.paired import mean_accuracy, paired_difference
from vitrail.tasks.claims.claim import Drawing, Table
from vitrail.tasks.claims.lab import Lab

TITLE = "Accuracy on the test images"
PAIRED = "differences of each seed and test image; both count as chance"
COLUMNS = (
    "model", "#training images", "%accuracy", "~95 % interval", "#seeds", "#parameters",
    "#multiply-adds", "#training seconds",
)  # fmt: skip


def ahead(
    lab: Lab, first: str, second: str, sentence: str, *, share: float = 1.0, margin: float = 0.0
) -> Finding:
    """That the first model is more accurate than the second, by more than a margin."""
    found = paired_difference(lab.right(first, share=share), lab.right(second, share=share))
    return Finding(
        sentence=sentence,
        estimate=found.difference,
        interval=found.interval,
        above=margin,
        unit="points",
        how=PAIRED,
    )


def alike(
    first: NDArray[np.bool_], second: NDArray[np.bool_], sentence: str, *, margin: float
) -> Finding:
    """That two models are equally accurate, but for a margin."""
    found = paired_difference(first, second)
    return Finding(
        sentence=f"{sentence} (within {100 * margin:g} points)",
        estimate=found.difference,
        interval=found.interval,
        above=-margin,
        below=margin,
        unit="points",
        how=PAIRED,
    )


def difference_grows(
    small: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    large: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    sentence: str,
) -> Finding:
    """That the lead of the first of two models is larger in the second pair than in the first."""
    before, after = (one.astype(np.float64) - two for one, two in (small, large))
    mean, interval = crossed_interval(after - before)
    return Finding(
        sentence=sentence,
        estimate=mean,
        interval=interval,
        above=0.0,
        unit="points",
        how=f"difference of differences: {PAIRED}",
    )


def accuracy_table(
    lab: Lab,
    models: Sequence[str],
    *,
    shares: Sequence[float] = (1.0,),
    title: str = TITLE,
) -> Table:
    """A row for each model and share of the labels: means over seeds."""
    rows = []
    for share in shares:
        for model in models:
            cells, right = lab.cells(model, share=share), lab.right(model, share=share)
            accuracy, interval = mean_accuracy(right)
            first, seconds = cells[0], float(np.mean([one.seconds for one in cells]))
            rows.append(
                (
                    model,
                    first.labelled,
                    accuracy,
                    interval,
                    len(cells),
                    first.params,
                    first.macs,
                    round(seconds, 1),
                )
            )
    return Table(title=title, columns=COLUMNS, rows=tuple(rows))


def accuracy_bars(lab: Lab, models: Sequence[str], *, share: float = 1.0) -> Drawing:
    bars = {model: float(lab.right(model, share=share).mean()) for model in models}
    return Drawing(
        title="Accuracy", kind="bars", bars=bars, share=True, note="means over seeds, test images"
    )


def accuracy_lines(
    lines: dict[str, list[tuple[float, NDArray[np.bool_]]]], *, title: str, x_label: str
) -> Drawing:
    """Lines of mean accuracies with intervals over a number that is not spaced evenly."""
    drawn = {}
    for name, points in lines.items():
        drawn[name] = [
            [x, accuracy, low, high]
            for x, right in points
            for accuracy, (low, high) in [mean_accuracy(right)]
        ]
    note = "means over seeds with intervals of 95 %"
    return Drawing(
        title=title, kind="lines", lines=drawn, x_label=x_label, share=True, log_x=True, note=note
    )
