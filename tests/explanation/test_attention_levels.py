"""Attention in few bytes: levels, pooled places, and what is lost by them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.parity.test_every_family import ATTENTIVE, make, picture

from vitrail import capture
from vitrail.core.layout import TokenLayout
from vitrail.explanation.attention_levels import (
    LEVELS,
    choose_factors,
    choose_levels,
    decode_rows,
    layer_weights,
    make_pooling,
    quantise,
    square_roots,
    tolerance,
)
from vitrail.explanation.attention_sinks import sink_tokens
from vitrail.explanation.capture import AttentionMap

LAYOUT = TokenLayout(grid=(3, 4), stride=8, prefix=1)


def random_map(layout: TokenLayout, seed: int, spread: float = 2.0) -> AttentionMap:
    draw = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(1, 2, layout.tokens, layout.tokens, generator=draw)
    return AttentionMap(scores.softmax(dim=-1), layout)


@given(levels=st.sampled_from(LEVELS), seed=st.integers(0, 99), spread=st.floats(0, 20))
def test_a_weight_is_off_by_no_more_than_the_tolerance(
    levels: int, seed: int, spread: float
) -> None:
    layer = layer_weights(random_map(LAYOUT, seed, spread))
    largest = layer.largest.numpy()
    again = decode_rows(quantise(layer, levels), largest, levels)
    assert (
        abs(again - layer.weights.numpy()) <= tolerance(levels) * largest[..., None] + 1e-7
    ).all()
    # the largest of a row is exact
    np.testing.assert_allclose(again.max(axis=-1), largest, rtol=1e-6)


def test_pooled_weights_are_means_of_queries_and_sums_of_keys() -> None:
    one = random_map(LAYOUT, 0)
    layer = layer_weights(one, 2)
    assert layer.pooling is not None
    assert layer.pooling.after == (2, 2)
    places, weights = layer.pooling.places, one.weights[0]
    for query in range(5):
        for key in range(5):
            block = weights[:, places == query][:, :, places == key]
            expected = block.sum(dim=2).mean(dim=1)
            torch.testing.assert_close(layer.weights[0, :, query, key], expected)
    torch.testing.assert_close(layer.weights.sum(-1), torch.ones(1, 2, 5))


def test_rows_of_padding_do_not_count() -> None:
    layout = TokenLayout(grid=(3, 3), stride=4, window=(2, 2))
    weights = torch.rand(1, 4, 1, 4, 4).softmax(dim=-1)
    weights[0, 3, 0, 1:] = torch.tensor([0.0, 0.0, 0.0, 1.0])  # the last window has one real cell
    layer = layer_weights(AttentionMap(weights, layout), 2)
    torch.testing.assert_close(
        layer.weights[3, 0, 0], weights[0, 3, 0, 0].sum(dim=-1, keepdim=True)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ATTENTIVE)
def test_factors_bring_the_weights_below_the_limit(family: str) -> None:
    model = make(family)
    assert set(choose_factors(model).values()) == {1}
    with capture(model) as maps, torch.no_grad():
        model(picture(family, batch=1))
    full = sum(one.weights.numel() for one in maps.values())
    factors = choose_factors(model, full // 3)
    pooled = {name: layer_weights(one, factors[name]) for name, one in maps.items()}
    assert sum(one.weights.numel() for one in pooled.values()) <= full // 3
    largest = max(maps, key=lambda name: maps[name].weights.numel())
    assert factors[largest] > 1


def test_a_pooling_of_one_place() -> None:
    pooling = make_pooling(TokenLayout(grid=(3, 3), stride=4), 9)
    assert pooling.after == (1, 1)
    assert set(pooling.places.tolist()) == {0}


def test_levels_are_as_many_as_fit() -> None:
    layout = TokenLayout(grid=(12, 12), stride=8)
    roots = {"a": square_roots(layer_weights(random_map(layout, 3)))}
    size = roots["a"].size
    chosen = [choose_levels(roots, size * bits / 8)[0] for bits in (9, 7, 6, 5)]
    assert chosen == sorted(set(chosen), reverse=True)
    assert chosen[0] == 255
    assert choose_levels(roots, size / 80)[1] is None


def test_a_row_of_nothing_stays_nothing() -> None:
    one = AttentionMap(torch.zeros(1, 1, 13, 13), LAYOUT)
    assert quantise(layer_weights(one), 255).max() == 0


def test_sinks_are_the_tokens_that_everybody_looks_at() -> None:
    weights = torch.full((1, 2, 13, 13), 0.5 / 12)
    weights[..., 7] = 0.5
    weights = weights / weights.sum(dim=-1, keepdim=True)
    ((token, times),) = sink_tokens(AttentionMap(weights, LAYOUT))
    assert token == 7
    assert times == pytest.approx(13 * 0.5, rel=1e-5)
    assert sink_tokens(random_map(LAYOUT, 0, spread=0.1)) == []


def test_sinks_in_windows_are_found_where_they_lie() -> None:
    layout = TokenLayout(grid=(4, 8), stride=4, window=(4, 4))
    weights = torch.full((1, 2, 1, 16, 16), 0.1 / 15)
    weights[:, 1, :, :, 5] = 0.9  # row 1, column 1 of the second window
    weights[:, 0] = 1 / 16
    assert [token for token, _ in sink_tokens(AttentionMap(weights, layout))] == [8 + 5]
