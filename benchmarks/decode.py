"""Loader throughput on one thread: our decoder and fast preparation against ImageFolder's.

Both read the same JPEG files and give the same normalised (3, 224, 224). The peer is torchvision's
ImageFolder with the transform of its own examples: Resize(256), CenterCrop(224), ToTensor and
Normalize. Each file is timed by all before the next, so that what else the machine does hits all.

    python -m benchmarks.decode [--rounds N]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocessing
from vitrail.core.torchvision import mend_torchvision
from vitrail.data import images
from vitrail.data.preprocess import prepare
from vitrail.data.reader import read_pixels

SIZES = {(500, 375): 2.0, (3000, 2000): 2.5}  # width, height: the ratio that we mean to reach
FILTERS: tuple[Interpolation, ...] = ("bilinear", "bicubic")
FILES = 8


def main() -> None:
    """Print a line for each size and filter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times that each file is read")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    library = "Pillow" if images._simplejpeg is None else "simplejpeg"
    print(f"one thread, JPEG by {library}; median milliseconds an image, ratio of medians\n")
    print("size       filter      peer   exact    fast   ratio  (goal)   difference of fast")
    with TemporaryDirectory() as folder:
        for (width, height), goal in SIZES.items():
            write_photos(Path(folder) / f"{width}", width, height)
            for interpolation in FILTERS:
                peer, exact, fast, gap = compare(Path(folder) / f"{width}", interpolation, rounds)
                print(
                    f"{width}x{height:<6} {interpolation:9} {peer:6.2f}  {exact:6.2f}  {fast:6.2f}"
                    f"   {peer / fast:4.2f}x  ({goal})   mean {gap:.2f}/255"
                )


def write_photos(folder: Path, width: int, height: int) -> None:
    """A real photo in several cuts, as one class of an ImageFolder."""
    (folder / "china").mkdir(parents=True)
    photo = Image.fromarray(load_sample_image("china.jpg"))
    for number in range(FILES):
        cut = (4 * number, 2 * number, photo.width - 4 * number, photo.height - 2 * number)
        image = photo.resize((width, height), Image.Resampling.LANCZOS, box=cut)
        image.save(folder / "china" / f"{number}.jpg", quality=90)


def compare(folder: Path, interpolation: Interpolation, rounds: int) -> tuple[float, ...]:
    """Median milliseconds of the peer, of our exact and of our fast way, and how far the fast one
    is from the peer's pixels, in the mean."""
    mend_torchvision()
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    how = Preprocessing(
        size=(224, 224),
        resize=(256, 256),
        interpolation=interpolation,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )
    classic = transforms.Compose(
        [
            transforms.Resize(256, transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    peer = ImageFolder(str(folder), classic)
    paths = [path for path, _ in peer.samples]
    ways: list[Callable[[int], Tensor]] = [
        lambda i: peer[i][0],
        lambda i: prepare(read_pixels(paths[i]), how),
        lambda i: prepare(read_pixels(paths[i], at_least=(256, 256)), how, exact=False),
    ]
    times: list[list[float]] = [[] for _ in ways]
    gaps = []
    for turn in range(rounds + 1):
        for i in range(len(paths)):
            results = []
            for way, taken in zip(ways, times, strict=True):
                start = time.perf_counter()
                results.append(way(i))
                if turn:  # the first warms up
                    taken.append(1000 * (time.perf_counter() - start))
            gaps.append(float((results[0] - results[2]).abs().mul(scale_of(how)).mean()))
    return *(median(taken) for taken in times), float(np.mean(gaps))


def scale_of(how: Preprocessing) -> Tensor:
    """From normalised values back to steps of 1/255."""
    return 255 * torch.tensor(how.std).view(-1, 1, 1)


if __name__ == "__main__":
    main()
