"""The engine: names of images in, scores or features of each out, in order and in little memory.

Some threads each take a batch of names, read and decode it and put it through the model; torch
computes with one thread in each. So decoding hides behind computing, there is nothing to tune
between the two, and what an image gets depends neither on the number of threads nor on the
others beside it: matrix products of another shape round otherwise, so every batch has one shape,
filled up with black images where names are too few.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage
from vitrail.data.preprocess import normalise
from vitrail.data.reader import Item, name_of, read_image, read_native
from vitrail.data.threads import ahead, batched
from vitrail.inference.engines.eager import EagerRunner
from vitrail.inference.engines.runner import Plan, Runner, RunnerOutput
from vitrail.inference.packing import PackedRunner
from vitrail.inference.prediction import Output as Output
from vitrail.inference.prediction import check_finite
from vitrail.inference.pruning import is_observed
from vitrail.models.model import Model
from vitrail.models.packing import native_size_of

OutputKind = Literal["scores", "pooled", "tokens"]

BATCH = 8  # images: on CPUs more is not faster, and a list of names that ends early wastes little
AHEAD = 2  # batches for each thread: the one it computes, and one that waits to be taken


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to compute, and all that decides the bits of its outputs.

    `scores` are probabilities of classes, `pooled` is what the head reads, `tokens` all that the
    blocks give before pooling. `exact` decodes and resizes as the weights' authors did; otherwise
    large photos are decoded smaller and resized by torch, which is faster. With
    `native_resolution` images keep their aspect ratio and have at most `max_tokens` patches
    (None: as many as the model's grid has).
    """

    output: OutputKind
    batch_size: int = BATCH
    exact: bool = True
    native_resolution: bool = False
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {self.batch_size}")


class Engine:
    """A model that computes one kind of output; several threads may call it at once. `runner`
    computes what the model would, by default PyTorch does."""

    def __init__(self, model: Model, job: Job, runner: Runner | None = None) -> None:
        check_job(model, job)
        self.model, self.job = model.eval(), job
        self.packed: PackedRunner | None = None
        if job.native_resolution:
            self.packed = PackedRunner(model, runner_output(job), max_tokens=job.max_tokens)
        self.runner = runner or EagerRunner(model, runner_output(job))

    def __call__(self, items: Sequence[Item]) -> list[Output]:
        """The outputs for some names, or images in memory."""
        size = self.job.batch_size
        batches = [items[first : first + size] for first in range(0, len(items), size)]
        return [output for batch in batches for output in self.batch(batch)]

    def batch(self, items: Sequence[Item]) -> list[Output]:
        opened: list[Tensor | BadImage] = []
        for item in items:
            try:
                opened.append(self.read(item))
            except BadImage as problem:  # without its frames, which keep the file's bytes alive
                opened.append(problem.with_traceback(None))
        return self.to_outputs([name_of(item) for item in items], opened)

    def read(self, item: Item) -> Shaped[Tensor, "C _ _"]:
        how, exact = self.model.passport.preprocessing, self.job.exact
        if self.packed is not None:
            return read_native(item, how, self.packed.native, exact=exact)
        return read_image(item, how, exact=exact)

    def to_outputs(
        self, names: Sequence[str], opened: Sequence[Shaped[Tensor, "C _ _"] | BadImage]
    ) -> list[Output]:
        """The same of at most a batch of images that have been read."""
        values = iter(self.compute([one for one in opened if isinstance(one, Tensor)]))
        return [
            check_finite(name, next(values))
            if isinstance(one, Tensor)
            else Output(name, None, one.reason)
            for name, one in zip(names, opened, strict=True)
        ]

    @torch.inference_mode()
    def compute(self, framed: Sequence[Shaped[Tensor, "C _ _"]]) -> list[NDArray[np.float32]]:
        """Values for each of at most a batch of framed images."""
        if not framed:
            return []
        how = self.model.passport.preprocessing
        if self.packed is not None:
            values = self.packed([normalise(image, how, reorder=False) for image in framed])
        else:
            pixels = torch.zeros(plan_of(self.model, self.job).shape, dtype=framed[0].dtype)
            for place, image in enumerate(framed):
                pixels[place] = image
            values = self.runner(normalise(pixels, how, reorder=False))[: len(framed)]
        if self.job.output == "scores":
            return list(scores_of(self.model, values))
        return list(values.copy())  # without the rows of what filled the batch up


def check_job(model: Model, job: Job) -> None:
    """Refuse what a model cannot compute."""
    if job.output == "scores" and model.config.num_classes == 0:
        raise UserError("this model has no head: load it with num_classes, and train it")
    if job.native_resolution:
        native_size_of(model, job.max_tokens)


def runner_output(job: Job) -> RunnerOutput:
    return "logits" if job.output == "scores" else job.output


def plan_of(model: Model, job: Job, *, callers: int = 1, threads: int = 1) -> Plan:
    """What a runner must be made for, to compute a job."""
    how = model.passport.preprocessing
    shape = (job.batch_size, len(how.mean), *how.size)
    return Plan(runner_output(job), shape, callers=callers, threads=threads)


def scores_of(model: Model, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N, K): probabilities of classes, each for itself where an image may have several."""
    values = torch.from_numpy(logits)
    scores = values.sigmoid() if model.passport.multi_label else values.softmax(dim=1)
    return np.asarray(scores.numpy())


def compute_outputs(
    model: Model,
    items: Iterable[Item],
    job: Job,
    *,
    threads: int = 1,
    runner: Runner | None = None,
) -> Iterator[Output]:
    """The outputs for all names, or images in memory, in their order; a few batches are in memory.

    More than one thread wants `torch_threads(1)` around it, or torch has as many in each.
    """
    engine = Engine(model, job, runner)
    batches = batched(items, job.batch_size)
    # whoever observes the model, as capture does, sees the calls of their own thread
    alone = threads == 1 or is_observed(model)
    computed = (
        map(engine, batches) if alone else ahead(engine, batches, threads=threads, lead=AHEAD)
    )
    for batch in computed:
        yield from batch


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Use this many torch threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_threads(threads: int | None = None) -> int:
    """`threads`, or as many as torch would use: OMP_NUM_THREADS decides."""
    return torch.get_num_threads() if threads is None else threads
