"""From the labels that people write to class numbers.

Whole numbers are class numbers and mean themselves: a data set that shows 0, 1 and 3 has four
classes, one of them empty, so that its numbers fit a model that was trained on all. Anything else
is a name, and names are numbered in sorted order. All parts of a data set share their classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError

# Beyond this a whole number is somebody's identifier, no class number.
MOST_CLASSES = 100_000


def number_classes(
    parts: Mapping[str, Sequence[str]],
) -> tuple[tuple[str, ...], dict[str, NDArray[np.int64]]]:
    """Class names, and the class number of every image of every part, from one label each.

    >>> number_classes({"train": ["dog", "cat"], "test": ["cat"]})
    (('cat', 'dog'), {'train': array([1, 0]), 'test': array([0])})
    """
    names, place = classes_of({label for labels in parts.values() for label in labels})
    return names, {
        part: np.array([place[label] for label in labels], dtype=np.int64)
        for part, labels in parts.items()
    }


def number_sets(
    parts: Mapping[str, Sequence[Sequence[str]]],
) -> tuple[tuple[str, ...], dict[str, NDArray[np.uint8]]]:
    """Class names, and a row of zeros and ones for every image, from any number of labels each.

    >>> number_sets({"train": [["dog", "cat"], []]})
    (('cat', 'dog'), {'train': array([[1, 1],
           [0, 0]], dtype=uint8)})
    """
    names, place = classes_of({label for sets in parts.values() for each in sets for label in each})
    rows = {}
    for part, sets in parts.items():
        rows[part] = np.zeros((len(sets), len(names)), dtype=np.uint8)
        for row, labels in zip(rows[part], sets, strict=True):
            row[[place[label] for label in labels]] = 1
    return names, rows


def classes_of(found: set[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """The names of all classes, and the number of the class that each label means."""
    if found and all(label.isdecimal() and label.isascii() for label in found):
        highest = max(map(int, found))
        if highest < MOST_CLASSES:
            return tuple(map(str, range(highest + 1))), {label: int(label) for label in found}
    names = tuple(sorted(found))
    return names, {name: number for number, name in enumerate(names)}


def number_arrays(
    parts: Mapping[str, NDArray[Any]], names: tuple[str, ...] = (), *, where: str
) -> tuple[tuple[str, ...], dict[str, NDArray[Any]]]:
    """The same for labels that are arrays: class numbers (N,), rows (N, K), or names (N,)."""
    parts = _squeezed(parts)
    if not parts:
        return (), {}
    if all(labels.dtype.kind in "US" for labels in parts.values()):
        return number_classes({name: labels.astype(str).tolist() for name, labels in parts.items()})
    for name, labels in parts.items():
        if labels.dtype.kind not in "iub":
            raise UserError(
                f"{where}: the labels of {name} are {labels.dtype}, expected whole numbers or names"
            )
        if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < MOST_CLASSES:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise UserError(
                f"{where}: {name} has the label {wrong}, expected class numbers from 0 on"
            )
    widths = {labels.shape[1] if labels.ndim == 2 else 0 for labels in parts.values()}
    if len(widths) > 1:
        raise UserError(f"{where}: the parts have labels of different shapes, expected one shape")
    classes = widths.pop() or max(
        (int(labels.max()) + 1 for labels in parts.values() if labels.size), default=0
    )
    if names and len(names) < classes:
        raise UserError(f"{where}: {len(names)} names for {classes} classes: name every class")
    return names or tuple(map(str, range(classes))), {
        name: labels.astype(np.uint8 if labels.ndim == 2 else np.int64)
        for name, labels in parts.items()
    }


def _squeezed(parts: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """(N, 1) is (N,); where each row of every part has exactly one 1, its place is the class."""
    flat = {
        name: labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        for name, labels in parts.items()
    }
    rows = [labels for labels in flat.values() if labels.ndim == 2 and labels.dtype.kind in "iubf"]
    if len(rows) < len(flat) or not all(np.isin(labels, (0, 1)).all() for labels in rows):
        return flat
    if all((labels.sum(axis=1) == 1).all() for labels in rows):
        return {name: labels.argmax(axis=1) for name, labels in flat.items()}
    return {name: labels.astype(np.uint8) for name, labels in flat.items()}
