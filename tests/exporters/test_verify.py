"""What counts as a difference between a file and its model."""

import math

import numpy as np
import pytest

from vitrail.exporters.verify import TOLERANCES, difference


def test_attention_is_compared_with_its_own_size() -> None:
    even = np.full((1, 3, 197, 197), 1 / 197, np.float32)
    _, share = difference({"map": 0 * even}, {"map": even}, "map")
    assert share == pytest.approx(1)
    assert share > max(TOLERANCES.values())


def test_logits_near_zero_are_compared_with_one() -> None:
    expected = np.array([[1e-6, 0]], np.float32)
    assert difference({"logits": -expected}, {"logits": expected}, "logits")[1] < 1e-5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_the_worst(bad: float) -> None:
    ones = np.ones((1, 4), np.float32)
    broken = np.where(np.arange(4) == 2, bad, ones).astype(np.float32)
    shares = {
        name: difference({"logits": ones, "pooled": broken}, {name: ones}, name)[1]
        for name in ("logits", "pooled")
    }
    assert shares == {"logits": 0, "pooled": math.inf}
    assert max(shares, key=lambda name: shares[name]) == "pooled"
