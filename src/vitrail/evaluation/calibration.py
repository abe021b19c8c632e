"""Calibration: of the predictions with 80 % confidence, are 80 % right?

One label an image: the confidence is the highest probability, and the prediction is right or wrong.
Several labels: each label of each image is a prediction, its confidence the probability of the
label.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
from scipy.special import expit, log_expit, logsumexp, softmax  # type: ignore[import-untyped]

from vitrail.core.randomness import permutation

BINS = 15
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.02, 50.0  # temperatures that are tried
HALVES = "two random halves"  # each is measured with the temperature of the other
ROWS = 4096  # of logits at once, so that a thousand classes take little memory

Temperature: TypeAlias = "float | NDArray[np.float64]"  # one, or one for each image


@dataclass(frozen=True)
class Reliability:
    """Bins of equal width from 0 to 1: how many predictions fall into each, their mean confidence
    and the share of them that is right, NaN where there is none."""

    counts: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]

    @property
    def ece(self) -> float:
        """The expected calibration error: the mean distance between confidence and accuracy."""
        gaps = np.nan_to_num(abs(self.accuracy - self.confidence))
        return float((gaps * self.counts).sum() / max(self.counts.sum(), 1))


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling:
    """The effect of dividing all logits by one temperature. `fitted_on`: which images chose it,
    never those that it is measured on. `at_limit`: it ends at a limit of what was tried."""

    temperature: float
    fitted_on: str
    at_limit: bool
    reliability: Reliability
    nll: float
    brier: float


def bin_indices(confidence: Float[np.ndarray, "..."], bins: int = BINS) -> Int[np.ndarray, "..."]:
    """A bin holds its lower edge, the last one 1 too.

    >>> bin_indices(np.array([0, 0.2, 0.999, 1]), 5).tolist()
    [0, 1, 4, 4]
    """
    edges = np.linspace(0, 1, bins + 1)
    return (np.searchsorted(edges, confidence, side="right") - 1).clip(0, bins - 1)


def reliability(
    confidence: Float[np.ndarray, " N"], right: Bool[np.ndarray, " N"], bins: int = BINS
) -> Reliability:
    """
    >>> reliability(np.array([0.8, 0.8]), np.array([True, False])).ece.__round__(3)
    0.3
    """
    places = bin_indices(confidence, bins)
    counts = np.bincount(places, minlength=bins)
    with np.errstate(invalid="ignore"):
        return Reliability(
            counts,
            np.bincount(places, confidence, minlength=bins) / counts,
            np.bincount(places, right.astype(np.float64), minlength=bins) / counts,
        )


def confidences(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    temperature: Temperature = 1.0,
) -> tuple[Float[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
    """Confidence, and whether it is right: (N,), or (N, K) where an image has several labels."""
    parts = [
        expit(part) if multi_label else softmax(part, axis=1).max(axis=1)
        for part, _ in scaled_chunks(logits, targets, temperature)
    ]
    right = targets > 0.5 if multi_label else logits.argmax(axis=1) == targets.argmax(axis=1)
    return np.concatenate(parts), right


def losses(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    temperature: Temperature = 1.0,
) -> Float[np.ndarray, " N"]:
    """The negative log-likelihood of each image; of several labels, its mean over them."""
    parts = []
    for part, truth in scaled_chunks(logits, targets, temperature):
        if multi_label:
            parts.append(-log_expit(np.where(truth > 0.5, part, -part)).mean(axis=1))
        else:
            chosen = np.take_along_axis(part, truth.argmax(axis=1)[:, None], axis=1)
            parts.append(logsumexp(part, axis=1) - chosen[:, 0])
    return np.concatenate(parts)


def brier_scores(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    temperature: Temperature = 1.0,
) -> Float[np.ndarray, " N"]:
    """The squared distance between probabilities and truth: summed over the classes, from 0 to 2,
    or the mean over labels of which an image may have several, from 0 to 1."""
    parts = []
    for part, truth in scaled_chunks(logits, targets, temperature):
        probabilities = expit(part) if multi_label else softmax(part, axis=1)
        squares = (probabilities - (truth > 0.5)) ** 2
        parts.append(squares.mean(axis=1) if multi_label else squares.sum(axis=1))
    return np.concatenate(parts)


def scaled_chunks(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], temperature: Temperature
) -> Iterator[tuple[Float[np.ndarray, "n K"], Float[np.ndarray, "n K"]]]:
    """Some rows of logits / temperature in float64 at a time, with their targets."""
    scale = np.broadcast_to(np.asarray(temperature, dtype=np.float64), (len(logits),))
    for first in range(0, max(len(logits), 1), ROWS):
        rows = slice(first, min(first + ROWS, len(logits)))
        yield logits[rows].astype(np.float64) / scale[rows, None], targets[rows]


def fit_temperature(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], *, multi_label: bool
) -> float:
    """The temperature with the lowest negative log-likelihood (arXiv:1706.04599): there is one,
    because the loss is convex in its inverse."""

    def loss(logarithm: float) -> float:
        scale = float(np.exp(logarithm))
        return float(losses(logits, targets, multi_label=multi_label, temperature=scale).mean())

    limits = (float(np.log(MIN_TEMPERATURE)), float(np.log(MAX_TEMPERATURE)))
    found = minimize_scalar(loss, bounds=limits, method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def has_errors(
    logits: Float[np.ndarray, "N K"], targets: Float[np.ndarray, "N K"], *, multi_label: bool
) -> bool:
    if multi_label:
        return bool(((logits > 0) != (targets > 0.5)).any())
    return bool((logits.argmax(axis=1) != targets.argmax(axis=1)).any())


def scale_temperature(
    logits: Float[np.ndarray, "N K"],
    targets: Float[np.ndarray, "N K"],
    *,
    multi_label: bool,
    held_out: tuple[str, Float[np.ndarray, "M K"], Float[np.ndarray, "M K"]] | None = None,
    seed: int = 0,
) -> TemperatureScaling | None:
    """Fit a temperature, and measure calibration with it.

    `held_out` is another split, by name, with its logits and targets: it chooses the temperature.
    Without one the images are halved at random and each half is measured with the temperature of
    the other; what is reported is then the temperature of all. None where the images that choose
    have no error: the lower the better for them, and there is no optimum.
    """
    scale: Temperature
    if held_out is not None:
        name, *other = held_out
        if not has_errors(other[0], other[1], multi_label=multi_label):
            return None
        temperature = fit_temperature(other[0], other[1], multi_label=multi_label)
        scale, fitted_on = temperature, f"{name}, {len(other[0]):,} images"
    else:
        first = permutation("halves", len(logits), seed) % 2 == 0
        halves = (first, ~first)
        if not all(has_errors(logits[h], targets[h], multi_label=multi_label) for h in halves):
            return None
        scale = np.empty(len(logits))
        for half in halves:
            scale[half] = fit_temperature(logits[~half], targets[~half], multi_label=multi_label)
        temperature = fit_temperature(logits, targets, multi_label=multi_label)
        fitted_on = HALVES
    confidence, right = confidences(logits, targets, multi_label=multi_label, temperature=scale)
    return TemperatureScaling(
        temperature=temperature,
        fitted_on=fitted_on,
        at_limit=not 2 * MIN_TEMPERATURE < temperature < MAX_TEMPERATURE / 2,
        reliability=reliability(confidence.reshape(-1), right.reshape(-1)),
        nll=float(losses(logits, targets, multi_label=multi_label, temperature=scale).mean()),
        brier=float(
            brier_scores(logits, targets, multi_label=multi_label, temperature=scale).mean()
        ),
    )
