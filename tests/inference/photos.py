"""A small model and small photos, which several tests of this folder use."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.models.kinds import SMALL
from vitrail.models.catalogue import build
from vitrail.models.model import Model

LABELS = ("ant", "bee", "cat", "dog", "eel")


def small_model(seed: int = 0) -> Model:
    """One that tells pictures apart: with fresh weights every output is the same."""
    torch.manual_seed(seed)
    model = build(SMALL).eval()
    torch.nn.init.normal_(model.get_parameter("head.classes.weight"))
    model.passport = replace(model.passport, labels=LABELS)
    return model


def write_photos(
    folder: Path, count: int, *, broken: tuple[int, ...] = (), seed: int = 0
) -> list[str]:
    """Their names, in order; all differ, also in size."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(count):
        draw = np.random.default_rng(number + 1000 * seed)
        coarse = draw.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        size = (60 + number % 5, 40 + number % 3)
        path = folder / f"{number:05}.jpg"
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
        if number in broken:
            path.write_bytes(b"no picture")
        names.append(str(path))
    return names
