"""From pictures to labels, in their order, a few at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.data.images import BadImage
from vitrail.data.preprocess import framed
from vitrail.data.threads import batched
from vitrail.infer.engine import Answer, Engine, Job
from vitrail.infer.reading import read_framed
from vitrail.models.model import Model

Picture: TypeAlias = "str | Path | Image.Image | NDArray[np.uint8]"
T = TypeVar("T")


@dataclass(frozen=True)
class Prediction:
    """The best label with its probability, and the `top` few; a picture that cannot be read has
    none, and `problem` says why."""

    name: str
    label: str | None
    score: float
    top: tuple[tuple[str, float], ...]
    problem: str | None = None


def predict(
    model: Model, pictures: Iterable[Picture], *, top: int = 5, batch_size: int = 32
) -> list[Prediction]:
    """What a model says of files, PIL pictures or uint8 arrays, prepared as its passport says.

    >>> predict(model, [np.zeros((300, 400, 3), dtype=np.uint8)])[0].label
    'class 0'
    """
    size, every = fitting(pictures, batch_size)
    engine = Engine(model, Job(output="scores", batch_size=size, exact=True))
    labels = labels_of(model)
    found = []
    for batch in batched(enumerate(every), size):
        names = [name_of(one, place) for place, one in batch]
        opened = [open_picture(one, model) for _, one in batch]
        found += [rank(answer, labels, top) for answer in engine.answer(names, opened)]
    return found


def fitting(items: Iterable[T], batch_size: int) -> tuple[int, Iterator[T]]:
    """The size of batches: that many, or what there is where it is less; and the items.

    >>> size, items = fitting("abc", 8)
    >>> size, list(items)
    (3, ['a', 'b', 'c'])
    """
    rest = iter(items)
    first = list(islice(rest, max(batch_size, 0)))
    return min(max(len(first), 1), batch_size), chain(first, rest)


def labels_of(model: Model) -> Sequence[str]:
    """The name of each class; a number where the weights brought none."""
    return model.passport.labels or [f"class {n}" for n in range(model.config.num_classes)]


def rank(answer: Answer, labels: Sequence[str], top: int) -> Prediction:
    """Scores as a person reads them: the best first."""
    if answer.values is None:
        return Prediction(answer.name, None, 0.0, (), problem=answer.problem)
    values, places = torch.from_numpy(answer.values).topk(min(top, len(answer.values)))
    ranked = tuple(
        (labels[place], value)
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
    )
    return Prediction(answer.name, ranked[0][0], ranked[0][1], ranked)


def open_picture(one: Picture, model: Model) -> Tensor | BadImage:
    how = model.passport.preprocessing
    if isinstance(one, str | Path):
        return read_framed(str(one), how, exact=True)
    return framed(one, how)


def name_of(one: Any, place: int) -> str:
    return str(one) if isinstance(one, str | Path) else f"picture {place}"
