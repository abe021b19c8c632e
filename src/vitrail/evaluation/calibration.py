"""Whether probabilities mean what they say: of images answered with 80 %, are 80 % right?

One label an image: the confidence is the highest probability, and it is right or it is not.
Several labels: every label of every image is a question for itself, its confidence the probability
that it is there.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
from scipy.special import expit, log_expit, logsumexp, softmax  # type: ignore[import-untyped]

from vitrail.core.randomness import permutation

BINS = 15
COLDEST, HOTTEST = 0.02, 50.0  # temperatures that are tried
ROWS = 4096  # of logits at once, so that a thousand classes take little memory


@dataclass(frozen=True)
class Reliability:
    """Bins of equal width from 0 to 1: how many answers fall into each, their mean confidence and
    the share of them that is right, NaN where there is none."""

    answers: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    right: Float[np.ndarray, " bins"]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance between confidence and share."""
        gaps = np.nan_to_num(abs(self.right - self.confidence))
        return float((gaps * self.answers).sum() / max(self.answers.sum(), 1))


@dataclass(frozen=True, kw_only=True)
class Tempered:
    """What dividing all logits by one temperature does. `fitted_on` says which images chose it:
    never those that it is judged by. `at_edge`: no temperature that was tried is the best."""

    temperature: float
    fitted_on: str
    at_edge: bool
    reliability: Reliability
    loss: float
    brier: float


def bins_of(confidence: Float[np.ndarray, "..."], bins: int = BINS) -> Int[np.ndarray, "..."]:
    """A bin holds its lower edge, the last one 1 too.

    >>> bins_of(np.array([0, 0.2, 0.999, 1]), 5).tolist()
    [0, 1, 4, 4]
    """
    edges = np.linspace(0, 1, bins + 1)
    return (np.searchsorted(edges, confidence, side="right") - 1).clip(0, bins - 1)


def reliability(
    confidence: Float[np.ndarray, " N"], right: Bool[np.ndarray, " N"], bins: int = BINS
) -> Reliability:
    """
    >>> reliability(np.array([0.8, 0.8]), np.array([True, False])).error.__round__(3)
    0.3
    """
    places = bins_of(confidence, bins)
    answers = np.bincount(places, minlength=bins)
    with np.errstate(invalid="ignore"):
        return Reliability(
            answers,
            np.bincount(places, confidence, minlength=bins) / answers,
            np.bincount(places, right.astype(np.float64), minlength=bins) / answers,
        )


def confidences(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    temperature: float | NDArray[np.float64] = 1.0,
) -> tuple[Float[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
    """(N,), or (N, K) where an image has several labels; `temperature` is one number, or one for
    each image."""
    scale = np.broadcast_to(np.asarray(temperature, dtype=np.float64), (len(logits),))
    parts = []
    for rows in chunks(len(logits)):
        part = logits[rows].astype(np.float64) / scale[rows, None]
        parts.append(expit(part) if multi_label else softmax(part, axis=1).max(axis=1))
    right = targets > 0.5 if multi_label else logits.argmax(axis=1) == targets.argmax(axis=1)
    return np.concatenate(parts), right


def losses(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    temperature: float | NDArray[np.float64] = 1.0,
) -> Float[np.ndarray, " N"]:
    """The negative log-likelihood of each image; of several labels, its mean over them."""
    scale = np.broadcast_to(np.asarray(temperature, dtype=np.float64), (len(logits),))
    parts = []
    for rows in chunks(len(logits)):
        part = logits[rows].astype(np.float64) / scale[rows, None]
        if multi_label:
            parts.append(-log_expit(np.where(targets[rows] > 0.5, part, -part)).mean(axis=1))
        else:
            truth = np.take_along_axis(part, targets[rows].argmax(axis=1)[:, None], axis=1)
            parts.append(logsumexp(part, axis=1) - truth[:, 0])
    return np.concatenate(parts)


def brier_scores(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    temperature: float | NDArray[np.float64] = 1.0,
) -> Float[np.ndarray, " N"]:
    """The squared distance between probabilities and truth: summed over the classes, from 0 to 2,
    or the mean over labels of which an image may have several, from 0 to 1."""
    scale = np.broadcast_to(np.asarray(temperature, dtype=np.float64), (len(logits),))
    parts = []
    for rows in chunks(len(logits)):
        part = logits[rows].astype(np.float64) / scale[rows, None]
        chances = expit(part) if multi_label else softmax(part, axis=1)
        squares = (chances - (targets[rows] > 0.5)) ** 2
        parts.append(squares.mean(axis=1) if multi_label else squares.sum(axis=1))
    return np.concatenate(parts)


def chunks(count: int) -> list[slice]:
    return [slice(first, min(first + ROWS, count)) for first in range(0, max(count, 1), ROWS)]


def best_temperature(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], *, multi_label: bool
) -> float:
    """The temperature with the lowest negative log-likelihood (arXiv:1706.04599): there is one,
    because the loss is convex in its inverse."""

    def loss(logarithm: float) -> float:
        scale = float(np.exp(logarithm))
        return float(losses(logits, targets, multi_label=multi_label, temperature=scale).mean())

    edges = (float(np.log(COLDEST)), float(np.log(HOTTEST)))
    found = minimize_scalar(loss, bounds=edges, method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def any_wrong(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], *, multi_label: bool
) -> bool:
    if multi_label:
        return bool(((logits > 0) != (targets > 0.5)).any())
    return bool((logits.argmax(axis=1) != targets.argmax(axis=1)).any())


def temper(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    held_out: tuple[str, Float[np.ndarray, "M K"], Float[np.ndarray, "M K"]] | None = None,
    seed: int = 0,
) -> Tempered | None:
    """The best temperature, and how well calibrated the answers are with it.

    `held_out` is another part, by name, with its logits and targets: it chooses the temperature.
    Without one the images are halved at random and each half is judged by the temperature of the
    other; what is reported is then the temperature of all. None where nothing is wrong among the
    images that choose: the colder the better for them, and nobody would learn how much.
    """
    scale: float | NDArray[np.float64]
    if held_out is not None:
        name, *other = held_out
        if not any_wrong(other[0], other[1], multi_label=multi_label):
            return None
        temperature = best_temperature(other[0], other[1], multi_label=multi_label)
        scale, fitted_on = temperature, f"{name}, {len(other[0]):,} images"
    else:
        first = permutation("halves", len(logits), seed) % 2 == 0
        if not all(
            any_wrong(logits[half], targets[half], multi_label=multi_label)
            for half in (first, ~first)
        ):
            return None
        scale = np.empty(len(logits))
        for judged in (first, ~first):
            scale[judged] = best_temperature(
                logits[~judged], targets[~judged], multi_label=multi_label
            )
        temperature = best_temperature(logits, targets, multi_label=multi_label)
        fitted_on = "halves drawn at random, each judged by the temperature of the other"
    confidence, right = confidences(logits, targets, multi_label=multi_label, temperature=scale)
    return Tempered(
        temperature=temperature,
        fitted_on=fitted_on,
        at_edge=not 2 * COLDEST < temperature < HOTTEST / 2,
        reliability=reliability(confidence.reshape(-1), right.reshape(-1)),
        loss=float(losses(logits, targets, multi_label=multi_label, temperature=scale).mean()),
        brier=float(
            brier_scores(logits, targets, multi_label=multi_label, temperature=scale).mean()
        ),
    )
