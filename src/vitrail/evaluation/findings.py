"""What measurements say about a claim: shown, not shown at this scale, or contradicted.

A claim is one or more findings. Each has a number, its interval of 95 %, and where the claim
expects the number: above 0, below 0, or within a margin. The interval decides: wholly inside what
is expected is shown, wholly outside is contradicted, anything else is not shown. A claim is shown
if all of its findings are, which needs no correction for their number, and contradicted if one is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import stats  # type: ignore[import-untyped]

from vitrail.evaluation.intervals import LEVEL
from vitrail.evaluation.paired import crossed_mean, half_width

Verdict: TypeAlias = Literal["shown", "not shown at this scale", "contradicted"]
Unit: TypeAlias = Literal["points", "number", "pixels", "share"]

SHOWN: Verdict = "shown"
NOT_SHOWN: Verdict = "not shown at this scale"
CONTRADICTED: Verdict = "contradicted"
HOW = (
    "Each finding has an interval of 95 % and a range in which the claim expects the number. An "
    "interval within the range is shown, one outside of it is contradicted, and one that reaches "
    "across its border is not shown at this scale. The claim is shown if all findings are, and "
    "contradicted if one is."
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`sentence` is what the claim expects: that the number lies `above` and `below` these."""

    sentence: str
    estimate: float
    interval: tuple[float, float]
    above: float = -math.inf
    below: float = math.inf
    unit: Unit = "number"
    how: str = ""

    @property
    def verdict(self) -> Verdict:
        """
        >>> Finding(sentence="a", estimate=2, interval=(1, 3), above=0).verdict
        'shown'
        >>> Finding(sentence="a", estimate=2, interval=(-1, 5), above=0).verdict
        'not shown at this scale'
        >>> Finding(sentence="a", estimate=2, interval=(1, 3), below=0).verdict
        'contradicted'
        """
        low, high = self.interval
        if not (math.isfinite(self.estimate) and low <= high):  # NaN is above and below nothing
            return NOT_SHOWN
        if low > self.above and high < self.below:
            return SHOWN
        return CONTRADICTED if high < self.above or low > self.below else NOT_SHOWN


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """The verdict on a claim that says all of this."""
    found = {finding.verdict for finding in findings}
    if CONTRADICTED in found:
        return CONTRADICTED
    return SHOWN if found == {SHOWN} else NOT_SHOWN


def crossed_interval(values: Float[np.ndarray, "S N"]) -> tuple[float, tuple[float, float]]:
    """The mean of a value for each seed and test image, and its interval: see `paired`.

    >>> mean, (low, high) = crossed_interval(np.array([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    >>> low < mean < high
    True
    """
    mean, parts = crossed_mean(values)
    width = half_width(parts, 1 - LEVEL)
    return mean, (mean - width, mean + width)


def rank_correlation(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, tuple[float, float]]:
    """Spearman's rank correlation, and its interval by Fisher's transformation with the variance of
    Bonett and Wright (Psychometrika 2000).

    >>> found, (low, high) = rank_correlation([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 5, 4, 6, 7, 8])
    >>> round(found, 3), low > 0.5, high < 1
    (0.976, True, True)
    """
    if len(first) < 4 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan, (-1.0, 1.0)
    found = float(stats.spearmanr(first, second).statistic)
    inside = min(max(found, -0.999999), 0.999999)
    error = math.sqrt((1 + inside**2 / 2) / (len(first) - 3))
    width = float(stats.norm.isf((1 - LEVEL) / 2)) * error
    ends = (math.tanh(math.atanh(inside) - width), math.tanh(math.atanh(inside) + width))
    return found, ends


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The exponent b of y = a x^b by least squares of logarithms, and its interval.

    >>> exponent, (low, high) = power_law([1, 2, 4, 8], [3, 12, 48, 192])
    >>> round(exponent, 6), round(low, 6), round(high, 6)
    (2.0, 2.0, 2.0)
    """
    found = stats.linregress(np.log(x), np.log(y))
    exponent = float(found.slope)
    if len(x) < 3:
        return exponent, (exponent, exponent)
    width = float(stats.t.isf((1 - LEVEL) / 2, len(x) - 2) * found.stderr)
    return exponent, (exponent - width, exponent + width)
