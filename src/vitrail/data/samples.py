"""Samples by their keys, decoded and augmented by workers, as pixels of one batch at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from vitrail.core.errors import UserError
from vitrail.core.native_size import NativeSize
from vitrail.core.passport import Preprocessing
from vitrail.data.augment import Augmentation, Transform, to_tensor
from vitrail.data.batch import Loaded
from vitrail.data.draws import Draw, draws_of_each
from vitrail.data.images import BadImage, Unreadable
from vitrail.data.reader import Sample, read_image, read_native, read_pixels
from vitrail.data.source import Source

T = TypeVar("T")
Key = tuple[int, int, int, int | None]  # epoch, image, view, side of the result
PATIENCE = 15.0  # seconds for the images of a batch that cannot be read
MAX_DEATHS = 3  # of processes that read images, one after another


class SampleDataset(Dataset[Tensor]):
    """Images by their keys, decoded and augmented, as pixels; for evaluation framed as the
    passport says, in the model's order of channels."""

    def __init__(
        self,
        source: Source,
        how: Preprocessing,
        augmentation: Augmentation | None,
        seed: int,
        native: NativeSize | None = None,
    ) -> None:
        self.source, self.how, self.seed, self.native = source, how, seed, native
        self.transforms: dict[int | None, Transform] = {}
        self.at_least = None
        if augmentation is not None:
            self.at_least = needed_size(augmentation, how, native)
            for side in (None, *augmentation.sides, *augmentation.progressive):
                self.transforms[side] = Transform(augmentation, resized(how, side), native)

    def __getitems__(self, keys: list[Key]) -> Loaded:
        """Those of a whole batch, as torch asks for them in a worker."""
        images, rows, broken = list[Tensor](), list[int](), list[BadImage]()
        waited = 0.0  # for storage that did not answer
        table = np.array([key[:3] for key in keys], dtype=np.int64).reshape(-1, 3)
        draws = draws_of_each(self.seed, table[:, 0], table[:, 1:])
        for row, (key, draw) in enumerate(zip(keys, draws, strict=True)):
            began = time.monotonic()
            try:
                if waited > PATIENCE:
                    raise Unreadable(self.source.name(key[1]), "its storage does not answer")
                images.append(self.read(key, draw))
                rows.append(row)
            except BadImage as problem:
                if isinstance(problem, Unreadable):
                    waited += time.monotonic() - began
                broken.append(problem.with_traceback(None))  # which would keep its bytes alive
            except UserError as mistake:  # raised again outside, where it is one sentence
                return Loaded(no_images(self.how), [], mistake=mistake.with_traceback(None))
        if self.native is not None and images:
            pixels = torch.cat([image.flatten() for image in images])
            return Loaded(pixels, rows, [image.shape for image in images], tuple(broken))
        # torch's own collate stacks into memory that processes share: nothing is copied again
        stacked = default_collate(images) if images else no_images(self.how)
        return Loaded(stacked, rows, None, tuple(broken))

    def __getitem__(self, key: Key) -> Shaped[Tensor, "C H W"]:
        return self.read(key)

    def read(self, key: Key, draw: Draw | None = None) -> Shaped[Tensor, "C H W"]:
        """One image; its draws are computed here if they are not given."""
        epoch, index, view, side = key
        if not self.transforms and self.native is not None:
            return read_native(Sample(self.source, index), self.how, self.native)
        if not self.transforms:
            return read_image(Sample(self.source, index), self.how)
        pixels = read_pixels(
            Sample(self.source, index),
            channels=len(self.how.mean),
            at_least=self.at_least,
            bits=self.how.bits,
        )
        return self.transforms[side](
            to_tensor(pixels), seed=self.seed, epoch=epoch, index=index, view=view, draw=draw
        )


def no_images(how: Preprocessing) -> Shaped[Tensor, "0 C H W"]:
    kind = torch.uint8 if how.bits == 8 else torch.uint16
    return torch.empty(0, len(how.mean), *how.size, dtype=kind)


