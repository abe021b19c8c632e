"""Runs whose result must not depend on how many processes compute them, by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.training.test_statistics import KINDS as BATCH_NORMS
from tests.training.test_statistics import augmentation_of
from tests.training.world import RECIPE, Stripes, accuracy, unlabelled
from vitrail.data.images import BadImage
from vitrail.data.source import Splits
from vitrail.training.goal import Labels
from vitrail.training.loop import Trainer
from vitrail.training.prepare import prepare_task
from vitrail.training.recipe import Lora, Monitor, Optimiser, Schedule
from vitrail.training.world import World

STEPS, STOP = 6, 3  # a run in processes is stopped and resumed in between

STEADY: dict[str, Any] = {
    "goal": Labels(),
    "accumulate": 2,
    "schedule": Schedule(steps=STEPS, warmup=1),
    "monitor": Monitor(eval_every_epochs=0.5, outage_minutes=0),
    "optimiser": Optimiser(name="sgd", lr=0.05),
    "max_broken": 1.0,
}
PER_SAMPLE = replace(RECIPE.augmentation, policy="trivialaugment")


def with_batch_norms(model: str) -> dict[str, Any]:
    noisy = {"dropout": 0.1, "drop_path": 0.2}
    return {
        "model": model,
        "fields": BATCH_NORMS[model] | noisy,
        "augmentation": augmentation_of(model),
        "optimiser": Optimiser(lr=3e-3),
    }


CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adamw": {"optimiser": Optimiser(lr=3e-3)},
    "muon": {"optimiser": Optimiser(name="muon", lr=3e-3)},
    "freeze": {"optimiser": Optimiser(lr=3e-3, freeze=("blocks.0.*", "patches.*", "*.norm1.*"))},
    "lora": {"lora": Lora(rank=2), "optimiser": Optimiser(lr=3e-3)},
    "batch norm": with_batch_norms("mobilevit_xxs"),
    "batch norm v2": with_batch_norms("mobilevitv2_050"),
    "batch norm coatnet": with_batch_norms("coatnet_0"),
    "batch norm coatnet broken": with_batch_norms("coatnet_0") | {"batch_size": 4, "accumulate": 1},
    "batch norm resnet": with_batch_norms("resnet18"),
    "batch norm mobilenet": with_batch_norms("mobilenet_v2"),
    "batch norm recomputed": with_batch_norms("mobilevit_xxs") | {"checkpointing": True},
    "batch norm broken": with_batch_norms("mobilevit_xxs")
    | {
        "augmentation": replace(RECIPE.augmentation, sides=(64,)),
        "batch_size": 16,  # of 32 pixels: 4 of 64, and two for each process
        "accumulate": 1,
    },
    "uneven": {"batch_size": 18},
    "uneven thirds": {"batch_size": 15, "accumulate": 3},
    "broken": {"augmentation": PER_SAMPLE, "batch_size": 6, "accumulate": 3},
    "workers": {"augmentation": PER_SAMPLE, "workers": 2},
    "fewer than processes": {"batch_size": 3, "accumulate": 3},
    # two ideas in one run each, which are alone above
    "lora, fewer than processes": {
        "lora": Lora(rank=2),
        "optimiser": Optimiser(lr=3e-3),
        "batch_size": 3,
        "accumulate": 3,
    },
    "muon, uneven": {"optimiser": Optimiser(name="muon", lr=3e-3), "batch_size": 18},
    "half": {"precision": "float16"},
    "mae": unlabelled("mae"),
    "masked-patch": unlabelled("masked-patch"),
    "simmim": unlabelled("simmim"),
    "beit": {},  # with a tokenizer that has to be there
    "tokenizer": unlabelled("tokenizer"),
}
SINGLE = ("half", "mae", "masked-patch", "simmim", "beit", "tokenizer")  # no float64 inside


class Damaged(Stripes):
    """Some images cannot be decoded: all of the first rows of a batch, or one of many."""

    uniform = False

    def read(self, index: int) -> NDArray[np.uint8]:
        if index % 4 == 0:
            raise BadImage(self.name(index), "the file is damaged")
        return super().read(index)


def case_trainer(name: str, out: Path, *, world: World | None = None, **changes: Any) -> Trainer:
    """A run of a case; computed in float64 where the objective allows it, so that a difference
    between one process and several is a fault and not rounding."""
    case = unlabelled("beit", out.parents[1] / "words") if name == "beit" else CASES[name]
    recipe = replace(RECIPE, **{**STEADY, **case, **changes})
    train, val = (Damaged, Stripes) if "broken" in name else (Stripes, Stripes)
    counts = (3, 1) if name.endswith("fewer than processes") else (100, 40)
    splits = Splits({"train": train(counts[0]), "val": val(counts[1], seed=1)})
    deferred = recipe.parallel != "ddp" and world is not None and world.size > 1
    task = prepare_task(recipe, splits, accuracy, deferred=deferred)
    if name not in SINGLE:
        task.objective.double()
        task.objective.model.register_forward_pre_hook(to_double)
    return Trainer(task, out, world=world)


def to_double(_: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.double() for tensor in inputs)
