"""Sections about what a classifier gets right and wrong: confusions, classes, mistakes, and the
images of each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitrail.pages.render import Section, render
from vitrail.pages.translation import page_text

MAX_MATRIX, MATRIX_PART = 40, 30  # classes of a whole matrix, and of the part of a larger one
# Classes up to which column labels are horizontal, and above which cells are small.
FEW, DENSE = 4, 12
MAX_PAIRS, MAX_LABELS = 15, 6
GALLERY = "by-class"  # where the images of a class or of a confusion are

Labels = Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Example:
    """An image with its labels and the predicted ones, each with the model's probability. `truth`
    and `predicted` are places of classes, None where an image may have several labels."""

    uri: str
    name: str
    true_labels: Labels
    predicted_labels: Labels
    truth: int | None = None
    predicted: int | None = None


def confusion_section(
    labels: Sequence[str], matrix: Any, *, examples: Sequence[Example] = ()
) -> Section:
    """`matrix` (K, K) counts images of each class (rows) by what was predicted (columns); of many
    classes those that are confused most. A number leads to its images if `examples` have any."""
    counts = np.asarray(matrix, dtype=np.int64)
    if not counts.sum():
        return Section("confusions", "Confusions", Markup())
    shown = np.arange(len(counts))
    if len(counts) > MAX_MATRIX:
        shown = np.sort(most_confused_classes(counts, MATRIX_PART))
    rest = counts[shown].sum(axis=1) - counts[np.ix_(shown, shown)].sum(axis=1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    rows = [
        [
            (int(predicted), int(counts[truth, predicted]), float(shares[truth, predicted]))
            for predicted in shown
        ]
        for truth in shown
    ]
    body = render(
        "confusion.html",
        labels=labels,
        shown=shown.tolist(),
        rows=rows,
        rest=rest.tolist() if len(shown) < len(counts) else None,
        pairs=confused_pairs(labels, counts) if len(counts) > 2 else [],
        size="few" if len(shown) <= FEW else "dense" if len(shown) > DENSE else "",
        images=int(counts.sum()),
        gallery=GALLERY,
        linked={(one.truth, one.predicted) for one in examples},
    )
    return Section("confusions", "Confusions", body)


def most_confused_classes(counts: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Classes of the most frequent confusions, up to `most` of them; at least two.

    >>> most_confused_classes(np.array([[5, 0, 0], [0, 4, 1], [0, 2, 3]]), 2).tolist()
    [2, 1]
    """
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[: int(np.count_nonzero(wrong))]
    classes: dict[int, None] = {}
    for place in order.tolist():
        pair = dict.fromkeys(divmod(place, len(counts)))
        if len(classes | pair) <= most:
            classes |= pair
        if len(classes) == most:
            break
    return np.array(list(classes) or [0, 1], dtype=np.int64)


