"""The images that a model gets wrong, as a person wants to see them: the surest first, or those
whose truth it finds the least likely."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.images import BadImage, decode
from vitrail.data.likeness import TINY
from vitrail.data.source import Source
from vitrail.evaluation.calibration import losses
from vitrail.evaluation.judged import Judged, wrong_labels

THUMBNAIL = 192  # pixels of the longer side: enough to see what was mistaken for what

Order = Literal["surest", "worst"]


@dataclass(frozen=True)
class Mistake:
    """An image of the source, its labels and what was said, each with the model's probability."""

    index: int
    truth: tuple[tuple[str, float], ...]
    said: tuple[tuple[str, float], ...]


def mistakes(judged: Judged, order: Order = "surest") -> Iterator[Mistake]:
    """All wrong answers: those first that the model was surest of, or that cost it most, because
    the truth is what it finds the least likely."""
    rows = judged.wrong
    answers, targets = judged.answers[rows], judged.targets[rows]
    if order == "worst":
        doubt = -losses(answers, targets, multi_label=judged.multi_label)
    elif judged.multi_label:
        doubt = -np.where(wrong_labels(answers, targets), abs(answers), 0).max(axis=1, initial=0)
    else:
        doubt = np.exp(answers - answers.max(axis=1, keepdims=True)).sum(axis=1, dtype=np.float64)
    for place in np.argsort(doubt, kind="stable"):
        yield answer_of(judged, int(rows[place]))


def answer_of(judged: Judged, row: int) -> Mistake:
    """What is said of one image, be it right or wrong."""
    chances = probabilities(judged.answers[row], multi_label=judged.multi_label)
    truth = np.flatnonzero(judged.targets[row] > 0.5)
    said = np.flatnonzero(judged.answers[row] > 0) if judged.multi_label else judged.guess[[row]]
    return Mistake(
        index=int(judged.indices[row]),
        truth=named(judged.labels, chances, truth),
        said=named(judged.labels, chances, said),
    )


def probabilities(answer: NDArray[np.float32], *, multi_label: bool) -> NDArray[np.float64]:
    """(K,): each label for itself, or all of them together 1.

    >>> probabilities(np.zeros(4, dtype=np.float32), multi_label=False).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    wide = answer.astype(np.float64)
    if multi_label:
        return np.asarray(0.5 * (1 + np.tanh(wide / 2)))
    weights = np.exp(wide - wide.max())
    return np.asarray(weights / weights.sum())


def named(
    labels: tuple[str, ...], chances: NDArray[np.float64], places: NDArray[np.int64]
) -> tuple[tuple[str, float], ...]:
    """Labels with their probabilities, the most probable first."""
    ranked = places[np.argsort(-chances[places], kind="stable")]
    return tuple((labels[place], float(chances[place])) for place in ranked)


def thumbnail(source: Source, index: int) -> str | None:
    """A small picture as a data URI; None where the image cannot be read."""
    try:
        raw = source.read(index)
        if isinstance(raw, bytes):
            raw = decode(raw, source.name(index), at_least=(THUMBNAIL, THUMBNAIL))
    except (BadImage, OSError):
        return None
    return data_uri(raw)


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Pixels (H, W) or (H, W, C) as a small picture within a page."""
    small = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    tiny = min(small.size) < TINY  # small enough to be shown as it is
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
    kind, file = "png" if tiny else "jpeg", BytesIO()
    small.convert("L" if small.mode == "L" else "RGB").save(file, kind, quality=80)
    return f"data:image/{kind};base64,{b64encode(file.getvalue()).decode()}"
