"""Batches of augmented JPEGs side by side: ours against timm's and torchvision's loader.

All read the same files with a random resized crop and a flip, and give normalised float32 batches
of (B, 3, 224, 224) on the CPU. Ours is a `Stream`; timm's is `create_loader` with its prefetcher,
torchvision's an ImageFolder with the transforms of its own examples in a DataLoader.

Printed are images a second and core; the milliseconds for which the main thread is busy with a
batch of 128 that workers have ready, which no training step can hide; and the share of a step spent
waiting, for steps that compute for `--step-ms` on a device of their own. Ours and timm's normalise
on the device: a second row of ours has a device that takes no time of the processor ("meta").

    python -m benchmarks.loader [--rounds N] [--workers N] [--step-ms N]
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitrail.core.torchvision import mend_torchvision
from vitrail.data.augment import Augmentation
from vitrail.data.loader import Stream
from vitrail.data.sources import open_data

SIDE, FILES, BATCH = 224, 256, 128
SIZE = (500, 375)  # width, height

Batches = Callable[[int], Iterator[Tensor]]  # for a number of workers, without an end


def main() -> None:
    """Print a row for each loader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=500.0, help="a step's own computation")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    mend_torchvision()
    print(
        f"{FILES} JPEGs of {SIZE[0]}x{SIZE[1]}, batches of {BATCH}, {arguments.workers} workers, "
        f"one thread; load before {os.getloadavg()[0]:.1f}\n"
    )
    with TemporaryDirectory() as folder:
        write_photos(Path(folder))
        loaders: dict[str, Batches] = {
            "ours": lambda workers: ours(folder, workers),
            "ours, to a device": lambda workers: ours(folder, workers, "meta"),
            "timm": lambda workers: theirs_timm(folder, workers),
            "torchvision": lambda workers: theirs_torchvision(folder, workers),
        }
        speeds = alternate(loaders, arguments.rounds)
        print("| loader | images/s a core | main thread, ms a batch | share of a step waiting |")
        print("|---|---|---|---|")
        for name, open_batches in loaders.items():
            busy = main_thread_ms(open_batches, arguments.workers)
            waiting = share_waiting(open_batches, arguments.workers, arguments.step_ms)
            print(f"| {name} | {speeds[name]:.0f} | {busy:.0f} | {waiting:.1%} |", flush=True)


def write_photos(folder: Path) -> None:
    """A real photo in several cuts, as two classes of an ImageFolder."""
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for number in range(FILES):
        path = folder / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        shift = number % 32
        cut = (2 * shift, shift, photo.width - 2 * shift, photo.height - shift)
        photo.resize(SIZE, Image.Resampling.LANCZOS, box=cut).save(path, quality=90)


def ours(folder: str, workers: int, device: str = "cpu") -> Iterator[Tensor]:
    how = Preprocessing(size=(SIDE, SIDE), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    source = open_data(folder, val_share=0)["train"]
    stream = Stream(
        source=source,
        how=how,
        augmentation=Augmentation(),
        batch_size=BATCH,
        workers=workers,
        device=torch.device(device),
    )
    return (batch.images for batch in stream.batches(0, 10**6))


def theirs_timm(folder: str, workers: int) -> Iterator[Tensor]:
    from timm.data import create_dataset, create_loader

    loader: Any = create_loader(
        create_dataset("", folder),
        input_size=(3, SIDE, SIDE),
        batch_size=BATCH,
        is_training=True,
        color_jitter=0.0,
        interpolation="bilinear",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        num_workers=workers,
        device=torch.device("cpu"),
        persistent_workers=workers > 0,
    )
    while True:
        for images, _ in loader:
            yield images


def theirs_torchvision(folder: str, workers: int) -> Iterator[Tensor]:
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    prepare = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    loader: Any = DataLoader(
        datasets.ImageFolder(folder, prepare),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )
    while True:
        for images, _ in loader:
            yield images


def alternate(loaders: dict[str, Batches], rounds: int) -> dict[str, float]:
    """Images a second in one process that does nothing else; an epoch of each in turns, so that
    what else the machine does hits all."""
    opened = {name: open_batches(0) for name, open_batches in loaders.items()}
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for turn in range(rounds + 1):  # the first warms up
        for name in sorted(opened, reverse=turn % 2 == 1):
            began = time.process_time()  # of this process: one core, whoever else wants it
            for _ in range(FILES // BATCH):
                next(opened[name])
            times[name].append(time.process_time() - began)
    return {name: FILES / median(found[1:]) for name, found in times.items()}


def main_thread_ms(open_batches: Batches, workers: int, batches: int = 6) -> float:
    """Processor time of this process for a batch that workers have ready."""
    stream = open_batches(max(workers, 1))
    next(stream)
    times = []
    for _ in range(batches):
        time.sleep(1.0)  # until workers have the next
        began = time.process_time()
        next(stream)
        times.append(1e3 * (time.process_time() - began))
    return median(times)


def share_waiting(open_batches: Batches, workers: int, step_ms: float, steps: int = 6) -> float:
    """Of steps that compute for `step_ms` on a device of their own, the share spent waiting."""
    stream = open_batches(max(workers, 1))
    next(stream)
    shares = []
    for _ in range(steps):
        began = time.perf_counter()
        next(stream)
        waited = time.perf_counter() - began
        time.sleep(step_ms / 1e3)
        shares.append(waited / (waited + step_ms / 1e3))
    return float(np.median(shares))


if __name__ == "__main__":
    main()
