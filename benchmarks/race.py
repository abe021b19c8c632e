"""Races by the clock: our recipe for small images against timm's parts at their best settings.

    python -m benchmarks.race fashion    seconds of training to 88 % on Fashion-MNIST's test images
    python -m benchmarks.race cifar      accuracy after so many seconds on 5,000 images of CIFAR-10

Both sides train the same ViT, of the shape that `recipes.small` chooses, on the same images and are
judged on the same test images. Evaluations are not on the clock; of the peer's live and averaged
weights the better ones count. The length of each schedule is set before the clock starts: in
`fashion` to what was quickest for that side, in `cifar` to the steps that fit, by a short timing.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peer import (
    DEIT,
    LIGHT,
    Batches,
    ImageList,
    Peer,
    Record,
    Settings,
    make_test,
    time_step,
    train_peer,
)
from vitrail.data.augment import NOTHING
from vitrail.data.source import Splits
from vitrail.data.sources import open_data
from vitrail.models.vit import ViTConfig
from vitrail.recipes.choice import Choice
from vitrail.recipes.small import small
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.progress import Values
from vitrail.training.recipe import Monitor, Recipe

GOLDEN = Path(__file__).parents[2] / "shared" / "golden"
GOAL = 0.88
PEERS = {"deit": DEIT, "light": LIGHT}
FASHION_STEPS = {"ours": 900, "timm": 1800}
LOOK = 0.7  # share of a schedule before which neither side comes near the target: no look is taken
NAMES = ("ours", "timm")

Runner = Callable[[str, int], Record]


def main() -> None:
    """Run the races named on the command line, and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("race", nargs="?", choices=["fashion", "cifar"], help="default: both")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="the budget of cifar")
    parser.add_argument("--peer", choices=PEERS, default="deit", help="timm's settings in cifar")
    parser.add_argument("--target", type=float, default=GOAL, help="the accuracy of fashion")
    parser.add_argument("--every", type=int, default=100, help="steps between looks in fashion")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.race != "cifar":
        race_fashion(options.seeds, options.target, options.every)
    if options.race != "fashion":
        race_cifar(options.seeds, options.seconds, PEERS[options.peer])


def race_fashion(seeds: int, target: float, every: int) -> None:
    """Seconds to the target."""
    field = Field.of("fashion-mnist", LIGHT, still=True)

    def run(side: str, seed: int) -> Record:
        return field.run(side, seed, FASHION_STEPS[side], every=every, target=target)

    records = take_turns(run, seeds)
    print(f"\nSeconds of training to {target:.0%} on the {len(field.splits['test']):,} test images")
    print_table(records, lambda record: f"{record.seconds:.0f} s" + missed(record, target))
    ours, theirs = (mean(record.seconds for record in records[side]) for side in NAMES)
    print(f"\nmeans: ours {ours:.1f} s, timm {theirs:.1f} s; timm : ours {theirs / ours:.2f}x")


def race_cifar(seeds: int, seconds: float, settings: Settings) -> None:
    """Accuracy after the budget."""
    golden = Path(os.environ.get("VITRAIL_GOLDEN", GOLDEN)) / "cifar10"
    if not golden.exists():
        print(f"cifar: no images at {golden}: set VITRAIL_GOLDEN to the folder that holds cifar10")
        return
    field = Field.of(str(golden), settings)

    def run(side: str, seed: int) -> Record:
        return field.run(side, seed, field.fit(side, seconds))

    records = take_turns(run, seeds)
    print(f"\nAccuracy after {seconds:g} s on the {len(field.splits['test']):,} test images")
    print_table(records, lambda r: f"{r.best:.2%} ({r.steps:,} steps, {r.seconds:.0f} s)")
    ours, theirs = ([record.best for record in records[side]] for side in NAMES)
    spread = f" (deviations {stdev(ours):.2%}, {stdev(theirs):.2%})" if seeds > 1 else ""
    gap = 100 * (mean(ours) - mean(theirs))
    print(f"\nmeans: ours {mean(ours):.2%}, timm {mean(theirs):.2%}{spread}; {gap:+.2f} points")


def missed(record: Record, target: float) -> str:
    return "" if record.best >= target else f" without it: {record.best:.2%}"


def take_turns(run: Runner, seeds: int) -> dict[str, list[Record]]:
    """Both sides for every seed; the other one first each time."""
    records: dict[str, list[Record]] = {side: [] for side in NAMES}
    for seed in range(seeds):
        for side in NAMES if seed % 2 == 0 else NAMES[::-1]:
            records[side].append(run(side, seed))
            print(f"seed {seed} {side}: {records[side][-1]}", flush=True)
    return records


