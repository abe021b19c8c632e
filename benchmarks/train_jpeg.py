"""Training from JPEG files side by side: our loop against timm's training script.

Ours is the stream and the steps of a Trainer; theirs is the loop of timm's train.py made of its own
parts: `create_loader` with its prefetcher, AdamW of its factory, clipping, the schedule. Both read
the same 500x375 JPEGs with a random resized crop (bilinear) and a flip, train the same ViT in
float32 with the same loss and the same rate. Fast decoding of large JPEGs is part of ours, as it is
for a user.

A turn is some steps of one, then of the other; the first of a turn are not timed, so that nothing
is read ahead while the other has its turn. Each turn has its own ratio. With `--cpu-time` images
are read without workers and processor time is counted, on a machine that others use. With
`--compile` ours compiles each block, as its recipe does on GPUs, and theirs the whole model, as
timm's `--torchcompile`.

    python -m benchmarks.train_jpeg [--rounds N] [--threads N] [--workers N] [--cpu-time]
        [--compile]
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import torch

import vitrail
from benchmarks.loader import write_photos
from benchmarks.peer import Settings, make_model, make_optimiser
from vitrail.core.passport import IMAGENET_MEAN, IMAGENET_STD
from vitrail.core.torchvision import mend_torchvision
from vitrail.data.augment import Augmentation
from vitrail.data.sources import open_data
from vitrail.models.model import Model
from vitrail.objectives.supervised import Supervised
from vitrail.training.loop import Trainer
from vitrail.training.recipe import Optimiser, Recipe, Schedule
from vitrail.training.task import Task

RATE, DECAY, CLIP = 1e-3, 0.05, 1.0
AHEAD = 3  # steps of a turn that are not timed: batches that were read ahead
GOAL = 1.2


@dataclass(frozen=True)
class Case:
    """A ViT-Ti/16 at a size, and how many images a step has."""

    side: int
    batch: int
    drop_path: float


CASES = (Case(224, 16, 0.0), Case(224, 16, 0.3), Case(96, 32, 0.0), Case(64, 64, 0.0))


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--sides", type=int, nargs="*", help="only these sizes")
    parser.add_argument("--drop-path", type=float, help="only this rate")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    mend_torchvision()
    workers = 0 if arguments.cpu_time else arguments.workers
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    print(
        f"ViT-Ti/16 from JPEGs of 500x375, {arguments.threads} threads, {workers} workers, "
        f"{'processor time' if arguments.cpu_time else 'wall time'}, {arguments.rounds} turns of "
        f"{arguments.steps} steps{', compiled' if arguments.compile else ''}; load before "
        f"{os.getloadavg()[0]:.1f}\n"
    )
    print("| pixels | batch | drop-path | timm ms | ours ms | timm : ours | quartiles | goal |")
    print("|---|---|---|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        write_photos(Path(folder) / "photos")
        for case in CASES:
            if arguments.sides and case.side not in arguments.sides:
                continue
            if arguments.drop_path in (None, case.drop_path):
                steps = make_steps(case, Path(folder), workers, arguments.compile)
                ahead = AHEAD * (workers > 0)
                print_row(case, alternate(steps, arguments.rounds, arguments.steps, ahead, clock))


def print_row(case: Case, times: dict[str, list[float]]) -> None:
    ratios = [theirs / ours for theirs, ours in zip(times["timm"], times["ours"], strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    print(
        f"| {case.side} | {case.batch} | {case.drop_path:g} | {median(times['timm']):.0f} "
        f"| {median(times['ours']):.0f} | {middle:.2f}x | {low:.2f} to {high:.2f} | {GOAL}x |",
        flush=True,
    )


def make_steps(case: Case, folder: Path, workers: int, compiled: bool) -> dict[str, Iterator[None]]:
    torch.manual_seed(0)
    model = vitrail.create(
        "vit_ti_16", image_size=case.side, num_classes=2, drop_path=case.drop_path
    )
    photos, out = str(folder / "photos"), folder / f"run-{case.side}-{case.drop_path}"
    return {
        "ours": our_steps(model, case, photos, out, workers, compiled),
        "timm": their_steps(model, case, photos, workers, compiled),
    }


def our_steps(
    model: Model, case: Case, photos: str, out: Path, workers: int, compiled: bool
) -> Iterator[None]:
    """Steps as the Trainer takes them from its own stream."""
    recipe = Recipe(
        data=photos,
        optimiser=Optimiser(lr=RATE, weight_decay=DECAY, clip=CLIP),
        schedule=Schedule(kind="constant", steps=10**6),
        augmentation=Augmentation(),
        batch_size=case.batch,
        workers=workers,
        compile=compiled,
    )
    data = open_data(photos, val_share=0.1)
    task = Task(
        recipe=recipe,
        objective=Supervised(model),
        train=data["train"],
        val=data["val"],
        scorer=lambda logits, targets: ("accuracy", {"accuracy": 0.0}),
    )
    trainer = Trainer(task, out)
    for batch in trainer.waited_for():
        assert not trainer.lost_images(batch).found
        trainer.train_step_in_memory(batch)
        trainer.step += 1
        yield


def their_steps(
    model: Model, case: Case, photos: str, workers: int, compiled: bool
) -> Iterator[None]:
    """The loop of timm's train.py: its loader, step, and schedule."""
    peer: Any = make_model(model.config, drop_path=case.drop_path).train()
    peer = torch.compile(peer, backend="inductor") if compiled else peer
    from timm.data import create_dataset, create_loader
    from timm.scheduler import create_scheduler_v2
    from timm.utils import dispatch_clip_grad

    loader: Any = create_loader(
        create_dataset("", root=photos, split="train", is_training=True),
        input_size=(3, case.side, case.side),
        batch_size=case.batch,
        is_training=True,
        color_jitter=0.0,
        interpolation="bilinear",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        num_workers=workers,
        device=torch.device("cpu"),
        persistent_workers=workers > 0,
    )
    optimiser = make_optimiser(peer, Settings(rate=RATE, weight_decay=DECAY))
    scheduler, _ = create_scheduler_v2(
        optimiser, num_epochs=10**6, step_on_epochs=False, updates_per_epoch=1
    )
    criterion, step = torch.nn.CrossEntropyLoss(), 0
    while True:
        for images, labels in loader:
            optimiser.zero_grad()
            loss = criterion(peer(images), labels)
            loss.backward()
            dispatch_clip_grad(peer.parameters(), CLIP)
            optimiser.step()
            step += 1
            scheduler.step_update(step)
            loss.item()
            yield


def alternate(
    steps: dict[str, Iterator[None]],
    rounds: int,
    count: int,
    ahead: int,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Milliseconds of a step, by turn, after those of batches that were read `ahead`; the first
    round warms up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name in sorted(steps, reverse=turn % 2 == 1):
            for _ in range(ahead):
                next(steps[name])
            began = clock()
            for _ in range(count):
                next(steps[name])
            if turn:
                times[name].append(1000 * (clock() - began) / count)
    return times


if __name__ == "__main__":
    main()
