"""A batch in a process of the service: encoded images or tensors in, what each is wanted for out.

Every thread of the process takes whole batches, so that one decodes while another computes. Eager
PyTorch takes batches of any size; other engines are built for a few sizes, which a batch is divided
into.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock, Thread

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage, check_bytes, header_size
from vitrail.data.preprocess import are_pixels, normalise
from vitrail.data.reader import Named, read_image
from vitrail.inference.engine import Job, plan_of, scores_of
from vitrail.inference.engines.auto import OpenRunner, open_runner
from vitrail.inference.engines.catalogue import EAGER
from vitrail.inference.engines.eager import EagerRunner
from vitrail.inference.exported_model import ExportedModel
from vitrail.inference.prediction import NOT_FINITE
from vitrail.models.model import Model
from vitrail.serving.frames import Buffer
from vitrail.serving.paths import hide_paths
from vitrail.serving.spec import LANES, MAX_TOP, Lane, Want, WorkerSpec

SIZES = (1, 4, 8)  # of batches of other engines than eager: on CPUs more is not faster
AUTO_IMAGES = 4096  # the length of the job for which "auto" chooses: its trials stay short
NOT_PIXELS = (
    "values must be pixels of 0 to 255 that were normalised, as the file was exported with "
    "preprocessing and reads pixels"
)


@dataclass(frozen=True)
class Item:
    """One image of a batch: an encoded file, or a float32 tensor (C, H, W) that is prepared."""

    want: Want
    is_tensor: bool
    payload: Buffer


Value = NDArray[np.float32] | str  # of one image; text is the problem that prevented it


class LaneRunner:
    """Computes one output for batches of any size, with runners for `sizes` (none: any size)."""

    def __init__(self, runners: Sequence[OpenRunner], sizes: tuple[int, ...]) -> None:
        self.runners, self.sizes = runners, sizes

    def compute(self, images: Tensor) -> NDArray[np.float32]:
        if not self.sizes:
            return self.runners[0].run(images)
        by_size = dict(zip(self.sizes, self.runners, strict=True))
        parts, start = [], 0
        for size in divide(len(images), self.sizes):
            count = min(size, len(images) - start)
            part = fill(images[start : start + count], size)
            parts.append(by_size[size].run(part)[:count])
            start += count
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def fill(images: Tensor, size: int) -> Tensor:
    """Filled up with black images to a size."""
    missing = size - len(images)
    if not missing:
        return images
    return torch.cat([images, images.new_zeros(missing, *images.shape[1:])])


def divide(count: int, sizes: tuple[int, ...]) -> list[int]:
    """The sizes of the batches for so many images: large ones first, and of the rest one that is
    filled up where next to nothing is wasted, since on CPUs an image costs as much in every size.

    >>> divide(19, (1, 4, 8)), divide(6, (1, 4, 8)), divide(3, (4,)), divide(15, (8, 16))
    ([8, 8, 1, 1, 1], [4, 1, 1], [4], [16])
    """
    found: list[int] = []
    while count > 0:
        fitting = [size for size in sizes if size <= count]
        next_larger = min((size for size in sizes if size >= count), default=None)
        if next_larger is not None and (not fitting or count >= 0.9 * next_larger):
            size = next_larger
        else:
            size = max(fitting)
        found.append(size)
        count -= size
    return found


class BatchEngine:
    """A model with its runners; several threads may call it at once."""

    def __init__(self, model: Model, spec: WorkerSpec) -> None:
        channels, bits = len(model.passport.preprocessing.mean), model.passport.preprocessing.bits
        if not model.passport.preprocessing.is_photo:
            raise UserError(
                f"the model reads {channels} channels of {bits} bits, a service reads photos of 1 "
                "or 3 channels and 8 bits: use vitrail predict"
            )
        self.model, self.spec = model, spec
        self.lanes: dict[Lane, LaneRunner] = {}
        self.opening = Lock()
        first: Lane = "logits" if model.config.num_classes else "pooled"
        self.lanes[first] = open_lane(model, spec, first, spec.engine)
        self.engine = self.lanes[first].runners[0].engine
        self.sizes = self.lanes[first].sizes
        how = model.passport.preprocessing
        self.lanes[first].compute(torch.zeros(1, channels, *how.size))  # so that the first is quick

    def run(self, items: Sequence[Item]) -> list[Value]:
        """What each image is wanted for, in order; all of one lane."""
        opened: list[Tensor | str] = [self.open_item(item) for item in items]
        images = [one for one in opened if isinstance(one, Tensor)]
        values = iter(())
        if images:
            lane = self.lane(LANES[items[0].want])
            with torch.inference_mode():
                values = iter(lane.compute(torch.stack(images)))
        return [
            one if isinstance(one, str) else self.finish(item, next(values))
            for item, one in zip(items, opened, strict=True)
        ]

    def open_item(self, item: Item) -> Tensor | str:
        """(C, H, W) as the model reads it, or why it cannot be read."""
        how = self.model.passport.preprocessing
        if item.is_tensor:
            values = np.frombuffer(item.payload, np.float32).reshape(len(how.mean), *how.size)
            image = torch.from_numpy(values.copy())
            if reads_pixels(self.model) and not are_pixels(image, how):
                return NOT_PIXELS
            return image
        data = bytes(item.payload)
        try:
            check_pixels(data, self.spec.max_pixels)
            return normalise(read_image(Named("image", data), how), how, reorder=False)
        except BadImage as problem:
            return problem.reason
        except UserError as error:
            return hide_paths(str(error))

    def finish(self, item: Item, values: NDArray[np.float32]) -> Value:
        """The row of an image as it is sent."""
        if not np.isfinite(values).all():
            return NOT_FINITE
        if item.want != "scores":
            return np.ascontiguousarray(values, dtype=np.float32)
        scores = scores_of(self.model, values[None])[0]
        best = np.argsort(-scores, kind="stable")[:MAX_TOP]
        # numbers of classes are exact in float32 up to 2^24
        return np.stack([best.astype(np.float32), scores[best]])

    def lane(self, lane: Lane) -> LaneRunner:
        """The runner of a lane. One that is new is eager; where another engine computes, that is
        opened meanwhile and takes over."""
        with self.opening:
            if lane not in self.lanes:
                self.lanes[lane] = eager_lane(self.model, self.spec, lane)
                if self.engine != EAGER:
                    Thread(target=self.replace, args=(lane,), daemon=True).start()
            return self.lanes[lane]

    def replace(self, lane: Lane) -> None:
        try:
            self.lanes[lane] = open_lane(self.model, self.spec, lane, self.engine)
        except UserError:
            return  # eager stays


def open_lane(model: Model, spec: WorkerSpec, lane: Lane, engine: str) -> LaneRunner:
    """The runners of one output; the largest size decides which engine "auto" means."""
    sizes = tuple(size for size in SIZES if size <= spec.batch_size)

    def open_size(size: int, name: str) -> OpenRunner:
        job = Job(output="scores" if lane == "logits" else "pooled", batch_size=size)
        plan = plan_of(model, job, callers=spec.threads)
        return open_runner(model, plan, name, images=AUTO_IMAGES)

    if engine == EAGER or isinstance(model, ExportedModel):
        return eager_lane(model, spec, lane)
    largest = open_size(sizes[-1], engine)
    if largest.engine == EAGER:
        return eager_lane(model, spec, lane)
    smaller = [open_size(size, largest.engine) for size in sizes[:-1]]
    return LaneRunner([*smaller, largest], sizes)


def eager_lane(model: Model, spec: WorkerSpec, lane: Lane) -> LaneRunner:
    """PyTorch, or the runtime of an exported file, which may have one size alone."""
    job = Job(output="scores" if lane == "logits" else "pooled", batch_size=1)
    runner = OpenRunner(EAGER, EagerRunner(model, lane), plan_of(model, job))
    fixed = model.graph.batch if isinstance(model, ExportedModel) else None
    return LaneRunner([runner], () if fixed is None else (fixed,))


def reads_pixels(model: Model) -> bool:
    """Whether it is a file that normalises pixels itself."""
    return isinstance(model, ExportedModel) and model.graph.input == "uint8"


def check_pixels(data: bytes, limit: int) -> None:
    """Refuse a large image by its header, before it is decoded."""
    check_bytes(len(data), "image")
    height, width = header_size(data, "image")
    if height * width > limit:
        raise BadImage("image", f"{width}x{height}, more than the limit of {limit:,} pixels")
