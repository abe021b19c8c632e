"""Linear probes: how well a linear classifier on frozen features tells classes apart.

Two methods, each with its one free choice made on training images that were held out, never on test
images. `sweep_heads` is DINOv2's (arXiv:2304.07193): every learning rate with every combination of
features, all heads trained at once by SGD in one pass over the features. `fit_logistic_regression`
is L-BFGS on the features that the head reads, its penalty chosen on the same images, then fitted to
all. Unlike DINOv2's, features are standardised first, as MAE does it by a batch norm
(arXiv:2111.06377, A.1), so that one table of learning rates serves every family.
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
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)
BATCH_SIZE = 128
MAX_STEPS, MAX_EPOCHS = 12_500, 100  # whichever is less
MOMENTUM = 0.9
C_VALUES = tuple(10.0**power for power in range(-6, 6))  # one over the penalty
MAX_ITERATIONS = 1000
MAX_BYTES = 2 * 2**30  # that logistic regression may take
HELD_OUT = 0.1
EPSILON = 1e-5  # is added to each deviation
ROWS = 8192  # images that are scored at once

Vectors = Mapping[str, Float[np.ndarray, "N _"]]
Combinations = Mapping[str, tuple[str, ...]]  # names of vectors side by side, under one name
OnProgress = Callable[[int, int], None]  # how many steps are done, and of how many


@dataclass(frozen=True)
class LinearProbe:
    """The head that was chosen: which combination of `features` it reads, its learning rate (or C)
    as `choice`, and its accuracy on the images held out and on test images. `tried`: by
    combination, the accuracy on the images held out of each of the `choices`."""

    features: str
    choice: float
    held_out: float
    accuracy: float
    choices: tuple[float, ...]
    tried: Mapping[str, tuple[float, ...]]
    converged: bool = True

    @property
    def at_limit(self) -> bool:
        """Whether it is the highest that was tried, beyond which a better one may lie."""
        return self.choice == max(self.choices)


@dataclass(frozen=True)
class SweepOptions:
    """How heads are trained; `steps` is by default 12,500 or 100 epochs, whichever is less."""

    learning_rates: Sequence[float] = LEARNING_RATES
    steps: int | None = None
    batch_size: int = BATCH_SIZE
    seed: int = 0


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
            "a class must have two training images, one of them to hold out, got one of each: "
            'give more, or use method="fewshot" with shots=1'
        )
    return held


# Every learning rate and every combination of features at once


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
        logits = (x @ self.weights.flatten(1)).unflatten(1, self.bias.shape)
        return (logits + self.bias) * self.root


class Standardiser:
    """Subtracts the mean and divides by the deviation of the images that are learnt from."""

    def __init__(self, vectors: Vectors, learnt: Int[np.ndarray, " n"]) -> None:
        self.means, self.deviations = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
        for name, values in vectors.items():
            chosen = values[learnt]
            deviation = chosen.std(axis=0, dtype=np.float64) + EPSILON
            self.means[name] = chosen.mean(axis=0, dtype=np.float64).astype(values.dtype)
            self.deviations[name] = deviation.astype(values.dtype)

    def __call__(self, vectors: Vectors, rows: Int[np.ndarray, " B"] | slice) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy((values[rows] - self.means[name]) / self.deviations[name])
            for name, values in vectors.items()
        }


def sweep_heads(
    train: Vectors,
    train_targets: Int[np.ndarray, " N"],
    test: Vectors,
    test_targets: Int[np.ndarray, " M"],
    *,
    combinations: Combinations,
    classes: int,
    options: SweepOptions | None = None,
    on_progress: OnProgress | None = None,
) -> LinearProbe:
    """Train a head for every learning rate and combination, choose one by the images held out, test
    that one.

    A step costs two matrix products of the batch with all heads; a thousand classes are a hundred
    times the work of ten, and with wide features the heads take gigabytes: give fewer `steps`.
    """
    options = options or SweepOptions()
    held = hold_out(train_targets, seed=options.seed)
    learnt = np.flatnonzero(~held)
    standardise = Standardiser(train, learnt)
    heads = train_heads(
        train,
        train_targets,
        learnt,
        standardise,
        combinations=combinations,
        classes=classes,
        options=options,
        on_progress=on_progress,
    )
    rows = np.flatnonzero(held)
    held_out = {name: values[rows] for name, values in train.items()}
    right, losses = score_heads(heads, held_out, train_targets[rows], standardise, combinations)
    # as good on so few images are many: of them the one with the least loss
    rates = options.learning_rates
    best, place = max(
        ((name, place) for name in heads for place in range(len(rates))),
        key=lambda head: (right[head[0]][head[1]], -losses[head[0]][head[1]]),
    )
    tested, _ = score_heads({best: heads[best]}, test, test_targets, standardise, combinations)
    return LinearProbe(
        features=best,
        choice=float(rates[place]),
        held_out=float(right[best][place]),
        accuracy=float(tested[best][place]),
        choices=tuple(rates),
        tried={name: tuple(values.tolist()) for name, values in right.items()},
    )


def train_heads(
    train: Vectors,
    targets: Int[np.ndarray, " N"],
    learnt: Int[np.ndarray, " n"],
    standardise: Standardiser,
    *,
    combinations: Combinations,
    classes: int,
    options: SweepOptions,
    on_progress: OnProgress | None = None,
) -> dict[str, Heads]:
    """All heads, by SGD with momentum under a cosine that ends at zero. Learning rates are for 256
    images a step, and shrink with the batch; the order of the images is drawn anew each epoch."""
    size = min(options.batch_size, len(learnt))
    epoch_steps = len(learnt) // size
    total = options.steps or min(MAX_STEPS, MAX_EPOCHS * epoch_steps)
    scaled = [rate * size / 256 for rate in options.learning_rates]
    widths = {name: values.shape[1] for name, values in train.items()}
    dtype = torch.from_numpy(train["head"][:0]).dtype
    heads = {
        name: Heads(sum(widths[part] for part in parts), classes, scaled).to(dtype)
        for name, parts in combinations.items()
    }
    weights = [value for each in heads.values() for value in each.parameters()]
    optimiser = torch.optim.SGD(weights, lr=1.0, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    for step in range(total):
        epoch, batch = divmod(step, epoch_steps)
        if batch == 0:
            order = learnt[permutation("linear probe", len(learnt), options.seed, epoch)]
        rows = order[batch * size : (batch + 1) * size]
        x, truth = standardise(train, rows), torch.from_numpy(targets[rows])
        loss = torch.zeros((), dtype=dtype)
        for name, each in heads.items():
            logits = each(torch.cat([x[part] for part in combinations[name]], dim=1))
            every = truth[:, None].expand(-1, len(scaled))
            loss = loss + F.cross_entropy(logits.flatten(0, 1), every.flatten(), reduction="sum")
        optimiser.zero_grad()
        (loss / len(rows)).backward()
        optimiser.step()
        schedule.step()
        if on_progress is not None:
            on_progress(step + 1, total)
    return heads


@torch.inference_mode()
def score_heads(
    heads: Mapping[str, Heads],
    vectors: Vectors,
    targets: Int[np.ndarray, " N"],
    standardise: Standardiser,
    combinations: Combinations,
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    """Accuracy and mean loss of every head, by combination."""
    right = {name: np.zeros(len(each.bias)) for name, each in heads.items()}
    losses = {name: np.zeros(len(each.bias)) for name, each in heads.items()}
    for first in range(0, len(targets), ROWS):
        here = slice(first, first + ROWS)
        x, truth = standardise(vectors, here), torch.from_numpy(targets[here])
        for name, each in heads.items():
            logits = each(torch.cat([x[part] for part in combinations[name]], dim=1))
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
    """The memory of logistic regression, roughly: the features twice, and the logits of each image
    with their gradient, in float64."""
    return 8 * images * 2 * (width + classes)


def fit_logistic_regression(
    train: Float[np.ndarray, "N D"],
    train_targets: Int[np.ndarray, " N"],
    test: Float[np.ndarray, "M D"],
    test_targets: Int[np.ndarray, " M"],
    *,
    c_values: Sequence[float] = C_VALUES,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> LinearProbe:
    """Multinomial, by scikit-learn's L-BFGS; C is chosen by the images held out, the least loss
    where several are as good, and the chosen one is fitted to all training images."""
    if len(np.unique(train_targets)) < 2:
        raise UserError("train must have at least two classes for a probe, got one")
    held = hold_out(train_targets, seed=seed)
    x, kept = standardise_pair(train[~held], train[held])
    truth, kept_truth = train_targets[~held], train_targets[held]
    c_values = sorted(c_values)
    found, model = list[tuple[float, float]](), new_regression(c_values[0])
    for number, c in enumerate(c_values):
        model.set_params(C=c)  # starts where the one before ended
        fit_regression(model, x, truth)
        log_probabilities = model.predict_log_proba(kept)
        places = np.searchsorted(model.classes_, kept_truth)
        predicted = model.classes_[log_probabilities.argmax(axis=1)]
        loss = -log_probabilities[np.arange(len(places)), places].mean()
        found.append((float((predicted == kept_truth).mean()), -float(loss)))
        if on_progress is not None:
            on_progress(number + 1, len(c_values) + 1)
    best = max(range(len(found)), key=found.__getitem__)
    everything, unseen = standardise_pair(train, test)
    final = new_regression(c_values[best])
    converged = fit_regression(final, everything, train_targets)
    if on_progress is not None:
        on_progress(len(c_values) + 1, len(c_values) + 1)
    return LinearProbe(
        features="head",
        choice=c_values[best],
        held_out=found[best][0],
        accuracy=float((final.predict(unseen) == test_targets).mean()),
        choices=tuple(c_values),
        tried={"head": tuple(accuracy for accuracy, _ in found)},
        converged=converged,
    )


def new_regression(c: float) -> LogisticRegression:
    return LogisticRegression(C=c, max_iter=MAX_ITERATIONS, warm_start=True)


def fit_regression(
    model: LogisticRegression, x: NDArray[np.float64], truth: NDArray[np.int64]
) -> bool:
    """Whether it converged."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(x, truth)
    return not any(issubclass(one.category, ConvergenceWarning) for one in caught)


def standardise_pair(
    learnt: Float[np.ndarray, "N D"], other: Float[np.ndarray, "M D"]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both by the mean and deviation of the first, in float64."""
    learnt, other = learnt.astype(np.float64), other.astype(np.float64)
    mean, deviation = learnt.mean(axis=0), learnt.std(axis=0) + EPSILON
    return (learnt - mean) / deviation, (other - mean) / deviation
