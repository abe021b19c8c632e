"""A small model of every kind that the page may be asked about, and an image for it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from PIL import Image

from tests.models.kinds import KINDS, SMALL, perturbed
from tests.parity.test_every_family import CNNS, FAMILIES, make
from vitrail.models.model import Model

LABELS = ("cat", "dog", "bird", "고양이", "fish")


def one_channel() -> Model:
    return perturbed(replace(SMALL, channels=1)).eval()


def labelled(*, multi_label: bool) -> Model:
    model: Model = perturbed(SMALL).eval()
    model.passport = replace(model.passport, labels=LABELS, multi_label=multi_label)
    return model


def vit(kind: str) -> Model:
    return perturbed(KINDS[kind]).eval()


def long_windows() -> Model:
    """Windows that do not divide the grid, padded and rolled as timm does."""
    return make("swin", window_policy="timm")


KEPT = ("hybrid", "hybrid, larger patches", "distilled", "registers", "relative positions")
VITS = (*KEPT, "class and mean", "mean pooling", "clip", "gated", "no head", "normed patches")
MODELS: dict[str, Callable[[], Model]] = {
    **{family: partial(make, family) for family in FAMILIES},
    **{f"vit, {kind}": partial(vit, kind) for kind in VITS},
    "one channel": one_channel,
    "labels": partial(labelled, multi_label=False),
    "several labels": partial(labelled, multi_label=True),
    "swin, timm windows": long_windows,
    "headless swin": partial(make, "swin", num_classes=0),
}


# those whose attention can be seen
ATTENTIVE = tuple(name for name in MODELS if name not in CNNS)


@cache
def model_of(name: str) -> Model:
    return MODELS[name]()


def photo(seed: int = 0, size: tuple[int, int] = (70, 50)) -> Image.Image:
    """Noise with a bright square on it."""
    pixels = np.random.default_rng(seed).integers(0, 200, (size[1], size[0], 3), dtype=np.uint8)
    pixels[10:30, 15:40] = (250, 220, 40)
    return Image.fromarray(pixels)


def image_tensor(model: Model, seed: int = 0) -> torch.Tensor:
    return model.preprocess([photo(seed)])
