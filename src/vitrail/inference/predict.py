"""Predictions: images in, the best labels of each out, in their order and a few at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from PIL import Image

from vitrail.data.paths import is_one as is_one_path
from vitrail.data.paths import list_images
from vitrail.data.reader import Item, Named, is_one_image, not_an_image
from vitrail.inference.engine import (
    Job,
    Output,
    compute_outputs,
    torch_threads,
    usable_threads,
)
from vitrail.models.model import Model

T = TypeVar("T")


@dataclass(frozen=True)
class Prediction:
    """The best label with its probability, and the `top` few; an image that cannot be read has
    none, and `problem` says why."""

    name: str
    label: str | None
    score: float | None
    top: tuple[tuple[str, float], ...]
    problem: str | None = None


class PredictionStore(Protocol):
    """Something that stores predictions, and computes only those that it does not have."""

    def resume(
        self,
        names: Iterable[Item],
        compute: Callable[[Iterator[Item]], Iterator[Prediction]],
        batch_size: int,
    ) -> Iterator[Prediction]: ...


@contextmanager
def open_predictions(
    model: Model,
    items: Iterable[Item],
    job: Job,
    *,
    top: int,
    threads: int | None = None,
    store: PredictionStore | None = None,
) -> Iterator[Iterator[Prediction]]:
    """Predictions, one after another, by `threads` (by default as many as torch would use). For
    fewer images than a batch, torch's own threads are faster than ours."""
    labels, threads = class_names(model), usable_threads(threads)
    size, items = limit_batch(items, job.batch_size)
    ours, torchs = (1, threads) if size < job.batch_size else (threads, 1)

    def compute(some: Iterable[Item]) -> Iterator[Prediction]:
        found = compute_outputs(model, some, replace(job, batch_size=size), threads=ours)
        return (rank_classes(output, labels, top) for output in found)

    with torch_threads(torchs):
        yield compute(items) if store is None else store.resume(items, compute, size)


def limit_batch(items: Iterable[T], batch_size: int) -> tuple[int, Iterator[T]]:
    """The size of batches: that many, or what there is where it is less; and the items.

    >>> size, items = limit_batch("abc", 8)
    >>> size, list(items)
    (3, ['a', 'b', 'c'])
    """
    rest = iter(items)
    first = list(islice(rest, max(batch_size, 0)))
    return min(max(len(first), 1), batch_size), chain(first, rest)


def class_names(model: Model) -> Sequence[str]:
    """The name of each class; a number where the weights brought none."""
    return model.passport.labels or [f"class {n}" for n in range(model.config.num_classes)]


def rank_classes(output: Output, labels: Sequence[str], top: int) -> Prediction:
    """Scores as a person reads them: the best first."""
    if output.values is None:
        return Prediction(output.name, None, None, (), problem=output.problem)
    values, places = torch.from_numpy(output.values).topk(min(top, len(output.values)))
    ranked = tuple(
        (labels[place], value)
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
    )
    return Prediction(output.name, ranked[0][0], ranked[0][1], ranked)


def is_one(images: Any) -> bool:
    """Whether this means one image, rather than a directory, a pattern or several."""
    return is_one_path(str(images)) if isinstance(images, str | Path) else is_one_image(images)


def iter_images(images: Any) -> Iterator[Item]:
    """Every image that is meant; those in memory are numbered."""
    try:
        every = iter(images)
    except TypeError:
        raise not_an_image(images) from None
    for number, image in enumerate(every):
        if isinstance(image, str | Path):
            path = str(image)
            yield from (path,) if is_one_path(path) else list_images([path])
        elif isinstance(image, bytes | Image.Image | np.ndarray):
            yield Named(f"image {number}", image)
        elif isinstance(image, Named):
            yield image
        else:
            raise not_an_image(image)
