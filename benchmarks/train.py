"""Training steps side by side: ours against timm's, the same ViT on the same batch.

Ours is a step of the Trainer; theirs is made of timm's parts (see `benchmarks.peer`), with the same
AdamW, fused in both, and the same clipping. Steps alternate, and which comes first alternates too,
so that what else the machine does hits both. Each round has its own ratio; printed is their median,
with the quartiles, beside the medians of the milliseconds.

    python -m benchmarks.train [--rounds N] [--threads N]
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import vitrail
from benchmarks.peer import Settings, make_model, make_optimiser
from vitrail.data.loader import Batch
from vitrail.data.sources import open_data
from vitrail.models.model import Model
from vitrail.objectives.supervised import Supervised
from vitrail.training.loop import Trainer
from vitrail.training.recipe import Optimiser, Recipe, Schedule
from vitrail.training.task import Task

GOALS = {0.3: 1.2, 0.0: 1.0}  # drop-path: the ratio that we mean to reach
BATCH, CLASSES, SIDE = 64, 10, 32
RATE, DECAY, CLIP = 1e-3, 0.05, 1.0

Step = Callable[[], None]


def main() -> None:
    """Print a row for each rate of stochastic depth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="steps of each")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(
        f"ViT {SIDE} px, patch 4, width 192, depth 9, batch {BATCH}; {arguments.threads} threads, "
        f"{arguments.rounds} steps each; matrix product {peak():.0f} GFLOP/s; "
        f"load before {os.getloadavg()[0]:.1f}\n"
    )
    print("| drop-path | timm ms | ours ms | timm : ours | quartiles | goal |")
    print("|---|---|---|---|---|---|")
    for drop_path, goal in GOALS.items():
        with TemporaryDirectory() as folder:
            model = create(drop_path)
            batch = make_batch()
            steps = {
                "ours": make_ours(model, batch, Path(folder)),
                "timm": make_theirs(model, batch, drop_path),
            }
            times = alternate(steps, arguments.rounds)
        ratios = [theirs / ours for theirs, ours in zip(times["timm"], times["ours"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        print(
            f"| {drop_path:g} | {median(times['timm']):.0f} | {median(times['ours']):.0f} "
            f"| {middle:.2f}x | {low:.2f} to {high:.2f} | {goal:.1f}x |",
            flush=True,
        )


def create(drop_path: float) -> Model:
    return vitrail.create(
        "vit_ti_16",
        image_size=SIDE,
        patch_size=4,
        dim=192,
        depth=9,
        heads=3,
        mlp_dim=768,
        num_classes=CLASSES,
        drop_path=drop_path,
    )


def make_batch() -> Batch:
    labels = torch.randint(CLASSES, (BATCH,))
    images = torch.randn(BATCH, 3, SIDE, SIDE)
    return Batch(images, F.one_hot(labels, CLASSES).float(), np.arange(BATCH))


def make_ours(model: Model, batch: Batch, out: Path) -> Step:
    """A step as the Trainer takes it; the data set is there because a Trainer has one."""
    recipe = Recipe(
        data="digits",
        optimiser=Optimiser(lr=RATE, weight_decay=DECAY, clip=CLIP),
        schedule=Schedule(kind="constant", steps=10**6),
        batch_size=BATCH,
    )
    data = open_data("digits")
    task = Task(
        recipe=recipe,
        objective=Supervised(model),
        train=data["train"],
        val=data["val"],
        scorer=lambda logits, targets: ("accuracy", {"accuracy": 0.0}),
    )
    trainer = Trainer(task, out)

    def step() -> None:
        trainer.train_step(batch)
        trainer.step += 1

    return step


def make_theirs(model: Model, batch: Batch, drop_path: float) -> Step:
    """The same step of timm's parts."""
    peer = make_model(model.config, drop_path=drop_path).train()
    from timm.loss import SoftTargetCrossEntropy
    from timm.scheduler import create_scheduler_v2
    from timm.utils import dispatch_clip_grad

    optimiser = make_optimiser(peer, Settings(rate=RATE, weight_decay=DECAY))
    scheduler, _ = create_scheduler_v2(
        optimiser, num_epochs=10**6, step_on_epochs=False, updates_per_epoch=1
    )
    criterion = SoftTargetCrossEntropy()

    def step() -> None:
        optimiser.zero_grad()
        loss: Tensor = criterion(peer(batch.images), batch.targets)
        loss.backward()
        dispatch_clip_grad(peer.parameters(), CLIP)
        optimiser.step()
        scheduler.step_update(1)
        loss.item()

    return step


def alternate(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every step, in turns; the first two rounds warm up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 2):
        for name in sorted(steps, reverse=turn % 2 == 1):
            began = time.perf_counter()
            steps[name]()
            if turn >= 2:
                times[name].append(1000 * (time.perf_counter() - began))
    return times


def peak(size: int = 1024) -> float:
    """What the machine's own matrix product reaches, in GFLOP/s: the limit of every step."""
    left, right = torch.randn(2, size, size)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - began)
    return 2e-9 * size**3 / min(times)


if __name__ == "__main__":
    main()
