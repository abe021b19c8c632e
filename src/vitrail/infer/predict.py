"""From pictures to labels, in their order, a few at a time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import Passport
from vitrail.data.images import BadImage, read_image
from vitrail.data.preprocess import prepare
from vitrail.models.model import Model

Picture: TypeAlias = "str | Path | Image.Image | NDArray[np.uint8]"


@dataclass(frozen=True)
class Prediction:
    """The best label with its probability, and the `top` few; a picture that cannot be read has
    none, and `problem` says why."""

    name: str
    label: str | None
    score: float
    top: tuple[tuple[str, float], ...]
    problem: str | None = None


def predict(
    model: Model, pictures: Iterable[Picture], *, top: int = 5, batch_size: int = 32
) -> list[Prediction]:
    """What a model says of files, PIL pictures or uint8 arrays, prepared as its passport says.

    >>> predict(model, [np.zeros((300, 400, 3), dtype=np.uint8)])[0].label
    'class 0'
    """
    return list(stream(model, pictures, top=top, batch_size=batch_size))


def stream(
    model: Model, pictures: Iterable[Picture], *, top: int = 5, batch_size: int = 32
) -> Iterator[Prediction]:
    """The same one after another, holding no more than a batch."""
    if model.config.num_classes == 0:
        raise UserError("this model has no head: load it with num_classes, and train it")
    model.eval()
    numbered = iter(enumerate(pictures))
    while batch := list(islice(numbered, batch_size)):
        opened = [
            (name_of(one, place), attempt(one, place, model.passport)) for place, one in batch
        ]
        good = [image for _, image in opened if isinstance(image, Tensor)]
        scores = iter(probabilities(model, good))
        for name, image in opened:
            if isinstance(image, BadImage):
                yield Prediction(name, None, 0.0, (), problem=image.reason)
            else:
                yield best_of(name, next(scores), model.passport, top)


@torch.inference_mode()
def probabilities(model: Model, images: list[Tensor]) -> list[Tensor]:
    if not images:
        return []
    device = next(model.parameters()).device
    precision = next(model.parameters()).dtype
    batch = torch.stack(images).to(device=device, dtype=precision)
    logits = model(batch).float().cpu()
    return list(logits.sigmoid() if model.passport.several else logits.softmax(dim=1))


def best_of(name: str, scores: Tensor, passport: Passport, top: int) -> Prediction:
    values, places = scores.topk(min(top, len(scores)))
    labels = passport.labels or tuple(f"class {number}" for number in range(len(scores)))
    ranked = tuple(
        (labels[place], value)
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
    )
    return Prediction(name, ranked[0][0], ranked[0][1], ranked)


def attempt(one: Picture, place: int, passport: Passport) -> Tensor | BadImage:
    how = passport.preprocessing
    try:
        if isinstance(one, str | Path):
            return prepare(read_image(one, channels=len(how.mean)), how)
        return prepare(one, how)
    except BadImage as problem:
        return problem.with_traceback(None)


def name_of(one: Any, place: int) -> str:
    return str(one) if isinstance(one, str | Path) else f"picture {place}"
