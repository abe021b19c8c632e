"""Batches for the loop: a stream that starts at any step and is the same whoever reads it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import tee

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.core.randomness import seed_of
from vitrail.data.augment import Augmentation, Seeded, as_image, make_transform
from vitrail.data.images import BadImage, decode
from vitrail.data.preprocess import prepare
from vitrail.data.sampler import Cut, cut_epoch, epoch_order, places_of
from vitrail.data.source import Source
from vitrail.data.warp import fits, warp

Key = tuple[int, int, int, int | None]  # epoch, image, view, side of the result
Item = tuple[int, Tensor | BadImage]  # image, and what became of it


@dataclass(frozen=True)
class Batch:
    """Images, their targets (B, K), which images of the source they are, in which round through
    it, and which were broken. Of the `planned` images of a step, those of all processes and the
    broken ones among them, these have their `places`."""

    images: Float[Tensor, "B C H W"]
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
    """Everything that decides the batches of a run."""

    source: Source
    how: Preprocessing
    augmentation: Augmentation
    batch_size: int
    seed: int = 0
    balance: bool = False
    workers: int = 0
    rank: int = 0
    world: int = 1

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return len(self.cuts(0))

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of the steps from `start` up to `stop`, counted over all epochs."""
        plain = not self.augmentation.sides and fits(self.augmentation)
        if plain and has_model_size(self.source, self.how):
            return (self.warped(share) for share in self.shares(start, stop))
        dataset = Samples(self.source, self.how, self.augmentation, self.seed)
        shares, ahead = tee(self.shares(start, stop))  # workers read ahead
        keys = (
            [(share.epoch, int(image), int(view), share.side) for image, view in share.rows]
            for share in ahead
        )
        loaded = zip(shares, load(dataset, keys, self.workers), strict=True)
        return (gather(items, self.source, share) for share, items in loaded)

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

    def warped(self, share: Share) -> Batch:
        if not len(share.rows):  # there are more processes than images
            return gather([], self.source, share)
        channels, which = len(self.how.mean), share.rows[:, 0]
        images = torch.stack([pixels_of(self.source, int(i), channels) for i in which])
        images = warp(
            images, share.rows, self.augmentation, self.how, seed=self.seed, epoch=share.epoch
        )
        targets = targets_of(self.source, which)
        return Batch(
            images, targets, which, (), share.epoch, places=share.places, planned=share.planned
        )


def in_order(
    source: Source,
    how: Preprocessing,
    batch_size: int,
    *,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Iterator[Batch]:
    """Every image once, prepared for evaluation as the passport says, in the source's order; of
    many processes each has its share of every batch, be it empty."""
    every: list[Key] = [(0, index, 0, None) for index in range(len(source))]
    keys = (
        every[first : first + batch_size][rank::world]
        for first in range(0, len(source), batch_size)
    )
    return (gather(items, source) for items in load(Samples(source, how, None, 0), keys, workers))


class Samples(Dataset[Item]):
    """One sample by its key, decoded and augmented, or the reason why that cannot be."""

    def __init__(
        self, source: Source, how: Preprocessing, augmentation: Augmentation | None, seed: int
    ) -> None:
        self.source, self.how, self.seed = source, how, seed
        self.transforms: dict[int | None, Seeded] = {}
        self.at_least = None
        if augmentation is not None:
            self.at_least = needed_size(augmentation, how)
            for side in (None, *augmentation.sides):
                self.transforms[side] = make_transform(augmentation, resized(how, side))

    def __getitem__(self, key: Key) -> Item:
        epoch, index, view, side = key
        try:
            image = pixels_of(self.source, index, len(self.how.mean), at_least=self.at_least)
        except BadImage as problem:
            return index, problem.with_traceback(None)  # which would keep the file's bytes alive
        if not self.transforms:
            return index, prepare(image.permute(1, 2, 0).numpy(), self.how)
        seed = seed_of("augment", self.seed, epoch, index, view)
        return index, self.transforms[side](image, seed)


def resized(how: Preprocessing, side: int | None) -> Preprocessing:
    """The same preparation for another side."""
    if side is None:
        return how
    grown = how.resize and (
        round(how.resize[0] * side / how.size[0]),
        round(how.resize[1] * side / how.size[1]),
    )
    return replace(how, size=(side, side), resize=grown)


def needed_size(augmentation: Augmentation, how: Preprocessing) -> tuple[int, int]:
    """How large an image has to be decoded, so that its smallest crop still fills the model's
    size."""
    largest = resized(how, max(augmentation.sides, default=None))
    if augmentation.crop is None:
        return largest.resize or largest.size
    enlarge = augmentation.crop[0] ** -0.5
    return math.ceil(largest.size[0] * enlarge), math.ceil(largest.size[1] * enlarge)


def pixels_of(
    source: Source, index: int, channels: int, *, at_least: tuple[int, int] | None = None
) -> Tensor:
    """One image as uint8 (C, H, W), with as many channels as the model reads; a large photo may be
    decoded smaller where `at_least` allows it, which evaluation does not."""
    raw = source.read(index)
    if isinstance(raw, bytes):
        raw = decode(raw, source.name(index), at_least=at_least, channels=channels)
    image = as_image(raw)
    if image.shape[0] == 1 and channels == 3:
        return image.expand(3, -1, -1)
    if image.shape[0] != channels:
        raise UserError(
            f"{source.name(index)} has {image.shape[0]} channels, the model reads {channels}: "
            f"create it with channels={image.shape[0]}"
        )
    return image


def load(dataset: Samples, keys: Iterable[list[Key]], workers: int) -> Iterator[list[Item]]:
    if not workers:
        return ([dataset[key] for key in batch] for batch in keys)
    loader = DataLoader(dataset, batch_sampler=_Keys(keys), num_workers=workers, collate_fn=list)
    return iter(loader)


class _Keys:
    """The keys of each batch, drawn as the workers ask for them."""

    def __init__(self, keys: Iterable[list[Key]]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.keys)


def gather(items: Sequence[Item], source: Source, share: Share | None = None) -> Batch:
    """A batch of the images that could be read; the others are named, not replaced."""
    rows = [row for row, (_, image) in enumerate(items) if isinstance(image, Tensor)]
    broken = tuple(problem for _, problem in items if isinstance(problem, BadImage))
    indices = np.array([items[row][0] for row in rows], dtype=np.int64)
    good = [image for _, image in items if isinstance(image, Tensor)]
    images = torch.stack(good) if good else torch.empty(0)
    targets = targets_of(source, indices)
    if share is None:
        return Batch(images, targets, indices, broken)
    places = share.places[rows] if rows else share.places[:0]
    return Batch(images, targets, indices, broken, share.epoch, places, share.planned)


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
    if not len(source):
        return False
    first = source.read(0)
    if isinstance(first, bytes) or not source.uniform:
        return False
    image = as_image(first)
    return tuple(image.shape[1:]) == how.size and image.shape[0] in (1, len(how.mean))
