"""Batches for the loop: a stream that starts at any step and is the same whoever reads it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.core.randomness import seed_of
from vitrail.data.augment import Augmentation, as_image, make_transform
from vitrail.data.images import BadImage, decode
from vitrail.data.preprocess import prepare
from vitrail.data.sampler import batch_at, epoch_order, steps_per_epoch
from vitrail.data.source import Source
from vitrail.data.warp import fits, warp

Key = tuple[int, int, int]  # epoch, image, view
Item = tuple[int, Tensor | BadImage]  # image, and what became of it


@dataclass(frozen=True)
class Batch:
    """Images, their targets (B, K), which images of the source they are, and which were broken."""

    images: Float[Tensor, "B C H W"]
    targets: Float[Tensor, "B K"]
    indices: NDArray[np.int64]
    broken: tuple[BadImage, ...] = ()


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
        return steps_per_epoch(len(self.source), self.batch_size)

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of the steps from `start` up to `stop`, counted over all epochs."""
        samples = self.samples(start, stop)
        if fits(self.augmentation) and has_model_size(self.source, self.how):
            return (self.warped(epoch, rows) for epoch, rows in samples)
        dataset = Samples(self.source, self.how, self.augmentation, self.seed)
        keys = ([(epoch, int(i), int(v)) for i, v in rows] for epoch, rows in samples)
        return (gather(items, self.source) for items in load(dataset, keys, self.workers))

    def samples(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(epoch, rows of (image, view)) for each step; this process's share."""
        order, order_of = np.empty((0, 2), dtype=np.int64), -1
        for step in range(start, stop):
            epoch, batch = divmod(step, self.steps)
            if epoch != order_of:
                order, order_of = self.order(epoch), epoch
            yield epoch, batch_at(order, self.batch_size, batch, rank=self.rank, world=self.world)

    def order(self, epoch: int) -> NDArray[np.int64]:
        return epoch_order(
            len(self.source),
            seed=self.seed,
            epoch=epoch,
            repeats=self.augmentation.repeats,
            balance=self.source.targets if self.balance else None,
        )

    def warped(self, epoch: int, samples: NDArray[np.int64]) -> Batch:
        channels = len(self.how.mean)
        images = torch.stack([pixels_of(self.source, int(i), channels) for i in samples[:, 0]])
        images = warp(images, samples, self.augmentation, self.how, seed=self.seed, epoch=epoch)
        return Batch(images, targets_of(self.source, samples[:, 0]), samples[:, 0])


def in_order(
    source: Source, how: Preprocessing, batch_size: int, *, workers: int = 0
) -> Iterator[Batch]:
    """Every image once, prepared for evaluation as the passport says, in the source's order."""
    places = range(0, len(source), batch_size)
    keys = (
        [(0, i, 0) for i in range(first, min(first + batch_size, len(source)))] for first in places
    )
    return (gather(items, source) for items in load(Samples(source, how, None, 0), keys, workers))


class Samples(Dataset[Item]):
    """One sample by its key, decoded and augmented, or the reason why that cannot be."""

    def __init__(
        self, source: Source, how: Preprocessing, augmentation: Augmentation | None, seed: int
    ) -> None:
        self.source, self.how, self.seed = source, how, seed
        self.transform = None if augmentation is None else make_transform(augmentation, how)
        self.at_least = None if augmentation is None else needed_size(augmentation, how)

    def __getitem__(self, key: Key) -> Item:
        epoch, index, view = key
        try:
            image = pixels_of(self.source, index, len(self.how.mean), at_least=self.at_least)
        except BadImage as problem:
            return index, problem.with_traceback(None)  # which would keep the file's bytes alive
        if self.transform is None:
            return index, prepare(image.permute(1, 2, 0).numpy(), self.how)
        return index, self.transform(image, seed_of("augment", self.seed, epoch, index, view))


def needed_size(augmentation: Augmentation, how: Preprocessing) -> tuple[int, int]:
    """How large an image has to be decoded, so that its smallest crop still fills the model's
    size."""
    if augmentation.crop is None:
        return how.resize or how.size
    enlarge = augmentation.crop[0] ** -0.5
    return math.ceil(how.size[0] * enlarge), math.ceil(how.size[1] * enlarge)


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


def gather(items: Sequence[Item], source: Source) -> Batch:
    """A batch of the images that could be read; the others are named, not replaced."""
    good = [(index, image) for index, image in items if isinstance(image, Tensor)]
    broken = tuple(problem for _, problem in items if isinstance(problem, BadImage))
    indices = np.array([index for index, _ in good], dtype=np.int64)
    images = torch.stack([image for _, image in good]) if good else torch.empty(0)
    return Batch(images, targets_of(source, indices), indices, broken)


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
