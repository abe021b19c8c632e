"""Match the classes of a data set to the outputs of a model, by name or by index."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitrail.core.errors import UserError
from vitrail.core.outputs import Outputs


@dataclass(frozen=True)
class LabelMatch:
    """Class k of the data is output `columns[k]` of a model with these `labels`; `note` says what
    was assumed."""

    labels: tuple[str, ...]
    columns: tuple[int, ...]
    note: str | None = None

    def relabel(self, outputs: Outputs) -> Outputs:
        """The same outputs with targets (N, K) in the order of the model's classes."""
        if self.labels == outputs.labels and self.columns == tuple(range(len(self.labels))):
            return outputs
        targets = np.zeros((outputs.images, len(self.labels)), dtype=outputs.targets.dtype)
        targets[:, self.columns] = outputs.targets
        return replace(outputs, labels=self.labels, targets=targets)


def match_labels(
    known: tuple[str, ...] | None,
    labels: tuple[str, ...],
    *,
    outputs: int,
    names: tuple[str, str],
    by_index: bool = False,
) -> LabelMatch:
    """Match the `labels` of the data to the `known` class names of a model with so many `outputs`:
    by name, in any order, where the model has names, otherwise by index. `names` are those of the
    model and the data in errors.

    >>> match_labels(("a", "b", "c"), ("c", "a"), outputs=3, names=("model", "data")).columns
    (2, 0)
    """
    if outputs == 0:
        raise UserError(f"{names[0]} has no classification head: use vitrail probe")
    if not labels:
        raise UserError(f"{names[1]} has no labels: evaluation needs labelled images")
    if known == labels:
        return LabelMatch(labels, tuple(range(outputs)))
    if known is None or by_index:
        if outputs != len(labels):
            raise UserError(
                f"{names[1]} must have as many classes as {names[0]} has outputs, {outputs}, got "
                f"{len(labels)}"
            )
        why = "the model has no class names" if known is None else "class names differ"
        note = (
            f"{why}; matched by index: output 0 is {labels[0]}, output {outputs - 1} {labels[-1]}"
        )
        return LabelMatch(known or labels, tuple(range(outputs)), note)
    places = {label: place for place, label in enumerate(known)}
    if len(places) < len(known) or not places.keys() >= set(labels):
        raise UserError(why_mismatch(known, labels, names))
    note = f"classes matched by name: the data has {len(labels)} of the model's {outputs}"
    return LabelMatch(known, tuple(places[label] for label in labels), note)


def why_mismatch(known: tuple[str, ...], labels: tuple[str, ...], names: tuple[str, str]) -> str:
    """Which classes the model does not know, how many, and what to do.

    >>> why_mismatch(("cat", "dog"), ("emu",), ("model", "data")).partition(": ")[0]
    'none of the 1 classes of data (emu) is a class of model (cat, dog)'
    """
    unknown = [label for label in labels if label not in known]
    model, data = names
    fix = "or train a model on this data" if unknown else "and save it"
    if len(known) == len(labels):
        fix = "or match by index with by_index=True"
    if not unknown:
        return f"two classes of {model} have the same name: rename one, {fix}"
    missing, known_ones = some(unknown), some(known)
    if len(unknown) == len(labels):
        return (
            f"none of the {len(labels)} classes of {data} ({missing}) is a class of {model} "
            f"({known_ones}): rename these classes, {fix}"
        )
    return (
        f"{len(unknown)} of the {len(labels)} classes of {data} ({missing}) are no classes of "
        f"{model} ({known_ones}): rename these classes, {fix}"
    )


def some(labels: Sequence[str]) -> str:
    """
    >>> some(["a", "b", "c", "d"])
    'a, b, c, …'
    """
    return ", ".join([*labels[:3], *(["…"] if len(labels) > 3 else [])])
