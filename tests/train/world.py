"""A small world to train in: two kinds of stripes with noise, made of nothing but a seed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.augment import Augmentation
from vitrail.data.source import Splits
from vitrail.train.loop import Trainer, Values
from vitrail.train.parallel import World
from vitrail.train.prepare import prepare_task
from vitrail.train.recipe import Goal, Optimiser, Recipe, Schedule, Watch


class Stripes:
    """Images of 8x8 whose stripes run across or down, under noise."""

    labels = ("across", "down")
    uniform = True

    def __init__(self, count: int, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.targets: NDArray[Any] = draw.integers(0, 2, count)
        stripes = np.zeros((8, 8)) + (np.arange(8) % 4 < 2) * 160
        images = [stripes.T if target == 0 else stripes for target in self.targets]
        noise = draw.integers(0, 90, (count, 8, 8))
        self.images = (np.stack(images) + noise).clip(0, 255).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> NDArray[np.uint8]:
        return self.images[index]

    def name(self, index: int) -> str:
        return f"stripes/{index}"


def accuracy(logits: NDArray[np.float32], targets: NDArray[np.float32]) -> tuple[float, Values]:
    right = float((logits.argmax(axis=1) == targets.argmax(axis=1)).mean())
    return right, {"accuracy": right}


RECIPE = Recipe(
    data="stripes",
    model="vit_ti_16",
    fields={
        "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32, "patch_size": 4, "image_size": (8, 8),
        "channels": 1, "dropout": 0.1, "drop_path": 0.2,
    },
    goal=Goal(smoothing=0.1),
    optimiser=Optimiser(lr=3e-3),
    schedule=Schedule(steps=24, warmup=4),
    augmentation=Augmentation(crop=(0.6, 1.0), rotate=10, erase=0.2, mixup=0.2, cutmix=0.5),
    watch=Watch(every=0.5, save=5),
    batch_size=16,
    average=0.9,
)  # fmt: skip


def trainer(out: Path, *, world: World | None = None, **changes: Any) -> Trainer:
    recipe = replace(RECIPE, **changes)
    splits = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
    return Trainer(prepare_task(recipe, splits, accuracy), out, world=world)
