"""How much of a model's accuracy is left when images are corrupted."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.core.errors import UserError
from vitrail.core.passport import Preprocessing
from vitrail.data.images import BadImage
from vitrail.data.loader import pixels_of
from vitrail.data.preprocess import as_picture, frame, in_channels, prepare
from vitrail.data.source import Source
from vitrail.evaluation.classify import score
from vitrail.evaluation.corruptions import CORRUPTIONS, SEVERITIES, constants_for, corrupt
from vitrail.evaluation.intervals import RESAMPLES, bootstrap, mean_of
from vitrail.evaluation.judged import Judged
from vitrail.models.model import Model

MIDDLE = 3  # the severity of examples
NOTHING = -1  # the item of a worker for which no batch is left
VARIANTS = tuple((name, severity) for name in CORRUPTIONS for severity in SEVERITIES)


@dataclass(frozen=True)
class Robustness:
    """`metric` without corruption and by (corruption, severity), on the same `images`; `side` tells
    for which images the constants were published, 224 or 32 pixels; `examples` are the first of
    these images under each corruption at a middle severity; `interval` is that of the mean, None
    where images have several labels or there is but one."""

    metric: str
    clean: float
    values: Float[np.ndarray, "15 5"]
    images: int
    side: int
    examples: UInt8[np.ndarray, "15 H W C"]
    interval: tuple[float, float] | None = None

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def relative_error(self) -> float | None:
        """The mean over corruptions of error / error on clean images of this same model. (The mCE
        of the paper divides by AlexNet's errors under the same corruption instead.) None where
        there is no error to divide by."""
        return None if self.clean == 1 else (1 - self.mean) / (1 - self.clean)


class Variants(Dataset[tuple[Tensor, NDArray[np.int64]]]):
    """Batches of images under each corruption in turn: (images, rows of `indices`). The pixels of a
    batch are decoded once and kept until the next."""

    def __init__(
        self,
        source: Source,
        how: Preprocessing,
        indices: NDArray[np.int64],
        batch_size: int,
        seed: int,
    ) -> None:
        self.source, self.how, self.indices = source, how, indices
        self.batch_size, self.seed = batch_size, seed
        self.framed = replace(how, resize=None)  # it has the model's size already
        self.kept: tuple[int, list[NDArray[np.uint8]]] = (-1, [])

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size) * len(VARIANTS)

    def __getitem__(self, number: int) -> tuple[Tensor, NDArray[np.int64]]:
        if number == NOTHING:
            return torch.empty(0), np.empty(0, np.int64)
        batch, (name, severity) = number // len(VARIANTS), VARIANTS[number % len(VARIANTS)]
        first = batch * self.batch_size
        rows = np.arange(first, min(first + self.batch_size, len(self.indices)))
        if self.kept[0] != batch:
            self.kept = batch, [self.seen(int(index)) for index in self.indices[rows]]
        images = [
            prepare(corrupt(seen, name, severity, seed=self.seed, index=int(index)), self.framed)
            for seen, index in zip(self.kept[1], self.indices[rows], strict=True)
        ]
        return torch.stack(images), rows

    def seen(self, index: int) -> NDArray[np.uint8]:
        """The part of an image that the model sees, in its size."""
        channels = len(self.how.mean)
        try:
            pixels = pixels_of(self.source, index, channels)
        except BadImage as problem:
            sentence = f"{problem.path}: could be read before, but now {problem.reason}"
            raise UserError(sentence) from None
        picture = in_channels(as_picture(pixels.permute(1, 2, 0).numpy()), channels)
        return np.array(frame(picture, self.how)).reshape(*self.how.size, channels)


@torch.inference_mode()
def robustness_of(
    model: Model,
    judged: Judged,
    *,
    batch_size: int = 64,
    workers: int = 0,
    seed: int = 0,
    most: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Robustness:
    """All 15 corruptions at 5 severities on the images that were judged, or on `most` of them,
    spread evenly. Every image is decoded once, and no more than a batch is held."""
    model.eval()
    how, weights = model.passport.preprocessing, next(model.parameters())
    if most is not None and most < 1:
        raise UserError(f"{most} images cannot be corrupted: give at least 1")
    count = judged.images if most is None else min(most, judged.images)
    rows = np.linspace(0, judged.images - 1, count).round().astype(int)
    targets, multi_label = judged.targets[rows], judged.multi_label
    dataset = Variants(judged.source, how, judged.indices[rows], batch_size, seed)
    answers = np.zeros((len(VARIANTS), *(targets.shape if multi_label else (count,))), np.float32)
    # one item is one batch; each worker keeps the pixels of its own
    order = shared_order(len(dataset), workers)
    loader = DataLoader(dataset, batch_size=None, sampler=order, num_workers=workers)
    done = 0
    for number, (images, places) in zip(order, loader, strict=True):
        places = np.asarray(places)  # the loader makes tensors, which index otherwise
        if number == NOTHING:
            continue
        logits = model(images.to(weights)).float().cpu().numpy()
        told = logits if multi_label else logits.argmax(axis=1) == targets[places].argmax(axis=1)
        answers[number % len(VARIANTS), places] = told
        done += 1
        on_progress(done, len(dataset))
    clean = score(judged.answers[rows], targets, multi_label=multi_label)
    if multi_label:
        values = [score(np.nan_to_num(one), targets, multi_label=True).best for one in answers]
    else:
        values = answers.mean(axis=1, dtype=np.float64).tolist()
    table = np.array(values).reshape(len(CORRUPTIONS), len(SEVERITIES))
    interval = None
    if not multi_label and count > 1:  # an image is drawn with all that was made of it
        kept = mean_of(answers.mean(axis=0, dtype=np.float64))
        [interval] = bootstrap([kept], count, resamples=RESAMPLES, seed=seed)
    return Robustness(
        clean.key,
        clean.best,
        table,
        count,
        constants_for(how.size),
        examples_of(dataset),
        interval,
    )


def shared_order(items: int, workers: int) -> list[int]:
    """Items in an order in which each worker, taking its turn, has all variants of the same batch,
    and so decodes it once; where batches run out, some have nothing to do.

    >>> order = shared_order(3 * len(VARIANTS), workers=2)
    >>> {number // len(VARIANTS) for number in order[::2]}
    {0, 2}
    """
    each, turns = len(VARIANTS), max(workers, 1)
    batches = items // each
    return [
        batch * each + variant if batch < batches else NOTHING
        for first in range(0, batches, turns)
        for variant in range(each)
        for batch in range(first, first + turns)
    ]


def examples_of(dataset: Variants) -> UInt8[np.ndarray, "15 H W C"]:
    index = int(dataset.indices[0])
    seen = dataset.seen(index)
    return np.stack(
        [corrupt(seen, name, MIDDLE, seed=dataset.seed, index=index) for name in CORRUPTIONS]
    )
