"""Batches for the loop: a stream that starts at any step and is the same for every reader.

Workers decode and augment bytes, and stack them in memory that they share with this process, which
copies nothing: pixels go to the device as they are, and are normalised, erased and mixed there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import tee

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.image_list import ImageList
from vitrail.core.native_size import NativeSize
from vitrail.core.passport import Preprocessing
from vitrail.data.augment import Augmentation, to_tensor
from vitrail.data.batch import Batch, Loaded, dense_targets, targets_of
from vitrail.data.finish import erase_
from vitrail.data.preprocess import normalise
from vitrail.data.reader import Sample, read_pixels
from vitrail.data.sampler import (
    LARGE,
    Cut,
    LargeOrder,
    cut_epoch,
    epoch_order,
    places_of,
    side_at,
)
from vitrail.data.samples import EvalReader, Key, SampleDataset, load, needed_size, no_images
from vitrail.data.shard_order import shard_order, shards_of
from vitrail.data.source import Source
from vitrail.data.warp import fits, warp

__all__ = ["Batch", "EvalLoader", "Stream", "dense_targets", "iterate_batches", "needed_size"]

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Share:
    """What one process reads for a step: rows of (image, view), their places among the `planned`
    of the step, and the side of the images; None for the model's own."""

    epoch: int
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    planned: int
    side: int | None


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Everything that decides the batches of a run; with `native` images have that size each."""

    source: Source
    how: Preprocessing
    augmentation: Augmentation
    batch_size: int
    seed: int = 0
    balance: bool = False
    native: NativeSize | None = None
    workers: int = 0
    rank: int = 0
    world: int = 1
    device: torch.device = field(default=CPU)
    epochs: float = 1.0  # of the run, over which progressive sizes are spread

    @property
    def steps(self) -> int:
        """Steps in an epoch: the same for all."""
        if not self.augmentation.sides:
            return max(len(self.source) // self.batch_size, 1)
        return len(self.cuts(0))

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of the steps from `start` up to `stop`, counted over all epochs."""
        many_sizes = self.augmentation.sides or self.augmentation.progressive
        one_size = not many_sizes and self.native is None
        plain = one_size and fits(self.augmentation)
        if plain and has_model_size(self.source, self.how):
            return (self.warp_batch(share) for share in self.shares(start, stop))
        dataset = SampleDataset(self.source, self.how, self.augmentation, self.seed, self.native)
        shares, ahead = tee(self.shares(start, stop))  # workers read ahead
        keys = (
            [(share.epoch, int(image), int(view), share.side) for image, view in share.rows]
            for share in ahead
        )
        loaded = zip(shares, load(dataset, keys, self.workers, self.device), strict=True)
        return (self.finish_batch(items, share) for share, items in loaded)

    def finish_batch(self, loaded: Loaded, share: Share) -> Batch:
        """The pixels that a worker made, normalised and partly erased where they are by now."""
        samples = share.rows[loaded.rows]
        erase = partial(erase_, augmentation=self.augmentation, seed=self.seed, epoch=share.epoch)
        images: Tensor | ImageList
        if self.native is None:
            images = normalise(loaded.images, self.how)
            erase(images, samples)
        else:
            images = ImageList(normalise(image, self.how) for image in loaded.each())
            for row, image in enumerate(images):
                erase(image[None], samples[row : row + 1])
        return Batch(
            images,
            targets_of(self.source, samples[:, 0], self.device),
            samples[:, 0],
            loaded.broken,
            share.epoch,
            share.places[loaded.rows],
            share.planned,
        )

    def shares(self, start: int, stop: int) -> Iterator[Share]:
        """This process's share of each step."""
        steps, now = self.steps, -1
        for step in range(start, stop):
            epoch, batch = divmod(step, steps)
            if epoch != now:
                order, cuts, now = self.order(epoch), self.cuts(epoch), epoch
            cut = cuts[batch]
            planned = cut.last - cut.first
            places = places_of(planned, rank=self.rank, world=self.world)
            yield Share(epoch, order[cut.first : cut.last][places], places, planned, cut.side)

    def cuts(self, epoch: int) -> list[Cut]:
        cuts = cut_epoch(
            len(self.source),
            self.batch_size,
            sides=self.augmentation.sides,
            usual=max(self.how.size),
            seed=self.seed,
            epoch=epoch,
        )
        side = side_at(epoch, self.epochs, self.augmentation.progressive)
        return cuts if side is None else [replace(cut, side=side) for cut in cuts]

    def order(self, epoch: int) -> NDArray[np.int64] | LargeOrder:
        count, repeats = len(self.source), self.augmentation.repeats
        shards = None if self.balance else shards_of(self.source)
        if count > LARGE and shards is None and not self.balance:
            return LargeOrder(count, seed=self.seed, epoch=epoch, repeats=repeats)
        images = None
        if shards is not None:
            images = shard_order(shards, self.batch_size, seed=self.seed, epoch=epoch)
        return epoch_order(
            count,
            seed=self.seed,
            epoch=epoch,
            repeats=repeats,
            balance=self.source.targets if self.balance else None,
            images=images,
        )

    def warp_batch(self, share: Share) -> Batch:
        if not len(share.rows):  # there are more processes than images
            return self.finish_batch(Loaded(no_images(self.how), []).to(self.device), share)
        which, read = share.rows[:, 0], partial(read_pixels, bits=self.how.bits)
        samples = (Sample(self.source, int(index)) for index in which)
        images = torch.stack(
            [to_tensor(read(sample, channels=len(self.how.mean))) for sample in samples]
        )
        images = warp(
            images.to(self.device),
            share.rows,
            self.augmentation,
            self.how,
            seed=self.seed,
            epoch=share.epoch,
        )
        targets = targets_of(self.source, which, self.device)
        return Batch(
            images, targets, which, (), share.epoch, places=share.places, planned=share.planned
        )


