"""A small world to train in: two kinds of stripes with noise, made of nothing but a seed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import vitrail
from vitrail.data.augment import Augmentation
from vitrail.data.source import Splits
from vitrail.training.goal import Labels, Masked
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.progress import Values
from vitrail.training.recipe import Monitor, Optimiser, Recipe, Schedule
from vitrail.training.world import World


class Stripes:
    """Images of 8x8 whose stripes run across or down, under noise."""

    labels: tuple[str, ...] = ("across", "down")
    targets: NDArray[Any] | None
    uniform = True

    def __init__(self, count: int, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.targets = targets = draw.integers(0, 2, count)
        stripes = np.zeros((8, 8)) + (np.arange(8) % 4 < 2) * 160
        images = [stripes.T if target == 0 else stripes for target in targets]
        noise = draw.integers(0, 90, (count, 8, 8))
        self.images = (np.stack(images) + noise).clip(0, 255).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> NDArray[np.uint8]:
        return self.images[index]

    def name(self, index: int) -> str:
        return f"stripes/{index}"


def accuracy(answers: NDArray[np.float32], targets: NDArray[np.float32]) -> tuple[str, Values]:
    right = float((answers.argmax(axis=1) == targets.argmax(axis=1)).mean())
    return "accuracy", {"accuracy": right}


RECIPE = Recipe(
    data="stripes",
    model="vit_ti_16",
    fields={
        "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32, "patch_size": 4, "image_size": (8, 8),
        "channels": 1, "dropout": 0.1, "drop_path": 0.2,
    },
    goal=Labels(smoothing=0.1),
    optimiser=Optimiser(lr=3e-3),
    schedule=Schedule(steps=12, warmup=4),
    augmentation=Augmentation(crop=(0.6, 1.0), rotate=10, erase=0.2, mixup=0.2, cutmix=0.5),
    monitor=Monitor(eval_every_epochs=0.5, save_every_steps=5, log_every_steps=2, outage_minutes=0),
    batch_size=16,
    ema_decay=0.9,
)  # fmt: skip


def unlabelled(objective: str, words: Path | None = None) -> dict[str, Any]:
    """What a recipe without labels has in the place of those above; `words` is a tokenizer, which
    is made if it is not there."""
    options: dict[str, Any] = {"mae": {"decoder_depth": 1}, "simmim": {"unit": 4}}.get(
        objective, {}
    )
    goal = Masked(objective=objective, options=options)  # type: ignore[arg-type]
    plain = replace(RECIPE.augmentation, mixup=0, cutmix=0)
    changes: dict[str, Any] = {"goal": goal, "augmentation": plain}
    small = {"image_size": (8, 8), "channels": 1, "width": 8, "words": 16, "stages": 2, "entry": 8}
    if objective == "tokenizer":
        changes |= {"model": "dvae_ti_8", "fields": small}
    if objective == "beit":
        assert words is not None
        if not words.exists():
            torch.manual_seed(0)
            vitrail.save(vitrail.create("vq_ti_8", **small), words)
        fields = {name: RECIPE.fields[name] for name in ("dim", "depth", "heads", "mlp_dim")}
        fields |= {"patch_size": 2, "image_size": (8, 8), "channels": 1, "layer_scale": 0.1}
        fields |= {"relative_bias": "shared", "pool": "cls"}
        changes |= {
            "goal": replace(goal, tokenizer=str(words)),
            "model": "beit_b_16",
            "fields": fields,
        }
    return changes


def trainer(out: Path, *, world: World | None = None, **changes: Any) -> Trainer:
    recipe = replace(RECIPE, **changes)
    splits = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
    return Trainer(prepare_task(recipe, splits, accuracy), out, world=world)
