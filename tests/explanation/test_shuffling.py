"""Shuffled weights: ranks against scipy, and what is shuffled."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr  # type: ignore[import-untyped]
from tests.explanation.templates import as_relevance
from torch import Tensor, nn

import vitrail
from vitrail import UserError
from vitrail.explanation.readout import Relevance
from vitrail.explanation.shuffling import (
    head_weights,
    mean_rank_correlation,
    rank_correlation,
    shuffle_check,
    shuffled_copy,
)


@given(values=st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), min_size=2, max_size=2))
@settings(deadline=None)
def test_rank_correlation_is_spearmans(values: list[list[int]]) -> None:
    first, second = (torch.tensor(row, dtype=torch.float64).view(1, 2, 3) for row in values)
    ours = float(rank_correlation(first, second))
    if len(set(values[0])) == 1 or len(set(values[1])) == 1:
        assert ours == 0
    else:
        assert ours == pytest.approx(float(spearmanr(*values).statistic), abs=1e-12)


def test_the_negative_of_a_map_is_as_much_like_it_as_itself() -> None:
    maps = torch.rand(3, 4, 4)
    assert (
        mean_rank_correlation(maps, -maps) == mean_rank_correlation(maps, maps) == pytest.approx(1)
    )


MODELS = {
    "vit": {"name": "vit_ti_16", "image_size": 32, "dim": 24, "depth": 2, "mlp_dim": 48},
    "swin": {"name": "swin_t", "image_size": 32, "dim": 12, "depths": (2, 2), "heads": (1, 2)},
    "mobilevit": {"name": "mobilevit_xxs", "image_size": 64},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", MODELS)
def test_all_weights_change_places_and_the_model_is_spared(family: str) -> None:
    torch.manual_seed(0)
    model = vitrail.create(**MODELS[family], num_classes=4)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    before = {name: value.clone() for name, value in model.named_parameters()}
    head = head_weights(model)
    assert {name.split(".")[0] for name in head} == {"head"}
    for name, value in shuffled_copy(model).named_parameters():
        assert torch.equal(value, before[name]) == (value.numel() == 1), name
        assert torch.equal(value.flatten().sort()[0], before[name].flatten().sort()[0])
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_the_head_is_shuffled_first_then_everything_again_and_again() -> None:
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    states: list[list[Tensor]] = []

    def explain(model: nn.Module, images: Tensor) -> Relevance:
        states.append([parameter.clone() for parameter in model.parameters()])
        return as_relevance(torch.rand(len(images), 6, 6))

    images = torch.zeros(2, 1, 8, 8)
    own = list(deep.parameters())
    head, every = shuffle_check(explain, deep, images, torch.rand(2, 6, 6), times=4)
    assert len(every) == 4
    assert all(0 <= value <= 1 for value in (head, *every))
    same = [torch.equal(a, b) for a, b in zip(own, states[0], strict=True)]
    assert same[:4] == [True] * 4
    assert not all(same[4:])
    for before, after in pairwise(states):
        assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with pytest.raises(UserError, match="no weights"):
        shuffle_check(explain, nn.Identity(), images, torch.rand(2, 6, 6))
