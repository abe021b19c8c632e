"""Verdicts on made numbers: shown, not shown at this scale, contradicted."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.evaluation.findings import (
    CONTRADICTED,
    NOT_SHOWN,
    SHOWN,
    Finding,
    Verdict,
    crossed_interval,
    power_law,
    rank_correlation,
    verdict_of,
)
from vitrail.evaluation.paired import paired_difference


def found(low: float, high: float, *, above: float = -math.inf, below: float = math.inf) -> Finding:
    middle = (low + high) / 2
    return Finding(sentence="", estimate=middle, interval=(low, high), above=above, below=below)


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (found(0.1, 0.3, above=0.0), SHOWN),
        (found(-0.1, 0.3, above=0.0), NOT_SHOWN),
        (found(-0.3, -0.1, above=0.0), CONTRADICTED),
        (found(-0.3, -0.1, below=0.0), SHOWN),
        (found(0.1, 0.3, below=0.0), CONTRADICTED),
        (found(-0.01, 0.01, above=-0.02, below=0.02), SHOWN),  # equally good
        (found(-0.01, 0.03, above=-0.02, below=0.02), NOT_SHOWN),
        (found(0.03, 0.05, above=-0.02, below=0.02), CONTRADICTED),
        (found(0.0, 0.3, above=0.0), NOT_SHOWN),  # a border is not inside
        (found(math.nan, math.nan, above=0.0), NOT_SHOWN),
        (found(-math.inf, math.inf, above=0.0), NOT_SHOWN),
    ],
)
def test_the_interval_decides(finding: Finding, verdict: Verdict) -> None:
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([SHOWN, SHOWN], SHOWN),
        ([SHOWN, NOT_SHOWN], NOT_SHOWN),
        ([SHOWN, NOT_SHOWN, CONTRADICTED], CONTRADICTED),
        ([], NOT_SHOWN),
    ],
)
def test_a_claim_is_all_of_its_findings(parts: list[Verdict], verdict: Verdict) -> None:
    made = {
        SHOWN: found(1, 2, above=0.0),
        NOT_SHOWN: found(-1, 2, above=0.0),
        CONTRADICTED: found(-2, -1, above=0.0),
    }
    assert verdict_of([made[one] for one in parts]) == verdict


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(-1, 1))
def test_what_is_shown_one_way_is_contradicted_the_other(
    middle: float, width: float, border: float
) -> None:
    low, high = middle - width, middle + width
    other = {SHOWN: CONTRADICTED, CONTRADICTED: SHOWN, NOT_SHOWN: NOT_SHOWN}
    assert found(low, high, below=border).verdict == other[found(low, high, above=border).verdict]


def test_crossed_interval_is_that_of_paired_tests() -> None:
    generator = np.random.default_rng(0)
    first, second = (generator.random((3, 200)) < rate for rate in (0.8, 0.6))
    paired = paired_difference(first, second)
    mean, interval = crossed_interval(first.astype(float) - second)
    assert mean == paired.difference
    assert interval == pytest.approx(paired.interval)


def test_ranks_that_agree_and_that_do_not() -> None:
    numbers = [float(one) for one in range(8)]
    agree, (low, _) = rank_correlation(numbers, [one**3 for one in numbers])
    assert agree == 1
    assert low > 0.9
    against, (_, high) = rank_correlation(numbers, numbers[::-1])
    assert against == -1
    assert high < -0.9
    none, (low, high) = rank_correlation(numbers, [3.0, 5.0, 2.0, 4.0, 3.5, 4.5, 2.5, 5.5])
    assert low < 0 < high
    assert low < none < high
    assert math.isnan(rank_correlation(numbers, [1.0] * 8)[0])


def test_exponents_with_noise_have_an_interval() -> None:
    generator = np.random.default_rng(1)
    x = np.repeat([1.0, 2.0, 4.0], 5)
    y = x**1.5 * np.exp(generator.normal(0, 0.05, len(x)))
    exponent, (low, high) = power_law(x.tolist(), y.tolist())
    assert low < 1.5 < high
    assert high - low < 0.3
    assert low < exponent < high