def confused_pairs(labels: Sequence[str], counts: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The most frequent confusions: truth, prediction, images, and their share of the class."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_PAIRS]
    pairs = [divmod(int(place), len(counts)) for place in order]
    return [
        {
            "truth": truth,
            "predicted": predicted,
            "images": int(wrong[truth, predicted]),
            "share": wrong[truth, predicted] / counts[truth].sum(),
        }
        for truth, predicted in pairs
        if wrong[truth, predicted]
    ]


def classes_section(
    classes: Sequence[Mapping[str, Any]], *, multi_label: bool, examples: Sequence[Example] = ()
) -> Section:
    """`classes` have label, images, precision, recall, f1, average_precision (null where there is
    nothing to divide by) and, optionally, marked; the worst come first. A class leads to its images
    if `examples` have any."""
    key = "average_precision" if multi_label else "f1"
    columns = ["precision", "recall", "f1", *(["average_precision"] if multi_label else [])]
    rows = [{**row, "place": place} for place, row in enumerate(classes)]
    rows.sort(key=lambda row: (not row["images"], _or_zero(row[key])))
    if (
        sum(row.get("marked", False) for row in rows) > len(rows) / 2
    ):  # most classes are bad: none stands out
        rows = [{**row, "marked": False} for row in rows]
    present = [row for row in rows if row["images"]]
    body = render(
        "classes.html",
        rows=rows,
        columns=columns,
        key=key,
        means={name: mean_of([row[name] for row in present]) for name in columns},
        images=sum(row["images"] for row in rows),
        multi_label=multi_label,
        gallery=GALLERY,
        linked={one.truth for one in examples},
    )
    return Section("classes", "Classes", body if classes else Markup())


def mistakes_section(
    galleries: Mapping[str, Sequence[Example]],
    *,
    images: int,
    wrong: int,
    multi_label: bool,
    root: str = "",
) -> Section:
    """Images that are classified wrongly, in galleries by title; names are relative to `root`. A
    gallery with the images of an earlier one, as for two classes, is left out."""
    different = {
        frozenset(one.name for one in several): title
        for title, several in reversed(list(galleries.items()))
    }
    body = render(
        "mistakes.html",
        galleries={
            title: _figures(several, multi_label, root)
            for title, several in galleries.items()
            if title in different.values()
        },
        images=images,
        wrong=wrong,
        multi_label=multi_label,
    )
    return Section("mistakes", "Worst mistakes", body)


def by_class_section(examples: Sequence[Example], *, root: str = "") -> Section:
    """Images that a click on a class or on a confusion chooses from."""
    body = render("by_class.html", figures=_figures(examples, False, root), gallery=GALLERY)
    return Section(GALLERY, "Images by class", body)


def skipped_section(broken: Mapping[str, str]) -> Section:
    """Every image that could not be read, by name."""
    return Section(
        "skipped", "Skipped images", render("skipped.html", broken=dict(sorted(broken.items())))
    )


def pick_rows(
    truth: NDArray[np.int64], predicted: NDArray[np.int64], most: int = 120, each: int = 2
) -> list[int]:
    """Rows of images to show: of each confusion `each`, the frequent ones first, then right ones
    of each class, until there are `most`.

    >>> pick_rows(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), most=3)
    [1, 0, 2]
    """
    cells: dict[tuple[int, int], list[int]] = {}
    for row, cell in enumerate(zip(truth.tolist(), predicted.tolist(), strict=True)):
        cells.setdefault(cell, []).append(row)
    frequent = sorted(cells.items(), key=lambda item: -len(item[1]))
    confused = [rows for (a, b), rows in frequent if a != b]
    wrong = [rows[turn] for turn in range(each) for rows in confused if turn < len(rows)]
    right = [rows[:each] for (a, b), rows in sorted(cells.items()) if a == b]
    fine = [rows[turn] for turn in range(each) for rows in right if turn < len(rows)]
    room = max(most - len(fine), most * 2 // 3)
    return (wrong[:room] + fine)[:most]


def mean_of(values: Sequence[float | None]) -> float | None:
    """
    >>> mean_of([0.5, None, 1.0]), mean_of([])
    (0.75, None)
    """
    known = [value for value in values if value is not None and not math.isnan(value)]
    return sum(known) / len(known) if known else None


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None or math.isnan(value) else value


def _figures(examples: Sequence[Example], multi_label: bool, root: str) -> list[dict[str, Any]]:
    """What a figure shows: labels that the other side does not have are wrong, and first."""
    figures = []
    for one in examples:
        truth, predicted = (
            {label for label, _ in side} for side in (one.true_labels, one.predicted_labels)
        )
        figures.append(
            {
                "uri": one.uri,
                "name": one.name,
                "short": one.name.removeprefix(f"{root.rstrip('/')}/"),
                "truth": one.truth,
                "predicted": one.predicted,
                "sides": [
                    (page_text("pred."), _marked(one.predicted_labels, truth)),
                    (
                        page_text("true"),
                        _marked(one.true_labels, predicted if multi_label else truth),
                    ),
                ],
            }
        )
    return figures


def _marked(labels: Labels, other: set[str]) -> dict[str, Any]:
    ranked = sorted(labels, key=lambda named: named[0] in other)
    return {
        "labels": [(label, chance, label in other) for label, chance in ranked[:MAX_LABELS]],
        "more": max(len(labels) - MAX_LABELS, 0),
    }
