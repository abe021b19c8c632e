"""Photos a second from JPEG to label, beside transformers' pipeline and timm's inference script,
and the time from the shell to the first label.

All read the same files with the same weights of a ViT-S/16 and prepare them alike: the whole photo
squeezed into 224x224. The trunk is random; the head is fitted to classes of photos, so that labels
mean something and can be compared. Photos are those of the golden data, enlarged to 12 and to 0.2
megapixels, with the noise of a sensor, without which large ones would be too easily decoded. Each
peer has the fastest of a few settings, tried beforehand. All share as many cores as threads. timm's
script is no part of its package: it is written here with the parts it uses.

`vitrail` is the default: exact pixels and `--engine auto`; `vitrail --fast` decodes large JPEGs
smaller. The first job of each builds what the engine needs, and is not timed.

    python -m benchmarks.predict [--photos N] [--rounds N] [--threads N] [--engine NAME]
        [--sizes large small] [--only speed|start]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import RidgeClassifier

from vitrail import create, load, predict, save
from vitrail.core.torchvision import mend_torchvision
from vitrail.inference.engine import Job, compute_outputs
from vitrail.weights.convert import convert

GOLDEN = Path(__file__).parents[2] / "shared" / "golden"
PIXELS = {"large": 12e6, "small": 0.2e6}
GOALS = {("large", 1): 2.0, ("large", 2): 2.5, ("small", 1): 1.3, ("small", 2): 1.4}  # by threads
GOAL_START, GOAL_LABELS = 0.45, 0.99
TRIED = 8  # photos on which a peer's settings are tried
START = """
import sys
from vitrail.core.torchvision import mend_torchvision
mend_torchvision()
from transformers import pipeline
answers = pipeline("image-classification", model=sys.argv[1], device="cpu")(sys.argv[2])
print(answers[0]["label"], flush=True)
"""

Side = Callable[[list[str]], list[str]]  # names of files in, labels out


def main() -> None:
    """Print a table for speed, and a line for the start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=int, default=200, help="of each size")
    parser.add_argument("--rounds", type=int, default=3, help="times that each side reads them all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engine", default="auto", help="ours: auto, eager, openvino, …")
    parser.add_argument("--sizes", nargs="+", choices=PIXELS, default=list(PIXELS))
    parser.add_argument("--only", choices=["speed", "start"])
    arguments = parser.parse_args()
    golden = Path(os.environ.get("VITRAIL_GOLDEN", GOLDEN))
    if not (golden / "pets").exists():
        print(f"no photos at {golden}: set VITRAIL_GOLDEN to the folder that holds pets")
        return
    mend_torchvision()
    share_cores(arguments.threads)
    with TemporaryDirectory() as folder:
        place = Path(folder)
        classes = write_photos(place, golden, arguments.photos, arguments.sizes)
        write_models(place, arguments.sizes[-1], classes)
        print(
            f"torch {torch.__version__}, {arguments.threads} threads, {arguments.photos} photos\n"
        )
        if arguments.only != "start":
            for size in arguments.sizes:
                race(place, size, arguments)
        if arguments.only != "speed":
            time_start(place, arguments.sizes[-1], arguments.rounds)


def share_cores(threads: int) -> None:
    """Every side, with all processes it starts, has as many cores as threads."""
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


# What is read


