"""A score that means nothing is called so, and one that means something is not."""

from typing import Any

import numpy as np
import pytest

from tests.tasks.drawn import random_outputs
from vitrail.core.outputs import Outputs
from vitrail.evaluation.warnings import find_warnings, score_split


def outputs(truth: Any, guess: Any, classes: int) -> Outputs:
    labels = tuple(f"class {number}" for number in range(classes))
    truth = np.asarray(truth)
    return Outputs(
        labels=labels,
        logits=np.eye(classes, dtype=np.float32)[np.asarray(guess)],
        targets=np.eye(classes, dtype=np.float32)[truth],
        indices=np.arange(len(truth)),
        split="val",
    )


def test_chance_is_the_most_frequent_class() -> None:
    draw = np.random.default_rng(0)
    truth = draw.choice(4, 400, p=[0.7, 0.1, 0.1, 0.1])
    lazy = np.where(draw.random(400) < 0.9, 0, truth)  # 70 % right, and nothing learnt
    (sentence,) = [one for one in find_warnings(outputs(truth, lazy, 4)) if "chance" in one]
    assert "always predicting 'class 0' gives" in sentence
    skilled = np.where(draw.random(400) < 0.85, truth, 0)
    assert find_warnings(outputs(truth, skilled, 4)) == []


def test_random_answers_are_called_chance_and_rarely_anything_else() -> None:
    draw = np.random.default_rng(1)
    called = 0
    for _ in range(200):
        truth, guess = draw.integers(0, 5, 100), draw.integers(0, 5, 100)
        called += any(
            "no better than chance" in one for one in find_warnings(outputs(truth, guess, 5))
        )
    assert called >= 180  # all but about 5 %, at 5 % of luck


def test_few_classes_few_images_and_one_class() -> None:
    truth = np.arange(100) % 5
    two = np.where(truth < 2, truth, 0)
    assert find_warnings(outputs(truth, two, 5)) == [
        "only 2 of 5 classes are ever predicted: 'class 0', 'class 1'"
    ]
    (few,) = find_warnings(outputs(truth[:20], truth[:20], 5))
    assert few.startswith("the model was evaluated on only 20 validation images, so")
    always = find_warnings(outputs(truth[:60] % 2, np.zeros(60, int), 2))
    assert "only 1 of 2 classes is ever predicted: 'class 0'" in always
    assert any("start from a checkpoint" in note for note in always)
    begun = find_warnings(outputs(truth[:60] % 2, np.zeros(60, int), 2), pretrained=True)
    assert len(begun) == len(always)
    assert not any("start from a checkpoint" in note for note in begun)
    (one, few) = find_warnings(outputs([0, 0, 0], [0, 0, 0], 1))
    assert "one class, 'class 0'" in one
    assert find_warnings(outputs(truth, truth, 5)) == []


def test_several_labels_are_compared_with_their_frequency() -> None:
    report = random_outputs(several=True, skill=2.0)
    assert not any("chance" in one for one in find_warnings(report))
    assert any("chance" in one for one in find_warnings(random_outputs(several=True, skill=0.0)))


def test_the_interval_of_a_score() -> None:
    truth = np.arange(100) % 2
    guess = np.where(np.arange(100) < 54, truth, 1 - truth)
    score = score_split(outputs(truth, guess, 2))
    assert score is not None
    assert (score.name, score.value, score.images) == ("accuracy", 0.54, 100)
    # Wilson's interval for 54 of 100, by its formula
    z = 1.959963984540054
    middle = (0.54 + z**2 / 200) / (1 + z**2 / 100)
    half = z * np.sqrt(0.54 * 0.46 / 100 + z**2 / 40_000) / (1 + z**2 / 100)
    assert score.interval == pytest.approx((middle - half, middle + half))
