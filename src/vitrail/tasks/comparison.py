"""The result of `vitrail.compare`: every run, means over seeds, paired tests, and their page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.errors import UserError
from vitrail.core.json_text import plain_values
from vitrail.evaluation.intervals import LEVEL
from vitrail.evaluation.paired import HOW, PairedDifference, holm, mean_accuracy, paired_difference
from vitrail.pages.comparison import comparison_page, share_text, size_text
from vitrail.pages.render import percent
from vitrail.tasks.compare_plan import ComparePlan
from vitrail.tasks.compare_runs import CellResult
from vitrail.tasks.html_record import HtmlRecord

SHOWN = 6  # means in a repr


@dataclass(frozen=True, kw_only=True)
class ModelMean:
    """A model with one share of the labels at one image size: its mean accuracy over `seeds` with
    an interval that counts seeds and test images as chance, the range of the seeds, and its mean
    cost in training FLOPs and seconds."""

    model: str
    share: float
    image_size: tuple[int, int]
    seeds: tuple[int, ...]
    labelled: int  # training images
    accuracy: float
    interval: tuple[float, float]
    lowest: float
    highest: float
    params: int
    macs: int
    flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """Two models with the same share, size, seeds and test images: the accuracy of the first minus
    that of the second. `p_holm` is corrected for all pairs of the comparison."""

    first: str
    second: str
    share: float
    image_size: tuple[int, int]
    seeds: tuple[int, ...]
    difference: float
    interval: tuple[float, float]
    p_value: float
    p_holm: float
    mcnemar: tuple[float, ...]

    @property
    def is_clear(self) -> bool:
        return self.p_holm < 1 - LEVEL

    @property
    def sentence(self) -> str:
        """The test in words."""
        better, worse, (low, high) = self.first, self.second, self.interval
        if self.difference < 0:
            better, worse, (low, high) = worse, better, (-high, -low)
        size = size_text(self.image_size)
        labels = f"with {share_text(self.share)} of the labels at {size} pixels"
        if len(self.seeds) == 1:
            labels += " (one seed alone: how much runs differ is not counted)"
        p_value = "p < 0.001" if self.p_holm < 0.001 else f"p = {self.p_holm:.2g}"
        proof = f"({100 * low:+.1f} to {100 * high:+.1f}; {p_value} after Holm's correction)"
        points = f"by {abs(100 * self.difference):.1f} points {proof}"
        if self.is_clear:
            return f"{better} is better than {worse} {points}, {labels}"
        if self.difference == 0:
            return f"{better} and {worse} are equally accurate {proof}, {labels}"
        return f"{better} is ahead of {worse} {points}, which may be chance, {labels}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(HtmlRecord):
    """Models compared at shares of the labels: `cells` are the runs, `means` those over seeds,
    `tests` pairs of models. `remaining` names runs that are left; `stopped` says that Ctrl-C left
    them, and the same call goes on with them."""

    plan: ComparePlan
    out: Path
    cells: tuple[CellResult, ...]
    means: tuple[ModelMean, ...]
    tests: tuple[PairTest, ...]
    remaining: tuple[str, ...] = ()
    stopped: bool = False

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON: what `vitrail compare --json` prints."""
        cells = self.cells
        facts = {
            "out": str(self.out),
            "report": str(self.out / "report.html"),
            "data": self.plan.data,
            "split": cells[0].split if cells else None,
            "test_images": cells[0].test_images if cells else None,
            "settings": asdict(self.plan),
            "cells": [one.facts() for one in cells],
            "means": [asdict(one) for one in self.means],
            "tests": [{**asdict(one), "sentence": one.sentence} for one in self.tests],
            "how": HOW,
            "machine": self.machine,
            "remaining": list(self.remaining),
            "stopped": self.stopped,
        }
        return dict(plain_values(facts))

    @property
    def machine(self) -> list[str]:
        """The processors that trained, and with how many threads."""
        found = ((one.processor, one.threads) for one in self.cells)
        return [f"{name}, {n} thread{'' if n == 1 else 's'}" for name, n in dict.fromkeys(found)]

    def html(self) -> str:
        """The page: curves over the share of labels and over cost, the table, tests in words."""
        return comparison_page(self.facts())

    def __repr__(self) -> str:
        lines = [f"Comparison({len(self.cells)} runs, {len(self.remaining)} left)"]
        for one in self.means[:SHOWN]:
            low, high = one.interval
            scores = f"{percent(one.accuracy)} ({percent(low)} to {percent(high)})"
            lines.append(f"{one.model}, {share_text(one.share)} of labels: {scores}")
        if len(self.means) > SHOWN:
            lines.append(f"… {len(self.means) - SHOWN} more")
        return "\n".join(lines)


