"""Batches for the loop: a stream that starts at any step and is the same for every reader."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import tee
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.core.errors import UserError
from vitrail.core.image_list import ImageList
from vitrail.core.native_size import NativeSize
from vitrail.core.passport import Preprocessing
from vitrail.data.augment import Augmentation, Transform, to_tensor
from vitrail.data.finish import erase_
from vitrail.data.images import BadImage, Unreadable
from vitrail.data.preprocess import normalise
from vitrail.data.reader import Sample, read_image, read_native, read_pixels
from vitrail.data.sampler import Cut, cut_epoch, epoch_order, places_of
from vitrail.data.source import Source
from vitrail.data.warp import fits, warp

Key = tuple[int, int, int, int | None]  # epoch, image, view, side of the result
PATIENCE = 15.0  # seconds for the images of a batch that cannot be read


@dataclass(frozen=True)
class Loaded:
    """What a worker made of the keys of a batch: the pixels of those that could be read as one
    tensor, because every tensor on its way between processes is an open file; the places of their
    keys among all; and what went wrong. Images of different sizes have their `shapes`, and their
    pixels one after another."""

    images: UInt8[Tensor, "B C H W"] | UInt8[Tensor, "pixels"]
    rows: list[int]
    shapes: list[torch.Size] | None = None
    broken: tuple[BadImage, ...] = ()
    mistake: UserError | None = None

    def each(self) -> list[UInt8[Tensor, "C _ _"]]:
        """Every image by itself."""
        if self.shapes is None:
            return list(self.images)
        parts = torch.split(self.images, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class Batch:
    """Images, their targets (B, K), which images of the source they are, in which round through
    it, and which were broken. Of the `planned` images of a step, those of all processes and the
    broken ones among them, these have their `places`."""

    images: Any  # Float[Tensor, "B C H W"], or at native sizes an ImageList
    targets: Float[Tensor, "B K"]
    indices: NDArray[np.int64]
    broken: tuple[BadImage, ...] = ()
    epoch: int = 0
    places: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    planned: int = 0

    def partners(self) -> Int64[Tensor, " B"]:
        """Which row each image is mixed with: the one that stands as far from the other end of the
        step's images, or itself where that one is broken."""
        row_at = np.full(self.planned, -1)
        row_at[self.places] = np.arange(len(self.places))
        other = row_at[self.planned - 1 - self.places]
        return torch.from_numpy(np.where(other < 0, np.arange(len(other)), other))

    def parts(self, count: int) -> list[int]:
        """How many of the images are in each of `count` parts of the step: the same parts whoever
        computes them, so that a process may have none of one."""
        part = self.places * count // max(self.planned, 1)
        return np.bincount(part, minlength=count).tolist()


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

    @property
    def steps(self) -> int:
        """Steps in an epoch: the same for all."""
        if not self.augmentation.sides:
            return max(len(self.source) // self.batch_size, 1)
        return len(self.cuts(0))

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of the steps from `start` up to `stop`, counted over all epochs."""
        one_size = not self.augmentation.sides and self.native is None
        plain = one_size and fits(self.augmentation)
        if plain and has_model_size(self.source, self.how):
            return (self.warp_batch(share) for share in self.shares(start, stop))
        dataset = SampleDataset(self.source, self.how, self.augmentation, self.seed, self.native)
        shares, ahead = tee(self.shares(start, stop))  # workers read ahead
        keys = (
            [(share.epoch, int(image), int(view), share.side) for image, view in share.rows]
            for share in ahead
        )
        loaded = zip(shares, load(dataset, keys, self.workers), strict=True)
        return (self.finish_batch(items, share) for share, items in loaded)

    def finish_batch(self, loaded: Loaded, share: Share) -> Batch:
        """The pixels that a worker made, normalised and partly erased."""
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
            targets_of(self.source, samples[:, 0]),
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
        return cut_epoch(
            len(self.source),
            self.batch_size,
            sides=self.augmentation.sides,
            usual=max(self.how.size),
            seed=self.seed,
            epoch=epoch,
        )

    def order(self, epoch: int) -> NDArray[np.int64]:
        return epoch_order(
            len(self.source),
            seed=self.seed,
            epoch=epoch,
            repeats=self.augmentation.repeats,
            balance=self.source.targets if self.balance else None,
        )

    def warp_batch(self, share: Share) -> Batch:
        if not len(share.rows):  # there are more processes than images
            return self.finish_batch(Loaded(no_images(self.how), []), share)
        channels, which = len(self.how.mean), share.rows[:, 0]
        images = torch.stack(
            [to_tensor(read_pixels(Sample(self.source, int(i)), channels=channels)) for i in which]
        )
        images = warp(
            images, share.rows, self.augmentation, self.how, seed=self.seed, epoch=share.epoch
        )
        targets = targets_of(self.source, which)
        return Batch(
            images, targets, which, (), share.epoch, places=share.places, planned=share.planned
        )


def iterate_batches(
    source: Source,
    how: Preprocessing,
    batch_size: int,
    *,
    native: NativeSize | None = None,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Iterator[Batch]:
    """Every image once, prepared for evaluation as the passport says, or at its `native` size, in
    the source's order; of many processes each has its share of every batch, be it empty."""
    parts = [
        np.arange(first, min(first + batch_size, len(source)))[rank::world]
        for first in range(0, len(source), batch_size)
    ]
    keys: Iterable[list[Key]] = ([(0, int(index), 0, None) for index in part] for part in parts)
    dataset = SampleDataset(source, how, None, 0, native)
    for part, loaded in zip(parts, load(dataset, keys, workers), strict=True):
        indices = part[loaded.rows]
        images: Tensor | ImageList
        if native is None:
            images = normalise(loaded.images, how, reorder=False)
        else:
            images = ImageList(normalise(image, how, reorder=False) for image in loaded.each())
        yield Batch(images, targets_of(source, indices), indices, loaded.broken)


class SampleDataset(Dataset[Tensor]):
    """Loader by their keys, decoded and augmented, as pixels; for evaluation framed as the
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
            for side in (None, *augmentation.sides):
                self.transforms[side] = Transform(augmentation, resized(how, side), native)

    def __getitems__(self, keys: list[Key]) -> Loaded:
        """Those of a whole batch, as torch asks for them in a worker."""
        images, rows, broken = list[Tensor](), list[int](), list[BadImage]()
        waited = 0.0  # for storage that did not answer
        for row, key in enumerate(keys):
            began = time.monotonic()
            try:
                if waited > PATIENCE:
                    raise Unreadable(self.source.name(key[1]), "its storage does not answer")
                images.append(self[key])
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
        stacked = torch.stack(images) if images else no_images(self.how)
        return Loaded(stacked, rows, None, tuple(broken))

    def __getitem__(self, key: Key) -> UInt8[Tensor, "C H W"]:
        epoch, index, view, side = key
        if not self.transforms and self.native is not None:
            return read_native(Sample(self.source, index), self.how, self.native)
        if not self.transforms:
            return read_image(Sample(self.source, index), self.how)
        pixels = read_pixels(
            Sample(self.source, index), channels=len(self.how.mean), at_least=self.at_least
        )
        transform = self.transforms[side]
        return transform(to_tensor(pixels), seed=self.seed, epoch=epoch, index=index, view=view)


def no_images(how: Preprocessing) -> UInt8[Tensor, "0 C H W"]:
    return torch.empty(0, len(how.mean), *how.size, dtype=torch.uint8)


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


def load(dataset: SampleDataset, keys: Iterable[list[Key]], workers: int) -> Iterator[Loaded]:
    """The items of each batch, in order, read by several processes."""
    found: Iterable[Loaded]
    if workers:
        found = DataLoader(
            dataset, batch_sampler=_Keys(keys), num_workers=workers, collate_fn=_as_it_is
        )
    else:
        found = (dataset.__getitems__(batch) for batch in keys)
    for loaded in found:
        if loaded.mistake is not None:
            raise loaded.mistake
        yield loaded


def _as_it_is(loaded: Any) -> Any:
    return loaded


class _Keys:
    """The keys of each batch, drawn as the workers ask for them."""

    def __init__(self, keys: Iterable[list[Key]]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.keys)


def targets_of(source: Source, indices: NDArray[np.int64]) -> Float[Tensor, "B K"]:
    """Rows of zeros and ones; no labels, no columns."""
    if source.targets is None:
        return torch.zeros(len(indices), 0)
    chosen = torch.from_numpy(np.asarray(source.targets[indices]))
    if chosen.ndim == 2:
        return chosen.float()
    return torch.nn.functional.one_hot(chosen.long(), len(source.labels)).float()


def has_model_size(source: Source, how: Preprocessing) -> bool:
    """Whether images are arrays of the size and channels that the model reads."""
    if not len(source) or not source.uniform:
        return False
    first = source.read(0)
    if isinstance(first, bytes):
        return False
    image = to_tensor(first)
    return tuple(image.shape[1:]) == how.size and image.shape[0] in (1, len(how.mean))
