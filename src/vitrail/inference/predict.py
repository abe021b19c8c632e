"""Predictions: images in, the best labels of each out, in their order and a few at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from PIL import Image

from vitrail.data.paths import is_one as is_one_path
from vitrail.data.paths import list_images
from vitrail.data.reader import Item, Named, is_one_image, not_an_image
from vitrail.inference.calibration import Calibration
from vitrail.inference.engine import (
    Job,
    check_job,
    compute_outputs,
    plan_of,
    torch_threads,
    usable_threads,
)
from vitrail.inference.engines.auto import OnProgress, OpenRunner, open_runner, silent
from vitrail.inference.engines.catalogue import AUTO, EAGER
from vitrail.inference.packing import check_native
from vitrail.inference.prediction import Prediction as Prediction
from vitrail.inference.prediction import rank_classes as rank_classes
from vitrail.models.model import Model

T = TypeVar("T")

MAX_COUNTED = 20_000  # names: more do not change the choice of an engine


class PredictionStore(Protocol):
    """Something that stores predictions, and computes only those that it does not have."""

    def resume(
        self,
        names: Iterable[Item],
        compute: Callable[[Iterator[Item]], Iterator[Prediction]],
        batch_size: int,
    ) -> Iterator[Prediction]: ...


@dataclass(frozen=True)
class PredictRun:
    """A model that is ready to predict: images, batches, threads and the engine are settled."""

    model: Model
    items: Iterator[Item]
    job: Job
    threads: int
    opened: OpenRunner

    def predict(self, *, top: int, store: PredictionStore | None = None) -> Iterator[Prediction]:
        """Predictions, one after another; those that the store has are taken from it."""
        labels = class_names(self.model)

        def compute(some: Iterable[Item]) -> Iterator[Prediction]:
            found = compute_outputs(
                self.model, some, self.job, threads=self.threads, runner=self.opened.run
            )
            return (rank_classes(output, labels, top) for output in found)

        if store is None:
            return compute(self.items)
        return store.resume(self.items, compute, self.job.batch_size)


@contextmanager
def open_predictions(
    model: Model,
    items: Iterable[Item],
    job: Job,
    *,
    engine: str = EAGER,
    images: int | None = None,
    threads: int | None = None,
    calibration: Calibration | None = None,
    on_progress: OnProgress = silent,
) -> Iterator[PredictRun]:
    """A run over images, of which there are `images` if that is known, by `threads` (by default as
    many as torch would use). For fewer images than a batch, torch's own threads are faster than
    ours. An engine that builds files would build others for each number of images: more than one
    are a full batch for it."""
    check_job(model, job)  # before anything is built
    threads = usable_threads(threads)
    size, items = limit_batch(items, job.batch_size)
    if size > 1 and (engine not in (AUTO, EAGER) or calibration is not None):
        size = job.batch_size
    ours, torchs = (1, threads) if size < job.batch_size else (threads, 1)
    job = replace(job, batch_size=size)
    with torch_threads(torchs):
        if job.native_resolution:
            check_native(True, job.max_tokens, engine)
            engine = EAGER
        plan = plan_of(model, job, callers=ours, threads=torchs)
        opened = open_runner(
            model, plan, engine, images=images, calibration=calibration, on_progress=on_progress
        )
        yield PredictRun(model, items, job, ours, opened)


def limit_batch(items: Iterable[T], batch_size: int) -> tuple[int, Iterator[T]]:
    """The size of batches: that many, or what there is where it is less; and the items.

    >>> size, items = limit_batch("abc", 8)
    >>> size, list(items)
    (3, ['a', 'b', 'c'])
    """
    rest = iter(items)
    first = list(islice(rest, max(batch_size, 0)))
    return min(max(len(first), 1), batch_size), chain(first, rest)


def count_ahead(items: Iterable[Item]) -> tuple[int | None, Iterator[Item]]:
    """How many images there are at least, and the images. Names are counted, up to a limit; images
    in memory are not, because a generator may make them one by one.

    >>> count, items = count_ahead(["a.png", "b.png"])
    >>> count, list(items)
    (2, ['a.png', 'b.png'])
    """
    rest, seen = iter(items), list[Item]()
    for item in rest:
        seen.append(item)
        if not isinstance(item, str):
            return None, chain(seen, rest)
        if len(seen) == MAX_COUNTED:
            break
    return len(seen), chain(seen, rest)


def class_names(model: Model) -> Sequence[str]:
    """The name of each class; a number where the weights brought none."""
    return model.passport.labels or [f"class {n}" for n in range(model.config.num_classes)]


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
