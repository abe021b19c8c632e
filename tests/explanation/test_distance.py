"""How far attention reaches, against its definition in whole matrices and in closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explanation.test_propagation import folds, sequences, windows
from tests.parity.test_every_family import ATTENTIVE, make, picture

from vitrail import UserError, capture
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.distance import group_cells, mean_distance, uniform_distance
from vitrail.explanation.propagation import global_attention
from vitrail.layers.window import ShiftMask

HEADS = 2


def closed_form(rows: int, columns: int, stride: int) -> float:
    """The mean distance between two places of a grid, by how many pairs have each offset."""
    total = sum(
        (rows - abs(down)) * (columns - abs(across)) * math.hypot(down, across)
        for down in range(1 - rows, rows)
        for across in range(1 - columns, columns)
    )
    return stride * total / (rows * columns) ** 2


def random_map(layout: TokenLayout, seed: int = 0) -> AttentionMap:
    groups, tokens = group_cells(layout).shape[0], layout.tokens
    many = layout.window is not None or layout.fold is not None
    shape = (
        2,
        *((groups,) if many else ()),
        HEADS,
        1 if layout.separable else tokens,
        tokens,
    )
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return AttentionMap(scores.softmax(dim=-1), layout)


def by_definition(one: AttentionMap, *, renormalise: bool) -> np.ndarray:
    """Query by query over one matrix of the whole picture."""
    prefix, (_, columns) = one.layout.prefix, one.layout.grid
    matrix = global_attention(one)[:, :, prefix:, prefix:].numpy()
    place = np.array([divmod(cell, columns) for cell in range(matrix.shape[-1])])
    apart = np.linalg.norm(place[:, None] - place, axis=-1) * one.layout.stride
    reach = (matrix * apart).sum(axis=-1)
    if renormalise:
        reach = reach / matrix.sum(axis=-1)
    return reach.mean(axis=-1)


@given(sequences())
@settings(max_examples=40, deadline=None)
def test_even_attention_has_the_closed_form(layout: TokenLayout) -> None:
    (rows, columns), tokens = layout.grid, layout.tokens
    weights = torch.full((1, HEADS, tokens, tokens), 1 / tokens, dtype=torch.float64)
    expected = closed_form(rows, columns, layout.strides[0])
    one = AttentionMap(weights, layout)
    assert mean_distance(one).tolist() == [pytest.approx([expected] * HEADS, abs=1e-9)]
    share = (tokens - layout.prefix) / tokens  # of attention that goes to patches
    found = mean_distance(one, renormalise=False)
    assert found.tolist() == [pytest.approx([expected * share] * HEADS, abs=1e-9)]
    assert uniform_distance(layout) == pytest.approx(expected, abs=1e-9)


@given(st.one_of(sequences(), windows(), folds()), st.booleans(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_windows_shifts_padding_and_folds_agree_with_the_whole_matrix(
    layout: TokenLayout, separable: bool, renormalise: bool
) -> None:
    one = random_map(replace(layout, separable=separable and layout.fold is not None))
    found = mean_distance(one, renormalise=renormalise).numpy()
    expected = by_definition(one, renormalise=renormalise)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@given(st.one_of(sequences(), windows(), folds()))
@settings(max_examples=40, deadline=None)
def test_attention_to_oneself_goes_nowhere(layout: TokenLayout) -> None:
    one = random_map(layout)
    itself = torch.eye(layout.tokens, dtype=torch.float64).expand_as(one.weights)
    assert mean_distance(AttentionMap(itself, layout)).abs().max() == 0


@given(windows())
@settings(max_examples=60, deadline=None)
def test_even_attention_in_shifted_windows_respects_what_is_kept_apart(layout: TokenLayout) -> None:
    tokens, groups = layout.tokens, group_cells(layout).shape[0]
    bias = ShiftMask(layout)(torch.zeros(1, 1, tokens, tokens, dtype=torch.float64))
    weights = bias.expand(groups, -1, -1, -1).softmax(dim=-1)[None]
    found = mean_distance(AttentionMap(weights, layout)).item()
    assert uniform_distance(layout) == pytest.approx(found, rel=1e-9, abs=1e-9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ATTENTIVE)
def test_every_family_has_distances_within_its_picture(family: str) -> None:
    model, image = make(family, torch.float64), picture(family, torch.float64)
    with torch.no_grad(), capture(model) as maps:
        model(image)
    diagonal = math.hypot(*image.shape[2:]) + 64  # a grid may reach beyond the picture
    for one in maps.values():
        found = mean_distance(one)
        np.testing.assert_allclose(found, by_definition(one, renormalise=True), atol=1e-9)
        assert ((found >= 0) & (found < diagonal)).all()


def test_a_map_of_another_size_is_refused() -> None:
    weights = torch.full((1, 1, 9, 9), 1 / 9)
    with pytest.raises(UserError, match="its layout"):
        mean_distance(AttentionMap(weights, TokenLayout(grid=(2, 2), stride=4)))
