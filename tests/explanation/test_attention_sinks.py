"""Sinks that were planted are found, and where there are none, none are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explanation.test_distance import random_map
from tests.explanation.test_propagation import folds, sequences, windows
from tests.models.kinds import KINDS

from vitrail.core.layout import TokenLayout
from vitrail.explanation.attention_sinks import (
    OUTLIER,
    feature_norms,
    prefix_names,
    received_attention,
)
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.distance import group_cells
from vitrail.explanation.propagation import global_attention
from vitrail.explanation.tokens import Tokens
from vitrail.models.vit import ViT


@given(st.one_of(sequences(), folds()))
@settings(max_examples=30, deadline=None)
def test_even_attention_has_no_sink(layout: TokenLayout) -> None:
    one = random_map(layout)
    even = torch.full_like(one.weights, 1 / layout.tokens)
    found = received_attention(AttentionMap(even, layout))
    patches = layout.tokens - layout.prefix
    assert found.prefix.shape[-1] == layout.prefix
    assert found.prefix.sub(1 / layout.tokens).abs().le(1e-12).all()
    assert found.strongest.sub(patches / layout.tokens).abs().le(1e-9).all()


@given(sequences())
@settings(max_examples=30, deadline=None)
def test_shares_are_those_of_the_whole_matrix(layout: TokenLayout) -> None:
    one = random_map(layout)
    asked = global_attention(one)[:, :, layout.prefix :].mean(dim=2)  # by patches alone
    found = received_attention(one)
    torch.testing.assert_close(found.prefix, asked[..., : layout.prefix])
    most = asked[..., layout.prefix :].amax(dim=-1) * (layout.tokens - layout.prefix)
    torch.testing.assert_close(found.strongest, most)


@given(windows())
@settings(max_examples=30, deadline=None)
def test_a_patch_that_its_whole_window_looks_at_is_found(layout: TokenLayout) -> None:
    one = random_map(layout)
    real = group_cells(layout) >= 0
    weights = torch.zeros_like(one.weights)
    for window, cells in enumerate(real):
        weights[:, window, :, :, int(cells.long().argmax())] = 1  # the first that is no padding
    found = received_attention(AttentionMap(weights, layout))
    assert found.strongest.eq(real.sum(dim=1).max()).all()


def test_the_even_share_does_not_count_padding() -> None:
    layout = TokenLayout(grid=(3, 3), stride=4, window=(4, 4))
    weights = torch.zeros(1, 1, 1, 16, 16)
    weights[..., 0] = 1
    assert received_attention(AttentionMap(weights, layout)).strongest.tolist() == [[9.0]]


def test_a_planted_outlier_is_counted() -> None:
    generator = torch.Generator().manual_seed(0)
    grid = torch.randn(2, 8, 8, 64, generator=generator)
    calm = feature_norms(Tokens(torch.empty(2, 0, 64), grid))
    assert calm.outliers.eq(0).all()
    grid[1, 3, 4] *= 2 * OUTLIER
    found = feature_norms(Tokens(torch.ones(2, 1, 64), grid))
    assert found.outliers.tolist() == [0, pytest.approx(1 / 64)]
    assert found.most[1] == pytest.approx(grid[1, 3, 4].norm().item(), rel=1e-6)
    assert found.prefix.tolist() == [[8.0], [8.0]]


def test_prefix_tokens_have_names() -> None:
    names = {
        kind: prefix_names(ViT(KINDS[kind]), KINDS[kind].prefix)
        for kind in ("plain", "registers", "distilled", "mean pooling")
    }
    assert names == {
        "plain": ("class token",),
        "registers": ("class token", "register 1", "register 2"),
        "distilled": ("class token", "distillation token"),
        "mean pooling": (),
    }
    assert prefix_names(torch.nn.Linear(1, 1), 2) == ("token 1", "token 2")
