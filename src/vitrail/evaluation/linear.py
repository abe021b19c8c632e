"""Linear probes: how well classes can be told apart by a plane through frozen features.

Two ways, each with its one free choice made on training images that were held out, never on test
images. `sweep` is DINOv2's (arXiv:2304.07193): every learning rate with every reading, all heads
trained at once by SGD in one pass over the features. `regress` is logistic regression by L-BFGS on
what the head reads, its penalty chosen on the same images, then fitted to all. Unlike DINOv2's,
features are whitened first, as MAE does it by a batch norm (arXiv:2111.06377, A.1), so that one
table of learning rates serves every family.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.randomness import permutation

# DINOv2's, for 256 images a step
RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)
BATCH = 128
STEPS = 12_500
ROUNDS = 100  # through the images: a small set has fewer steps
MOMENTUM = 0.9
STRENGTHS = tuple(10.0**power for power in range(-6, 6))  # scikit-learn's C: one over the penalty
ITERATIONS = 1000
LIMIT = 2 * 2**30  # bytes that logistic regression may take
HELD_OUT = 0.1
SMALLEST = 1e-5  # is added to each deviation
ROWS = 8192  # images that are scored at once

Pieces = Mapping[str, Float[np.ndarray, "N _"]]
Readings = Mapping[str, tuple[str, ...]]
Watcher = Callable[[int, int], None]  # called with how many of how many steps are done


@dataclass(frozen=True)
class Probed:
    """The head that was chosen: of which reading, with which learning rate (or which C), how good
    on the images held out, and how good on test images. `tried` has all that it was chosen from:
    by reading, the accuracies on the images held out, in the order of `choices`."""

    reading: str
    choice: float
    held_out: float
    accuracy: float
    choices: tuple[float, ...]
    tried: Mapping[str, tuple[float, ...]]
    converged: bool = True

    @property
    def highest(self) -> bool:
        """Whether it is the last of those that were tried, beyond which a better one may lie."""
        return self.choice == max(self.choices)


def hold_out(
    targets: Int[np.ndarray, " N"], *, seed: int = 0, share: float = HELD_OUT
) -> Bool[np.ndarray, " N"]:
    """Which images are held out: a share of each class, at least one where it has two, never
    all."""
    generator = np.random.default_rng(seed)
    held = np.zeros(len(targets), dtype=np.bool_)
    for number in np.unique(targets):
        members = generator.permutation(np.flatnonzero(targets == number))
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held[members[:count]] = True
    if not held.any():
        raise UserError(
            "no class has two training images, so that none can be held out to choose by: "
            "give more, or take --method fewshot --shots 1"
        )
    return held


# Every learning rate and every reading at once


class Heads(nn.Module):
    """A linear head for each learning rate, as one tensor, that starts at zero.

    What is trained is v with w = √lr v. A step of SGD on v with a rate of 1 is the step on w with
    the rate lr, momentum included, so that one optimiser serves all.
    """

    def __init__(self, width: int, classes: int, rates: Sequence[float]) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(width, len(rates), classes))
        self.bias = nn.Parameter(torch.zeros(len(rates), classes))
        self.root: Tensor
        self.register_buffer("root", torch.tensor(rates, dtype=torch.float64).sqrt()[:, None])

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B L K"]:
        plain = (x @ self.weights.flatten(1)).unflatten(1, self.bias.shape)
        return (plain + self.bias) * self.root


class Whitened:
    """Pieces of features with the mean and deviation of the images that are learnt from."""

    def __init__(self, pieces: Pieces, learnt: Int[np.ndarray, " n"]) -> None:
        self.means, self.deviations = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
        for name, piece in pieces.items():
            chosen = piece[learnt]
            deviation = chosen.std(axis=0, dtype=np.float64) + SMALLEST
            self.means[name] = chosen.mean(axis=0, dtype=np.float64).astype(piece.dtype)
            self.deviations[name] = deviation.astype(piece.dtype)

    def rows(self, pieces: Pieces, rows: Int[np.ndarray, " B"] | slice) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy((piece[rows] - self.means[name]) / self.deviations[name])
            for name, piece in pieces.items()
        }


def sweep(
    train: Pieces,
    train_targets: Int[np.ndarray, " N"],
    test: Pieces,
    test_targets: Int[np.ndarray, " M"],
    *,
    readings: Readings,
    classes: int,
    rates: Sequence[float] = RATES,
    steps: int | None = None,
    batch_size: int = BATCH,
    seed: int = 0,
    on_progress: Watcher | None = None,
) -> Probed:
    """Train a head for every rate and reading, choose one by the images held out, test that one.

    A step costs two matrix products of the batch with all heads; a thousand classes are a hundred
    times the work of ten, and with wide features the heads take gigabytes: give fewer `steps`.
    """
    held = hold_out(train_targets, seed=seed)
    learnt = np.flatnonzero(~held)
    white = Whitened(train, learnt)
    heads = train_heads(
        train,
        train_targets,
        learnt,
        white,
        readings=readings,
        classes=classes,
        rates=rates,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        on_progress=on_progress,
    )
    rows = np.flatnonzero(held)
    kept = {name: piece[rows] for name, piece in train.items()}
    right, losses = judge(heads, kept, train_targets[rows], white, readings)
    # as good on so few images are many: of them the one with the least loss
    reading, place = max(
        ((name, place) for name in heads for place in range(len(rates))),
        key=lambda head: (right[head[0]][head[1]], -losses[head[0]][head[1]]),
    )
    tested, _ = judge({reading: heads[reading]}, test, test_targets, white, readings)
    return Probed(
        reading=reading,
        choice=float(rates[place]),
        held_out=float(right[reading][place]),
        accuracy=float(tested[reading][place]),
        choices=tuple(rates),
        tried={name: tuple(values.tolist()) for name, values in right.items()},
    )


def train_heads(
    train: Pieces,
    targets: Int[np.ndarray, " N"],
    learnt: Int[np.ndarray, " n"],
    white: Whitened,
    *,
    readings: Readings,
    classes: int,
    rates: Sequence[float],
    steps: int | None,
    batch_size: int,
    seed: int,
    on_progress: Watcher | None = None,
) -> dict[str, Heads]:
    """All heads, by SGD with momentum under a cosine that ends at zero. Rates are for 256 images a
    step, and shrink with the batch; the order of the images is drawn anew each round."""
    size = min(batch_size, len(learnt))
    round_steps = len(learnt) // size
    total = steps or min(STEPS, ROUNDS * round_steps)
    scaled = [rate * size / 256 for rate in rates]
    widths = {name: piece.shape[1] for name, piece in train.items()}
    kind = torch.from_numpy(train["head"][:0]).dtype
    heads = {
        name: Heads(sum(widths[piece] for piece in pieces), classes, scaled).to(kind)
        for name, pieces in readings.items()
    }
    values = [value for each in heads.values() for value in each.parameters()]
    optimiser = torch.optim.SGD(values, lr=1.0, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    for step in range(total):
        turn, part = divmod(step, round_steps)
        if part == 0:
            order = learnt[permutation("linear probe", len(learnt), seed, turn)]
        rows = order[part * size : (part + 1) * size]
        x, truth = white.rows(train, rows), torch.from_numpy(targets[rows])
        loss = torch.zeros((), dtype=kind)
        for name, each in heads.items():
            logits = each(torch.cat([x[piece] for piece in readings[name]], dim=1))
            every = truth[:, None].expand(-1, len(rates))
            loss = loss + F.cross_entropy(logits.flatten(0, 1), every.flatten(), reduction="sum")
        optimiser.zero_grad()
        (loss / len(rows)).backward()
        optimiser.step()
        schedule.step()
        if on_progress is not None:
            on_progress(step + 1, total)
    return heads


@torch.inference_mode()
def judge(
    heads: Mapping[str, Heads],
    pieces: Pieces,
    targets: Int[np.ndarray, " N"],
    white: Whitened,
    readings: Readings,
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    """Accuracy and mean loss of every head, by reading."""
    right = {name: np.zeros(len(each.bias)) for name, each in heads.items()}
    losses = {name: np.zeros(len(each.bias)) for name, each in heads.items()}
    for first in range(0, len(targets), ROWS):
        here = slice(first, first + ROWS)
        x, truth = white.rows(pieces, here), torch.from_numpy(targets[here])
        for name, each in heads.items():
            logits = each(torch.cat([x[piece] for piece in readings[name]], dim=1))
            logits = logits.double().nan_to_num()
            right[name] += (logits.argmax(dim=2) == truth[:, None]).sum(dim=0).numpy()
            every = truth[:, None].expand(-1, len(each.bias))
            losses[name] += F.cross_entropy(logits.mT, every, reduction="none").sum(dim=0).numpy()
    count = len(targets)
    return (
        {name: values / count for name, values in right.items()},
        {name: values / count for name, values in losses.items()},
    )


# Logistic regression


def needed_bytes(images: int, width: int, classes: int) -> int:
    """What logistic regression takes, roughly: the features twice, and what it says of each image
    with the gradient of that, in float64."""
    return 8 * images * 2 * (width + classes)


def regress(
    train: Float[np.ndarray, "N D"],
    train_targets: Int[np.ndarray, " N"],
    test: Float[np.ndarray, "M D"],
    test_targets: Int[np.ndarray, " M"],
    *,
    strengths: Sequence[float] = STRENGTHS,
    seed: int = 0,
    on_progress: Watcher | None = None,
) -> Probed:
    """Multinomial, by scikit-learn's L-BFGS; C is chosen by the images held out, the least loss
    where several are as good, and the chosen one is fitted to all training images."""
    if len(np.unique(train_targets)) < 2:
        raise UserError("all training images are of one class, and a probe tells classes apart")
    held = hold_out(train_targets, seed=seed)
    x, kept = whiten(train[~held], train[held])
    truth, kept_truth = train_targets[~held], train_targets[held]
    strengths = sorted(strengths)
    found, model = list[tuple[float, float]](), new_regression(strengths[0])
    for number, strength in enumerate(strengths):
        model.set_params(C=strength)  # starts where the one before ended
        fit(model, x, truth)
        chances = model.predict_log_proba(kept)
        places = np.searchsorted(model.classes_, kept_truth)
        guess = model.classes_[chances.argmax(axis=1)]
        loss = -chances[np.arange(len(places)), places].mean()
        found.append((float((guess == kept_truth).mean()), -float(loss)))
        if on_progress is not None:
            on_progress(number + 1, len(strengths) + 1)
    best = max(range(len(found)), key=found.__getitem__)
    everything, unseen = whiten(train, test)
    final = new_regression(strengths[best])
    converged = fit(final, everything, train_targets)
    if on_progress is not None:
        on_progress(len(strengths) + 1, len(strengths) + 1)
    return Probed(
        reading="head",
        choice=strengths[best],
        held_out=found[best][0],
        accuracy=float((final.predict(unseen) == test_targets).mean()),
        choices=tuple(strengths),
        tried={"head": tuple(accuracy for accuracy, _ in found)},
        converged=converged,
    )


def new_regression(strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, max_iter=ITERATIONS, warm_start=True)


def fit(model: LogisticRegression, x: NDArray[np.float64], truth: NDArray[np.int64]) -> bool:
    """Whether it came to its end before the iterations did."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(x, truth)
    return not any(issubclass(one.category, ConvergenceWarning) for one in told)


def whiten(
    learnt: Float[np.ndarray, "N D"], other: Float[np.ndarray, "M D"]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both by the mean and deviation of the first."""
    learnt, other = learnt.astype(np.float64), other.astype(np.float64)
    mean, deviation = learnt.mean(axis=0), learnt.std(axis=0) + SMALLEST
    return (learnt - mean) / deviation, (other - mean) / deviation