class EvalLoader:
    """Every image once, prepared for evaluation as the passport says, or at its `native` size, in
    the source's order; of many processes each has its share of every batch, be it empty. It can be
    iterated any number of times: its workers stay, and the images are read again."""

    def __init__(
        self,
        source: Source,
        how: Preprocessing,
        batch_size: int,
        *,
        native: NativeSize | None = None,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device = CPU,
    ) -> None:
        self.source, self.how, self.native, self.device = source, how, native, device
        self.parts = [
            np.arange(first, min(first + batch_size, len(source)))[rank::world]
            for first in range(0, len(source), batch_size)
        ]
        keys: list[list[Key]] = [[(0, int(i), 0, None) for i in part] for part in self.parts]
        dataset = SampleDataset(source, how, None, 0, native)
        self.reader = EvalReader(dataset, keys, workers, device)

    def __iter__(self) -> Iterator[Batch]:
        for part, loaded in zip(self.parts, self.reader, strict=True):
            indices = part[loaded.rows]
            images: Tensor | ImageList
            if self.native is None:
                images = normalise(loaded.images, self.how, reorder=False)
            else:
                each = loaded.each()
                images = ImageList(normalise(image, self.how, reorder=False) for image in each)
            targets = targets_of(self.source, indices, self.device)
            yield Batch(images, targets, indices, loaded.broken)


def iterate_batches(
    source: Source,
    how: Preprocessing,
    batch_size: int,
    *,
    native: NativeSize | None = None,
    workers: int = 0,
) -> Iterator[Batch]:
    """The batches of an `EvalLoader`, once, with rows of zeros and ones for targets."""
    classes = len(source.labels)
    for batch in EvalLoader(source, how, batch_size, native=native, workers=workers):
        yield replace(batch, targets=dense_targets(batch.targets, classes))


def has_model_size(source: Source, how: Preprocessing) -> bool:
    """Whether images are arrays of the size and channels that the model reads."""
    if not len(source) or not source.uniform:
        return False
    first = source.read(0)
    if isinstance(first, bytes):
        return False
    image = to_tensor(first)
    return tuple(image.shape[1:]) == how.size and image.shape[0] in (1, len(how.mean))