def resized(how: Preprocessing, side: int | None) -> Preprocessing:
    """The same preparation for another side."""
    if side is None:
        return how
    grown = how.resize and (
        round(how.resize[0] * side / how.size[0]),
        round(how.resize[1] * side / how.size[1]),
    )
    return replace(how, size=(side, side), resize=grown)


def needed_size(
    augmentation: Augmentation, how: Preprocessing, native: NativeSize | None = None
) -> tuple[int, int]:
    """How large an image has to be decoded, so that its smallest crop still fills the model's
    size, or has as many patches as it may have."""
    largest = resized(how, max(augmentation.sides, default=None))
    if native is not None:
        largest = replace(how, size=native.at_least, resize=None)
    if augmentation.crop is None:
        return largest.resize or largest.size
    enlarge = augmentation.crop[0] ** -0.5
    return math.ceil(largest.size[0] * enlarge), math.ceil(largest.size[1] * enlarge)


def load(
    dataset: SampleDataset,
    keys: Iterable[list[Key]],
    workers: int,
    device: torch.device,
) -> Iterator[Loaded]:
    """The items of each batch, in order, read by several processes for the duration of `keys`, and
    on their way to the device."""
    if not workers:
        found: Iterable[Loaded] = (dataset.__getitems__(batch) for batch in keys)
    else:
        found = make_loader(dataset, keys, workers, device)
    return checked(found, device)


def make_loader(
    dataset: SampleDataset,
    keys: Iterable[list[Key]],
    workers: int,
    device: torch.device,
    *,
    persistent: bool = False,
) -> DataLoader[Any]:
    """torch's loader. What `persistent` workers have read once they read again when asked."""
    return DataLoader(
        dataset,
        batch_sampler=_Keys(keys),
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda",
        persistent_workers=persistent,
    )


def checked(found: Iterable[Loaded], device: torch.device) -> Iterator[Loaded]:
    for loaded in found:
        if loaded.mistake is not None:
            raise loaded.mistake
        yield loaded.to(device)


class EvalReader:
    """The batches of `keys`, the same each time it is iterated; its workers stay in between. One
    that has died is replaced, and `deaths` says of what, in the last iteration."""

    def __init__(
        self,
        dataset: SampleDataset,
        keys: Sequence[list[Key]],
        workers: int,
        device: torch.device,
    ) -> None:
        self.dataset, self.keys, self.device, self.workers = dataset, keys, device, workers
        self.loader: DataLoader[Any] | None = None
        self.deaths: list[str] = []

    def __iter__(self) -> Iterator[Loaded]:
        self.deaths = []
        if self.workers:
            return checked(outlive_workers(self.read_from, self.note_death), self.device)
        return checked((self.dataset.__getitems__(batch) for batch in self.keys), self.device)

    def read_from(self, batch: int) -> Iterable[Loaded]:
        """By workers; what is left after a death by others, which are there for that alone."""
        if batch:
            return make_loader(self.dataset, self.keys[batch:], self.workers, self.device)
        if self.loader is None:
            self.loader = make_loader(
                self.dataset, self.keys, self.workers, self.device, persistent=True
            )
        return self.loader

    def note_death(self, why: str) -> None:
        self.deaths.append(why)
        self.loader = None  # all are new the next time


def outlive_workers(
    read_from: Callable[[int], Iterable[T]], tell: Callable[[str], None]
) -> Iterator[T]:
    """All that `read_from(0)` gives. If a process that reads has died, others read from where it
    was: the same, because nothing that is read depends on who reads it."""
    done = deaths = 0
    while True:
        try:
            for found in read_from(done):
                yield found
                done, deaths = done + 1, 0
            return
        except (RuntimeError, ConnectionError, EOFError) as error:
            # torch's own sentence, or a pipe that broke while a batch was on its way
            died = "DataLoader worker" in str(error) or not isinstance(error, RuntimeError)
            if not died or deaths == MAX_DEATHS:
                raise
            deaths += 1
            tell(str(error))


def _as_it_is(loaded: Any) -> Any:
    return loaded


class _Keys:
    """The keys of each batch, drawn as the workers ask for them."""

    def __init__(self, keys: Iterable[list[Key]]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.keys)