def compare_cells(
    plan: ComparePlan, out: Path, cells: Sequence[CellResult], *, stopped: bool = False
) -> Comparison:
    """The means and the tests of the runs that are finished, in the order of the plan."""
    if len({one.test_digest for one in cells}) > 1:
        raise UserError(
            f"{out}: runs were tested on different images: the data has changed, compare again in "
            "another out"
        )
    groups: dict[tuple[float, tuple[int, int]], dict[str, list[CellResult]]] = {}
    names = [model.name for model in plan.models]
    order = {cell.name: place for place, cell in enumerate(plan.cells)}
    cells = sorted(cells, key=lambda one: order[one.name])
    for one in cells:
        models = groups.setdefault((one.share, one.image_size), {})
        models.setdefault(one.model, []).append(one)
    means = [
        model_mean(models[name])
        for _, models in sorted(groups.items())
        for name in names
        if name in models
    ]
    pairs = [
        (key, first, second, *common_seeds(models[first], models[second]))
        for key, models in sorted(groups.items())
        for first, second in combinations([name for name in names if name in models], 2)
    ]
    pairs = [pair for pair in pairs if pair[3]]
    tests = [paired_difference(stack(one), stack(two)) for *_, one, two in pairs]
    return Comparison(
        plan=plan,
        out=out,
        cells=tuple(cells),
        means=tuple(means),
        tests=tuple(pair_tests(pairs, tests)),
        remaining=tuple(name for name in order if name not in {one.name for one in cells}),
        stopped=stopped,
    )


def pair_tests(pairs: Sequence[Any], tests: Sequence[PairedDifference]) -> list[PairTest]:
    corrected = holm([test.p_value for test in tests])
    return [
        PairTest(
            first=first,
            second=second,
            share=share,
            image_size=size,
            seeds=tuple(cell.seed for cell in one),
            **asdict(test),
            p_holm=p_holm,
        )
        for ((share, size), first, second, one, _), test, p_holm in zip(
            pairs, tests, corrected, strict=True
        )
    ]


def common_seeds(
    first: Sequence[CellResult], second: Sequence[CellResult]
) -> tuple[list[CellResult], list[CellResult]]:
    """The runs of both that have the same seeds."""
    one, two = ({cell.seed: cell for cell in cells} for cells in (first, second))
    seeds = [seed for seed in one if seed in two]
    return [one[seed] for seed in seeds], [two[seed] for seed in seeds]


def stack(cells: Sequence[CellResult]) -> Any:
    return np.stack([cell.right for cell in cells])


def model_mean(cells: Sequence[CellResult]) -> ModelMean:
    first, accuracies = cells[0], [cell.accuracy for cell in cells]
    accuracy, interval = mean_accuracy(stack(cells))
    return ModelMean(
        model=first.model,
        share=first.share,
        image_size=first.image_size,
        seeds=tuple(cell.seed for cell in cells),
        labelled=first.labelled,
        accuracy=accuracy,
        interval=interval,
        lowest=min(accuracies),
        highest=max(accuracies),
        params=first.params,
        macs=first.macs,
        flops=float(np.mean([cell.flops for cell in cells])),
        seconds=float(np.mean([cell.seconds for cell in cells])),
    )
