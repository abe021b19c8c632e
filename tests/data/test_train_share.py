"""A share of the labels: the same for every model, class by class, smaller within larger."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail import UserError, open_data
from vitrail.data.sources.train_share import with_train_share


def names(share: float, seed: int = 0) -> set[str]:
    train = with_train_share(open_data("digits"), share, seed)["train"]
    return {train.name(place) for place in range(len(train))}


@given(
    shares=st.lists(st.floats(0.001, 1), min_size=2, max_size=2).map(sorted),
    seed=st.integers(0, 5),
)
def test_a_smaller_share_lies_within_a_larger_one(shares: list[float], seed: int) -> None:
    assert names(shares[0], seed) <= names(shares[1], seed)


def test_every_class_has_its_share_and_at_least_one() -> None:
    whole = open_data("digits")
    tenth = with_train_share(whole, 0.1, 0)["train"].targets
    assert whole["train"].targets is not None
    assert tenth is not None
    counts = np.bincount(whole["train"].targets)
    assert np.bincount(tenth).tolist() == [round(0.1 * count) for count in counts]
    few = with_train_share(whole, 1e-6, 0)["train"].targets
    assert few is not None
    assert sorted(few) == list(range(10))


def test_seeds_draw_others_and_all_is_all() -> None:
    assert names(0.1, 0) != names(0.1, 1)
    whole = open_data("digits")
    assert with_train_share(whole, 1.0, 3) is whole
    assert with_train_share(whole, 0.5, 3)["val"] is whole["val"]


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan"), "many"])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="train_share must be "):
        with_train_share(open_data("digits"), share, 0)