def print_table(records: dict[str, list[Record]], show: Callable[[Record], str]) -> None:
    """A row for each seed, as Markdown."""
    rows = [["seed", *records], ["---"] * (1 + len(records))]
    for seed, row in enumerate(zip(*records.values(), strict=True)):
        rows.append([str(seed), *map(show, row)])
    print("\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))


@dataclass(frozen=True)
class Field:
    """Where a race is run: the images, our recipe for them, and the peer's view of both."""

    recipe: Recipe
    splits: Splits
    config: ViTConfig
    settings: Settings
    images: ImageList
    test: Batches

    @classmethod
    def of(cls, data: str, settings: Settings, *, still: bool = False) -> Self:
        splits = open_data(data, val_share=0)
        recipe = small(Choice(data=data, train=splits["train"]))
        if still:  # less than an epoch: no image comes twice, and none needs to be moved
            recipe = replace(recipe, augmentation=NOTHING)
        config = prepare_task(recipe, splits, score_logits).objective.model.config
        test = make_test(ImageList(splits["test"]), config)
        return cls(recipe, splits, config, settings, ImageList(splits["train"]), test)

    def fit(self, side: str, seconds: float) -> int:
        """Steps that fit into so many seconds."""
        if side == "timm":
            peer = Peer(self.config, self.images, self.settings, steps=1000, seed=0)
            return max(int(seconds / time_step(peer.step)), 1)
        with TemporaryDirectory() as folder:
            trainer = self.trainer(Path(folder), seed=0, steps=1000)
            batches = trainer.stream.batches(0, 1000)
            return max(int(seconds / time_step(lambda: trainer.train_step(next(batches)))), 1)

    def run(
        self,
        side: str,
        seed: int,
        steps: int,
        *,
        every: int | None = None,
        target: float | None = None,
    ) -> Record:
        """One run of one side."""
        if side == "timm":
            peer = Peer(self.config, self.images, self.settings, steps=steps, seed=seed)
            first = round(LOOK * steps)
            return train_peer(peer, self.test, steps=steps, first=first, every=every, target=target)
        with TemporaryDirectory() as folder:
            trainer = self.trainer(Path(folder), seed=seed, steps=steps, every=every, target=target)
            trainer.run()
            return trainer.record

    def trainer(
        self,
        out: Path,
        *,
        seed: int,
        steps: int,
        every: int | None = None,
        target: float | None = None,
    ) -> "Clocked":
        recipe = fitted(self.recipe, steps, every=every or steps, count=len(self.splits["train"]))
        task = prepare_task(replace(recipe, seed=seed), self.splits, score_logits)
        return Clocked(task, out, target=target)


def fitted(recipe: Recipe, steps: int, *, every: int, count: int) -> Recipe:
    """The recipe for a run of so many steps; warm-up and average as `small` has them for it."""
    return replace(
        recipe,
        schedule=replace(recipe.schedule, steps=steps, warmup=min(500, steps // 10)),
        ema_decay=0.99 if steps < 5_000 else 0.998,
        monitor=Monitor(
            eval_every_epochs=every * recipe.batch_size / count, save_every_steps=10**9
        ),
    )


def score_logits(logits: NDArray[np.float32], targets: NDArray[np.float32]) -> tuple[str, Values]:
    right = logits.argmax(axis=1) == targets.argmax(axis=1)
    return "accuracy", {"accuracy": float(right.mean())}


class Clocked(Trainer):
    """A Trainer with a clock that stands still in evaluations, and with a target to stop at."""

    def __init__(self, *arguments: Any, target: float | None) -> None:
        super().__init__(*arguments)
        self.target, self.began = target, 0.0
        self.record = Record(steps=0, seconds=0.0)

    def train(self, *arguments: Any) -> bool:
        self.began = time.perf_counter()
        return super().train(*arguments)

    def evaluate(self) -> Values:
        if self.step < LOOK * self.total:
            return {"accuracy": 0.0}
        seconds = time.perf_counter() - self.began
        values = super().evaluate()
        self.record = Record(steps=self.step, seconds=seconds, accuracies=values)
        self.began = time.perf_counter() - seconds
        return values

    def out_of_patience(self) -> bool:
        return self.target is not None and self.record.best >= self.target


if __name__ == "__main__":
    main()
