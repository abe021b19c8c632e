"""Linear probes: each head of the sweep is one that SGD trains alone, and test images choose
nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from vitrail import UserError
from vitrail.core.randomness import permutation
from vitrail.evaluation import linear
from vitrail.evaluation.linear import (
    LinearProbe,
    Standardiser,
    SweepOptions,
    fit_logistic_regression,
    hold_out,
    needed_bytes,
    score_heads,
    sweep_heads,
    train_heads,
)

CLASSES = 4


def data(
    images: int, seed: int, width: int = 6, spread: float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, CLASSES, images)
    centres = np.random.default_rng(99).normal(size=(CLASSES, width))
    return centres[targets] * 2 + spread * generator.normal(size=(images, width)), targets


def test_the_constants_are_those_of_dinov2() -> None:
    assert len(linear.LEARNING_RATES) == 13
    assert (linear.LEARNING_RATES[0], linear.LEARNING_RATES[-1]) == (1e-5, 0.1)
    assert (linear.BATCH_SIZE, linear.MAX_STEPS, linear.MOMENTUM) == (128, 10 * 1250, 0.9)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=80), st.integers(0, 5))
def test_every_class_is_on_both_sides_where_it_can_be(numbers: list[int], seed: int) -> None:
    targets = np.array(numbers)
    counts = np.bincount(targets)
    if counts.max() < 2:
        with pytest.raises(UserError, match="a class must have two"):
            hold_out(targets, seed=seed)
        return
    held = np.bincount(targets[hold_out(targets, seed=seed)], minlength=len(counts))
    assert (held[counts >= 2] >= 1).all()
    assert (held[counts > 0] < counts[counts > 0]).all()
    assert (held[counts < 2] == 0).all()
    assert (held <= np.maximum(1, np.ceil(counts * 0.1))).all()


def test_each_head_is_what_sgd_makes_of_it_alone() -> None:
    features, targets = data(90, 0)
    vectors = {"head": features, "mean.0": features[:, :3] * 5 + 1}
    combinations = {"head": ("head",), "both": ("mean.0", "head")}
    learnt, rates, steps = np.arange(5, 85), (1e-3, 0.02, 0.5), 23
    standardise = Standardiser(vectors, learnt)
    heads = train_heads(
        vectors,
        targets,
        learnt,
        standardise,
        combinations=combinations,
        classes=CLASSES,
        options=SweepOptions(rates, steps, batch_size=32, seed=3),
    )
    for name, parts in combinations.items():
        x = np.hstack([vectors[part] for part in parts])
        x = (x - x[learnt].mean(axis=0)) / (x[learnt].std(axis=0) + 1e-5)
        for place, rate in enumerate(rates):
            alone = torch.nn.Linear(x.shape[1], CLASSES).double()
            torch.nn.init.zeros_(alone.weight)
            torch.nn.init.zeros_(alone.bias)
            optimiser = torch.optim.SGD(alone.parameters(), lr=rate * 32 / 256, momentum=0.9)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
            for step in range(steps):
                turn, part = divmod(step, 2)  # 80 images are two whole batches
                order = learnt[permutation("linear probe", 80, 3, turn)]
                rows = order[part * 32 : (part + 1) * 32]
                logits = alone(torch.from_numpy(x[rows]))
                loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets[rows]))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            together = heads[name](torch.from_numpy(x))[:, place]
            torch.testing.assert_close(together, alone(torch.from_numpy(x)), rtol=1e-10, atol=1e-10)


def test_heads_are_scored_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = data(50, 1)
    vectors, combinations = {"head": features}, {"head": ("head",)}
    standardise = Standardiser(vectors, np.arange(50))
    heads = train_heads(
        vectors,
        targets,
        np.arange(50),
        standardise,
        combinations=combinations,
        classes=CLASSES,
        options=SweepOptions((0.1, 1.0), 10, batch_size=20),
    )
    right, losses = score_heads(heads, vectors, targets, standardise, combinations)
    x = standardise(vectors, slice(None))["head"]
    logits = heads["head"](x).detach()
    for place in range(2):
        guess = logits[:, place].argmax(dim=1).numpy()
        assert right["head"][place] == (guess == targets).mean()
        loss = torch.nn.functional.cross_entropy(logits[:, place], torch.from_numpy(targets))
        assert losses["head"][place] == pytest.approx(loss.item())
    monkeypatch.setattr(linear, "ROWS", 7)
    again, _ = score_heads(heads, vectors, targets, standardise, combinations)
    assert again["head"].tolist() == right["head"].tolist()


def test_the_sweep_finds_the_features_that_know_and_a_rate_that_learns() -> None:
    (knows, targets), (test, truth) = data(400, 2, spread=0.5), data(200, 3, spread=0.5)
    generator = np.random.default_rng(0)
    train_vectors = {"head": generator.normal(size=(400, 6)), "mean.0": knows}
    test_vectors = {"head": generator.normal(size=(200, 6)), "mean.0": test}
    combinations = {"head": ("head",), "mean_1": ("mean.0",)}
    seen = list[tuple[int, int]]()
    found = sweep_heads(
        train_vectors,
        targets,
        test_vectors,
        truth,
        combinations=combinations,
        classes=CLASSES,
        options=SweepOptions(steps=60),
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert found.features == "mean_1"
    assert found.accuracy > 0.9
    assert max(found.tried["head"]) < 0.6
    assert found.held_out == max(found.tried["mean_1"])
    assert found.tried["mean_1"][found.choices.index(found.choice)] == found.held_out
    assert seen[-1] == (60, 60)


def test_test_images_have_no_say_in_what_is_chosen() -> None:
    (train, targets), (test, truth) = data(150, 4), data(100, 5)
    combinations = {"head": ("head",)}

    def both(labels: NDArray[np.int64]) -> tuple[LinearProbe, LinearProbe]:
        swept = sweep_heads(
            {"head": train},
            targets,
            {"head": test},
            labels,
            combinations=combinations,
            classes=CLASSES,
            options=SweepOptions(steps=30),
        )
        return swept, fit_logistic_regression(
            train, targets, test, labels, c_values=(1e-3, 0.1, 10.0)
        )

    for right, wrong in zip(both(truth), both((truth + 1) % CLASSES), strict=True):
        assert (wrong.choice, wrong.tried) == (right.choice, right.tried)
        assert wrong.accuracy < 0.3 < right.accuracy


def test_the_same_seed_gives_the_same_probe() -> None:
    (train, targets), (test, truth) = data(100, 6), data(50, 7)

    def again(seed: int) -> LinearProbe:
        return sweep_heads(
            {"head": train},
            targets,
            {"head": test},
            truth,
            combinations={"head": ("head",)},
            classes=CLASSES,
            options=SweepOptions(steps=20, seed=seed),
        )

    assert again(0) == again(0)
    assert again(0).tried != again(1).tried


def test_logistic_regression_is_scikit_learns() -> None:
    (train, targets), (test, truth) = data(300, 8), data(120, 9)
    c_values = (1e-4, 1e-2, 1.0, 100.0)
    found = fit_logistic_regression(train, targets, test, truth, c_values=c_values, seed=2)
    held = hold_out(targets, seed=2)
    scaler = StandardScaler().fit(train[~held])
    accuracies = []
    for c in c_values:
        peer = LogisticRegression(C=c, max_iter=5000)
        peer.fit(scaler.transform(train[~held]), targets[~held])
        accuracies.append(peer.score(scaler.transform(train[held]), targets[held]))
    assert found.tried["head"] == pytest.approx(accuracies)
    assert found.held_out == max(accuracies)
    everything = StandardScaler().fit(train)
    last = LogisticRegression(C=found.choice, max_iter=5000)
    last.fit(everything.transform(train), targets)
    assert found.accuracy == pytest.approx(last.score(everything.transform(test), truth))
    assert found.converged


def test_regression_that_does_not_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (train, targets), (test, truth) = data(100, 10), data(50, 11)
    monkeypatch.setattr(linear, "MAX_ITERATIONS", 1)
    assert not fit_logistic_regression(train, targets, test, truth, c_values=(1.0,)).converged


def test_one_class_cannot_be_told_apart() -> None:
    features = np.random.default_rng(0).normal(size=(20, 3))
    targets = np.zeros(20, dtype=np.int64)
    with pytest.raises(UserError, match="at least two classes"):
        fit_logistic_regression(features, targets, features, targets)


def test_the_memory_that_regression_takes_is_guessed() -> None:
    assert needed_bytes(1000, 768, 10) == 2 * 8 * 1000 * 778
    assert needed_bytes(65_000, 768, 1000) < linear.MAX_BYTES < needed_bytes(1_281_167, 768, 1000)
