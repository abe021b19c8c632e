"""From images to labels, in their order, a few at a time; the same in Python and in the shell."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.data.paths import is_one, pictures
from vitrail.data.reader import ImageSource, Item, Named, is_one_image, not_an_image
from vitrail.inference.engine import BATCH, Answer, Job, answers, torch_threads, usable_threads
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


@overload
def predict(
    model: Model, images: Image.Image, *, top: int = ..., batch_size: int = ..., exact: bool = ...
) -> Prediction: ...
@overload
def predict(
    model: Model,
    images: str | Path | NDArray[np.uint8],
    *,
    top: int = ...,
    batch_size: int = ...,
    exact: bool = ...,
) -> Any: ...  # one, or a list where it is a directory, a pattern or an array of images
@overload
def predict(
    model: Model,
    images: Iterable[ImageSource],
    *,
    top: int = ...,
    batch_size: int = ...,
    exact: bool = ...,
) -> list[Prediction]: ...
def predict(
    model: Model,
    images: "ImageSource | Iterable[ImageSource]",
    *,
    top: int = 5,
    batch_size: int = BATCH,
    exact: bool = True,
) -> Prediction | list[Prediction]:
    """The labels of one image, or of many: paths, addresses, PIL images, uint8 arrays; a directory
    or a pattern means the images in it. Images are prepared as the model's passport says.

    One image gives one `Prediction`, and a `UserError` where it cannot be read. A directory, a
    pattern, an array (N, H, W, C) or any other iterable gives a list, in which an image that cannot
    be read has its `problem` in place of a label and a score. `exact=False` decodes large photos
    smaller and resizes them by torch: faster, and the scores differ in their third digit. Scores
    inside `capture` may differ in the last bits: the last block is computed in part only while
    nobody observes it.

    >>> predict(model, np.zeros((300, 400, 3), dtype=np.uint8)).label
    'class 0'
    >>> len(predict(model, [Image.new("RGB", (40, 30)), Image.new("L", (20, 20))]))
    2
    """
    check_model(model)
    if top < 1:
        raise UserError(f"top must be at least 1, got {top}")
    one = _is_one_image(images)
    items = images_of([images] if one or isinstance(images, str | Path) else images)
    job = Job(output="scores", batch_size=batch_size, exact=exact)
    with eval_mode(model), predicting(model, items, job, top=top) as found:
        predictions = list(found)
    if not one:
        return predictions
    [prediction] = predictions
    if prediction.problem is not None:
        raise UserError(f"{prediction.name}: {prediction.problem}")
    return prediction


def check_model(model: object) -> None:
    if not isinstance(model, Model):
        raise UserError(
            f"model must be what vitrail.load or vitrail.create gave, got {type(model).__name__}: "
            "load it first"
        )


class Keeper(Protocol):
    """Something that keeps predictions, and computes only those that it has not."""

    def resume(
        self,
        names: Iterable[Item],
        compute: Callable[[Iterator[Item]], Iterator[Prediction]],
        batch_size: int,
    ) -> Iterator[Prediction]: ...


@contextmanager
def predicting(
    model: Model,
    items: Iterable[Item],
    job: Job,
    *,
    top: int,
    threads: int | None = None,
    keeper: Keeper | None = None,
) -> Iterator[Iterator[Prediction]]:
    """Predictions, one after another, by `threads` (by default as many as torch would take). A few
    images are worth neither a whole batch nor threads of ours: torch's compute them sooner."""
    labels, threads = labels_of(model), usable_threads(threads)
    size, items = fitting(items, job.batch_size)
    ours, torchs = (1, threads) if size < job.batch_size else (threads, 1)

    def compute(some: Iterable[Item]) -> Iterator[Prediction]:
        found = answers(model, some, replace(job, batch_size=size), threads=ours)
        return (rank(answer, labels, top) for answer in found)

    with torch_threads(torchs):
        yield compute(items) if keeper is None else keeper.resume(items, compute, size)


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
        return Prediction(answer.name, None, None, (), problem=answer.problem)
    values, places = torch.from_numpy(answer.values).topk(min(top, len(answer.values)))
    ranked = tuple(
        (labels[place], value)
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
    )
    return Prediction(answer.name, ranked[0][0], ranked[0][1], ranked)


def _is_one_image(images: Any) -> bool:
    return is_one(str(images)) if isinstance(images, str | Path) else is_one_image(images)


def images_of(images: Any) -> Iterator[Item]:
    """Every image that is meant; those in memory are numbered."""
    try:
        every = iter(images)
    except TypeError:
        raise not_an_image(images) from None
    for number, image in enumerate(every):
        if isinstance(image, str | Path):
            path = str(image)
            yield from (path,) if is_one(path) else pictures([path])
        elif isinstance(image, Image.Image | np.ndarray):
            yield Named(f"image {number}", image)
        else:
            raise not_an_image(image)