def write_photos(place: Path, golden: Path, count: int, sizes: list[str]) -> list[int]:
    """Every photo in these sizes; the class of each."""
    found = sorted([*(golden / "pets").rglob("*.jpg"), *(golden / "flowers").rglob("*.jpg")])
    chosen = [found[number * len(found) // count] for number in range(count)]
    names = sorted({path.parent.name for path in chosen})
    noise = np.random.default_rng(0).normal(0, 4, (4096, 4096, 3)).astype(np.int8)
    for size in sizes:
        (place / size / "all").mkdir(parents=True)
        for number, path in enumerate(chosen):
            with Image.open(path) as photo:
                scale = (PIXELS[size] / (photo.width * photo.height)) ** 0.5
                wanted = round(photo.width * scale), round(photo.height * scale)
                large = np.asarray(photo.convert("RGB").resize(wanted, Image.Resampling.BICUBIC))
            noisy = add_noise(large, noise, number)
            Image.fromarray(noisy).save(place / size / "all" / f"{number:04}.jpg", quality=90)
    return [names.index(path.parent.name) for path in chosen]


def add_noise(pixels: NDArray[np.uint8], noise: NDArray[np.int8], seed: int) -> NDArray[np.uint8]:
    """Another part of the noise for each photo, laid out again where it is too small."""
    height, width = pixels.shape[:2]
    rows, columns = (np.arange(side) + 97 * seed for side in (height, width))
    drawn = noise[np.ix_(rows % len(noise), columns % len(noise))]
    return np.clip(pixels.astype(np.int16) + drawn, 0, 255).astype(np.uint8)


def write_models(place: Path, size: str, classes: list[int]) -> None:
    """The same weights as Vitrail, transformers and timm keep them."""
    torch.manual_seed(0)
    model = create("vit_s_16", num_classes=max(classes) + 1).eval()
    names = photos_of(place, size)
    found = compute_outputs(model, names, Job(output="pooled", exact=True))
    features = np.stack([one.values for one in found if one.values is not None])
    fitted = RidgeClassifier(alpha=1e-3).fit(features, classes)
    with torch.no_grad():
        model.get_parameter("head.classes.weight").copy_(torch.from_numpy(fitted.coef_))
        model.get_parameter("head.classes.bias").copy_(torch.from_numpy(fitted.intercept_))
    save(model, place / "vitrail")
    convert(place / "vitrail", place / "transformers", to="transformers")
    convert(place / "vitrail", place / "timm.safetensors", to="timm")


def photos_of(place: Path, size: str) -> list[str]:
    return sorted(str(path) for path in (place / size / "all").iterdir())


# Speed


def race(place: Path, size: str, arguments: argparse.Namespace) -> None:
    """Sides take turns; the ratio is that of medians, to the better peer."""
    names = photos_of(place, size)
    few, threads, engine = names[:TRIED], arguments.threads, arguments.engine
    ours = {
        "vitrail": vitrail_side(place, threads, engine, exact=True),
        "vitrail --fast": vitrail_side(place, threads, engine, exact=False),
    }
    for run in ours.values():
        run(names)
    peers: dict[str, Side] = {}
    for peer, settings in (("transformers", pipelines(place)), ("timm", scripts(place, size))):
        tried = {answers: timed(side, few)[0] for answers, side in settings.items()}
        best = min(tried, key=lambda answers: tried[answers])
        peers[f"{peer} ({best})"] = settings[best]
    sides = ours | peers
    times: dict[str, list[float]] = {side: [] for side in sides}
    labels: dict[str, list[str]] = {}
    for turn in range(arguments.rounds):
        first = turn % len(sides)
        for side in [*sides][first:] + [*sides][:first]:
            seconds, labels[side] = timed(sides[side], names)
            times[side].append(seconds)
    print(
        f"{size}: {PIXELS[size] / 1e6:g} megapixels, {os.path.getsize(names[0]) / 1e6:.2g} MB each"
    )
    for side, taken in times.items():
        speeds = sorted(len(names) / one for one in taken)
        print(f"  {side:44} {median(speeds):7.2f} images/s ({speeds[0]:.2f} to {speeds[-1]:.2f})")
    better = min(median(times[peer]) for peer in peers)
    for side in ours:
        ratio, goal = better / median(times[side]), GOALS.get((size, threads), "none")
        print(f"  {side:16} to the better peer         {ratio:6.2f}x  (goal {goal})")
        for peer in peers:
            print_agreement(names, labels[side], labels[peer], peer)
    print(flush=True)


def timed(side: Side, names: list[str]) -> tuple[float, list[str]]:
    began = time.perf_counter()
    labels = side(names)
    return time.perf_counter() - began, labels


def print_agreement(names: list[str], ours: list[str], theirs: list[str], peer: str) -> None:
    other = [place for place, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    share = 1 - len(other) / len(names)
    print(f"  labels as {peer}: {share:.1%} of {len(set(theirs))} (goal {GOAL_LABELS:.0%})")
    for place in other:
        print(f"    {Path(names[place]).name}: {ours[place]}, there {theirs[place]}")


def vitrail_side(place: Path, threads: int, engine: str, *, exact: bool) -> Side:
    """The first call builds what the engine needs and measures; it is not on the clock."""
    model = load(place / "vitrail")

    def run(names: list[str]) -> list[str]:
        found = predict(model, names, engine=engine, threads=threads, exact=exact)
        return [str(one.label).removeprefix("class ") for one in found]

    return run


def pipelines(place: Path) -> dict[str, Side]:
    """transformers' pipeline, fed with names as its manual says for many files."""
    from transformers import pipeline

    made = pipeline("image-classification", model=str(place / "transformers"), device="cpu")

    def setting(batch: int, workers: int) -> Side:
        def run(names: list[str]) -> list[str]:
            answers = made(names, batch_size=batch, num_workers=workers)
            return [one[0]["label"].removeprefix("LABEL_") for one in answers]

        return run

    return {
        f"batches of {batch}, {workers} workers": setting(batch, workers)
        for batch, workers in product((1, 8), (0, 1))
    }


def scripts(place: Path, size: str) -> dict[str, Side]:
    """timm's inference.py: its dataset, its loader, the model, softmax, the best five."""
    from timm import create_model
    from timm.data import ImageDataset, create_loader

    classes = load(place / "vitrail").config.num_classes
    weights = str(place / "timm.safetensors")
    model = create_model(
        "vit_small_patch16_224", num_classes=classes, checkpoint_path=weights
    ).eval()

    def batches(names: list[str], batch: int, workers: int) -> Iterator[Any]:
        loader = create_loader(
            ImageDataset(str(place / size)),
            input_size=(3, 224, 224),
            batch_size=batch,
            interpolation="bilinear",
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            crop_pct=1.0,
            crop_mode="squash",
            num_workers=workers,
            persistent_workers=False,
            device=torch.device("cpu"),
        )
        return islice(iter(loader), -(-len(names) // batch))

    def setting(batch: int, workers: int) -> Side:
        @torch.inference_mode()
        def run(names: list[str]) -> list[str]:
            labels: list[int] = []
            for images, _ in batches(names, batch, workers):
                _, row_groups = model(images).softmax(-1).topk(5)
                labels += row_groups[:, 0].tolist()
            return [str(label) for label in labels[: len(names)]]

        return run

    return {
        f"batches of {batch}, {workers} workers": setting(batch, workers)
        for batch, workers in product((8, 64), (0, 1))
    }


# The start


def time_start(place: Path, size: str, rounds: int) -> None:
    """From the shell to the first label, in turns."""
    photo = photos_of(place, size)[0]
    sides = {
        "vitrail": ["-m", "vitrail.cli.app", "predict", str(place / "vitrail"), photo, "--json"],
        "transformers": ["-c", START, str(place / "transformers"), photo],
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    answers = {}
    for turn in range(max(rounds, 3) + 1):
        for side, words in sides.items():
            seconds, answers[side] = first_line([sys.executable, *words])
            if turn:  # the first fills the system's caches
                times[side].append(seconds)
    label = str(json.loads(answers["vitrail"])["label"]).removeprefix("class ")
    assert label == answers["transformers"].strip().removeprefix("LABEL_"), answers
    ours, theirs = (median(taken) for taken in times.values())
    print("from the shell to the first label")
    print(f"  vitrail {ours:.2f} s, transformers' pipeline {theirs:.2f} s")
    print(f"  ours takes {ours / theirs:.2f} of its time  (goal {GOAL_START})")


def first_line(command: list[str]) -> tuple[float, str]:
    """Seconds until a command has printed something, and what; the way out is not on the clock."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        process.communicate()
    assert process.returncode == 0, command
    return seconds, line


if __name__ == "__main__":
    main()
