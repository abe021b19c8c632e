"""Paired tests: against scipy and statsmodels' definitions, and by simulation."""

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from vitrail.evaluation.intervals import wilson_interval
from vitrail.evaluation.paired import (
    holm,
    mcnemar_test,
    mean_accuracy,
    paired_difference,
)


def test_one_seed_is_mcnemar_and_wilson() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.random((1, 200)) < 0.8, generator.random((1, 200)) < 0.7
    found = paired_difference(first, second)
    only_first = int((first & ~second).sum())
    apart = int((first != second).sum())
    assert found.p_value == stats.binomtest(only_first, apart).pvalue
    assert found.mcnemar == (found.p_value,)
    assert found.difference == pytest.approx(first.mean() - second.mean(), abs=1e-12)
    ends = stats.binomtest(int(first.sum()), 200).proportion_ci(0.95, method="wilson")
    assert mean_accuracy(first)[1] == (ends.low, ends.high)


def test_seeds_that_agree_on_every_image_leave_the_images_variance() -> None:
    """Then interval and p-value are those of Student's test over images alone."""
    generator = np.random.default_rng(1)
    first, second = generator.random(300) < 0.7, generator.random(300) < 0.6
    found = paired_difference(np.stack([first] * 3), np.stack([second] * 3))
    alone = stats.ttest_rel(first.astype(float), second.astype(float))
    assert found.p_value == pytest.approx(alone.pvalue, rel=1e-9)
    assert found.interval == pytest.approx(tuple(alone.confidence_interval(0.95)), abs=1e-12)


def test_images_that_agree_leave_the_variance_of_the_seeds() -> None:
    first = np.repeat(np.array([[True], [True], [True], [False]]), 50, axis=1)
    second = np.zeros_like(first)
    found = paired_difference(first, second)
    alone = stats.ttest_1samp([1, 1, 1, 0], 0)
    assert found.p_value == pytest.approx(alone.pvalue, rel=1e-9)
    low = alone.confidence_interval(0.95).low
    assert found.interval == pytest.approx((low, 1.0), abs=1e-12)
    assert mean_accuracy(first)[1] == (0.0, 1.0)


def test_the_same_predictions_do_not_differ() -> None:
    right = np.random.default_rng(2).random((3, 100)) < 0.5
    found = paired_difference(right, right)
    assert (found.difference, found.p_value) == (0.0, 1.0)
    assert found.interval == pytest.approx((-0.037, 0.037), abs=1e-3)  # 0 of 100 by Wilson
    assert mcnemar_test(right[0], right[0]) == 1.0


@pytest.mark.slow
def test_intervals_cover_and_tests_hold_their_level() -> None:
    """Seeds and images are drawn anew each time: 95 % intervals must hold the mean in at least
    93 of 100 cases, and equal models must seldom be called different."""
    generator = np.random.default_rng(3)
    covered, called, times = 0, 0, 400
    for _ in range(times):
        ease = generator.normal(0, 1, 200)

        skills = generator.normal(0.5, 0.3, (2, 3, 1))
        first, second = (generator.normal(0, 1, (3, 200)) < ease + skill for skill in skills)
        low, high = mean_accuracy(first)[1]
        truth = stats.norm.cdf(0.5 / np.sqrt(1 + 1 + 0.3**2))
        covered += low <= truth <= high
        called += paired_difference(first, second).p_value < 0.05
    assert covered / times > 0.93
    assert called / times < 0.06


def test_holm_is_what_its_paper_says() -> None:
    assert holm([]) == []
    assert holm([0.02]) == [0.02]
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_no_variance_is_no_certainty() -> None:
    """Four images that all models are right on, or wrong on in turn, prove little."""
    sure = np.ones((2, 4), dtype=np.bool_)
    assert mean_accuracy(sure) == (1.0, wilson_interval(4, 4))
    turns = np.array([[True, True, False, False], [False, False, True, True]])
    assert mean_accuracy(turns) == (0.5, wilson_interval(2, 4))
    found = paired_difference(turns, sure)
    low, high = found.interval
    assert found.difference == -0.5
    assert found.p_value == max(found.mcnemar) == 0.5
    assert -0.9 < low < -0.5 < 0 < high < 0.2
    same = paired_difference(sure, sure)
    assert (same.difference, same.p_value) == (0.0, 1.0)
    assert same.interval == pytest.approx((-0.49, 0.49), abs=0.01)
    many = np.ones((3, 10_000), dtype=np.bool_)
    assert paired_difference(many, many).interval[1] < 4e-4
    assert paired_difference(many, ~many).p_value < 1e-9
