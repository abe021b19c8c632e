"""A model's outputs for several variants of each image, such as corruptions, read once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.images import BadImage
from vitrail.data.preprocess import prepare
from vitrail.data.reader import Sample, read_image
from vitrail.data.source import Source
from vitrail.inference.engines.auto import OpenRunner
from vitrail.inference.outputs import open_logits
from vitrail.models.model import Model

IDLE = -1  # the item of a worker for which no batch is left

V = TypeVar("V")
# pixels (H, W, C) at the model's size, the variant and the image's index -> pixels
Transform: TypeAlias = "Callable[[NDArray[np.uint8], V, int], NDArray[np.uint8]]"


class Variants(Dataset[tuple[Tensor, NDArray[np.int64]]], Generic[V]):
    """Batches of images under each variant in turn: (images, rows of `indices`). The pixels of a
    batch are decoded once and kept until the next."""

    def __init__(
        self,
        source: Source,
        preprocessing: Preprocessing,
        indices: NDArray[np.int64],
        variants: Sequence[V],
        transform: "Transform[V]",
        batch_size: int,
    ) -> None:
        self.source, self.preprocessing, self.indices = source, preprocessing, indices
        self.variants, self.transform, self.batch_size = variants, transform, batch_size
        self.rgb = replace(preprocessing, channel_order="rgb")
        self.normalise = replace(preprocessing, resize=None)  # images have the model's size already
        self.cached: tuple[int, list[NDArray[np.uint8]]] = (-1, [])

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size) * len(self.variants)

    def __getitem__(self, item: int) -> tuple[Tensor, NDArray[np.int64]]:
        if item == IDLE:
            return torch.empty(0), np.empty(0, np.int64)
        batch, variant = divmod(item, len(self.variants))
        first = batch * self.batch_size
        rows = np.arange(first, min(first + self.batch_size, len(self.indices)))
        if self.cached[0] != batch:
            self.cached = batch, [self.pixels(int(index)) for index in self.indices[rows]]
        images = [
            prepare(self.transform(pixels, self.variants[variant], int(index)), self.normalise)
            for pixels, index in zip(self.cached[1], self.indices[rows], strict=True)
        ]
        return torch.stack(images), rows

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """(H, W, C): the part of an image that the model sees, at its size."""
        try:
            image = read_image(Sample(self.source, index), self.rgb)
        except BadImage as problem:
            sentence = f"{problem.path}: could be read before, but now {problem.reason}"
            raise UserError(sentence) from None
        return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def compute_variants(
    model: Model,
    variants: Variants[V],
    *,
    workers: int = 0,
    opened: OpenRunner | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
    """(number of the variant, rows, logits) of every batch under every variant."""
    model.eval()
    opened = opened or open_logits(model, batch_size=variants.batch_size)
    # one item is one batch; each worker keeps the pixels of its own
    order = order_for_workers(len(variants), len(variants.variants), workers)
    loader = DataLoader(variants, batch_size=None, sampler=order, num_workers=workers)
    done = 0
    for item, (images, rows) in zip(order, loader, strict=True):
        if item == IDLE:
            continue
        logits = opened.compute(images)
        done += 1
        on_progress(done, len(variants))
        yield item % len(variants.variants), np.asarray(rows), logits


def order_for_workers(items: int, variants: int, workers: int) -> list[int]:
    """Items in an order in which each worker, taking its turn, has all variants of the same batch,
    and so decodes it once; where batches run out, some are idle.

    >>> order = order_for_workers(3 * 75, 75, workers=2)
    >>> {item // 75 for item in order[::2]}
    {0, 2}
    """
    turns, batches = max(workers, 1), items // variants
    return [
        batch * variants + variant if batch < batches else IDLE
        for first in range(0, batches, turns)
        for variant in range(variants)
        for batch in range(first, first + turns)
    ]
