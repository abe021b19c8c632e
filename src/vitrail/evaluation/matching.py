"""Which class of a data set is which output of a model."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.data.source import Raw, Source
from vitrail.models.model import Model


class Relabelled:
    """The same images with the labels of a model, in its order: class number k of `source` is
    number `columns[k]`."""

    def __init__(self, source: Source, labels: tuple[str, ...], columns: tuple[int, ...]) -> None:
        self.source, self.labels = source, labels
        self.targets = moved_to(source.targets, columns, len(labels))

    @property
    def uniform(self) -> bool:
        return self.source.uniform

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Raw:
        return self.source.read(index)

    def name(self, index: int) -> str:
        return self.source.name(index)


def moved_to(
    targets: NDArray[Any] | None, columns: tuple[int, ...], classes: int
) -> NDArray[Any] | None:
    """
    >>> moved_to(np.array([0, 1, 1]), (7, 2), 10).tolist()
    [7, 2, 2]
    """
    if targets is None:
        return None
    if targets.ndim == 1:
        return np.array(columns)[targets]
    wide = np.zeros((len(targets), classes), dtype=targets.dtype)
    wide[:, columns] = targets
    return wide


def matched(
    model: Model, source: Source, *, names: tuple[str, str], by_order: bool = False
) -> tuple[Source, str | None]:
    """The source with targets that mean the model's outputs, and what was assumed for that.

    By name where the model has names: the data may have some of its classes only, and in another
    order. Without names, or where a person says so, by order. `names` are what a person calls the
    model and the data.
    """
    outputs, labels, known = model.config.num_classes, source.labels, model.passport.labels
    if outputs == 0:
        raise UserError(f"{names[0]} has no head, so it names no class: vitrail probe judges it")
    if source.targets is None:
        raise UserError(f"{names[1]}: its images have no labels to compare with")
    if known == labels:
        return source, kind_note(model, source)
    if known is None or by_order:
        if outputs != len(labels):
            raise UserError(
                f"{names[0]} answers with {outputs} classes, but {names[1]} has {len(labels)}: "
                "expected as many"
            )
        why = "has no names for its classes" if known is None else "calls its classes otherwise"
        known = known or labels
        return Relabelled(source, known, tuple(range(outputs))), joined(
            f"the model {why}, so that the order is assumed: its first output is taken for "
            f"{labels[0]}, its last for {labels[-1]}",
            kind_note(model, source),
        )
    places = {label: place for place, label in enumerate(known)}
    if len(places) < len(known) or not places.keys() >= set(labels):
        more = ": --by-order takes them by their order" if outputs == len(labels) else ""
        strange = [label for label in labels if label not in places] or ["the same name twice"]
        raise UserError(
            f"{names[0]} knows {', '.join(known[:3])}, …, but not all that {names[1]} has, such as "
            f"{', '.join(strange[:3])}: these are not the classes it was trained for{more}"
        )
    columns = tuple(places[label] for label in labels)
    return Relabelled(source, known, columns), joined(
        f"classes matched by name: the data has {len(labels)} of the {outputs} of the model",
        kind_note(model, source),
    )


def kind_note(model: Model, source: Source) -> str | None:
    """Where one side has several labels an image and the other has one."""
    assert source.targets is not None
    if (source.targets.ndim == 2) == model.passport.multi_label or model.passport.labels is None:
        return None
    if model.passport.multi_label:
        return "the model was trained for several labels an image: its surest one is judged"
    return "the model was trained for one label an image: each of its outputs is judged for itself"


def joined(*notes: str | None) -> str:
    return "; ".join(note for note in notes if note is not None)
