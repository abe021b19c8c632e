"""Images of different sizes: packed at native resolution, padded, one by one, or made square.

    python -m benchmarks.packing ../shared/golden/pets/test --rounds 5

Photos are read once; the model alone is timed. Each batch is computed by every contender in turn,
so that what else the machine does falls on all alike. A table has images per second and the ratio
to the square images of the same batch: medians with quartiles.

    packed        what `predict --native-resolution` computes (inference/packing.py)
    block mask    the same sequence under one block-diagonal mask, as NaViT describes it
    padded        native sizes, filled up to the largest height and width of the batch; no mask
    one by one    native sizes, a batch of one image each
    square        every image resized to the model's square: what `predict` computes
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from statistics import mean, quantiles
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from vitrail import create
from vitrail.core.native_size import NativeSize
from vitrail.data.preprocess import normalise
from vitrail.data.reader import read_image, read_native
from vitrail.inference.engines.eager import EagerRunner
from vitrail.inference.packing import PackedRunner
from vitrail.layers.attention import SelfAttention

Images = Sequence[Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--model", default="vit_s_16")
    parser.add_argument("--count", type=int, default=64, help="photos")
    parser.add_argument("--batch-size", nargs="+", type=int, default=[8])
    parser.add_argument("--max-tokens", nargs="+", type=int, default=[196])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, not the clock")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    files = sorted(path for path in options.photos.rglob("*") if path.is_file())
    chosen = np.random.default_rng(0).permutation(len(files))[: options.count]
    model: Any = create(options.model, num_classes=37).eval()
    how, patch_size = model.passport.preprocessing, model.config.stride
    print(
        f"{options.model}, {len(chosen)} photos, threads {options.threads}, {options.rounds} rounds"
    )
    print("\n| batch | patches at most | contender | tokens an image | images/s | : square |")
    print("|---|---|---|---|---|---|")
    square = [normalise(read_image(files[i], how), how, reorder=False) for i in chosen]
    for most in options.max_tokens:
        native = [
            normalise(read_native(files[i], how, NativeSize(patch_size, most)), how, reorder=False)
            for i in chosen
        ]
        sides = contenders(model, most)
        for size in options.batch_size:
            batches = [
                (native[first : first + size], square[first : first + size])
                for first in range(0, len(chosen) - size + 1, size)
            ]
            seconds = take_turns(sides, batches, options.rounds, clock)
            tokens = tokens_of(batches, patch_size, model.config.prefix)
            for name, times in seconds.items():
                speed = spread([size / one for one in times])
                ratio = spread([b / a for a, b in zip(times, seconds["square"], strict=True)], 2)
                print(f"| {size} | {most} | {name} | {tokens[name]:.0f} | {speed} | {ratio} |")


def contenders(model: Any, most: int) -> dict[str, Callable[[Images, Images], object]]:
    """Each computes a batch, given at native size and as squares."""
    packed = PackedRunner(model, "logits", max_tokens=most)
    whole = EagerRunner(model, "logits")

    def block_mask(native: Images, _: Images) -> object:
        with masked():
            return packed(native)

    return {
        "packed": lambda native, _: packed(native),
        "block mask": block_mask,
        "padded": lambda native, _: packed(pad(native)),
        "one by one": lambda native, _: [packed([image]) for image in native],
        "square": lambda _, square: whole(torch.stack(list(square))),
    }


def pad(images: Images) -> list[Tensor]:
    """Black below and to the right, up to the largest height and width."""
    high, wide = (max(image.shape[side] for image in images) for side in (1, 2))
    return [F.pad(one, (0, wide - one.shape[2], 0, high - one.shape[1])) for one in images]


@lru_cache(maxsize=1)  # once for all blocks of a batch
def make_mask(lengths: tuple[int, ...]) -> Tensor:
    own = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return torch.zeros(1, 1, len(own), len(own)).masked_fill_(own[:, None] != own, -torch.inf)


def masked() -> AbstractContextManager[object]:
    """Attention of the whole sequence under a block-diagonal mask."""

    def attend(attention: SelfAttention, x: Tensor, lengths: Sequence[int]) -> Tensor:
        bias = make_mask(tuple(lengths))
        q, k, v = rearrange(
            attention.project_all(x), "n (t h d) -> t 1 h n d", t=3, h=attention.heads
        )
        return attention.out(rearrange(attention.attend(q, k, v, bias), "1 h n d -> n (h d)"))

    return patch("vitrail.models.packing.attend", attend)


def take_turns(
    sides: dict[str, Callable[[Images, Images], object]],
    batches: Sequence[tuple[Images, Images]],
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Seconds of every batch; another contender is the first at every turn."""
    names, seconds = list(sides), {name: list[float]() for name in sides}
    for name in names:
        sides[name](*batches[0])
    for turn in range(rounds * len(batches)):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = clock()
            sides[name](*batches[turn % len(batches)])
            seconds[name].append(clock() - began)
    return seconds


def tokens_of(
    batches: Sequence[tuple[Images, Images]], patch_size: int, prefix: int
) -> dict[str, float]:
    """Tokens that each contender computes for an image, in the mean."""

    def count(images: Images) -> float:
        cells = [one.shape[1] * one.shape[2] // patch_size**2 for one in images]
        return prefix + mean(cells)

    native = mean(count(batch) for batch, _ in batches)
    return {
        "packed": native,
        "block mask": native,
        "padded": mean(count(pad(batch)) for batch, _ in batches),
        "one by one": native,
        "square": mean(count(batch) for _, batch in batches),
    }


def spread(values: list[float], digits: int = 1) -> str:
    """The median, and the quartiles in brackets."""
    low, middle, high = quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
