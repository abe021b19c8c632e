"""Relevance goes back to the picture by the attention that there was, whatever its layout."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitrail import UserError
from vitrail.core.layout import TokenLayout, WindowPolicy
from vitrail.explanation.capture import AttentionMap, attention_weights, capture, context_weights
from vitrail.explanation.propagation import (
    Cells,
    attention_groups,
    count_tokens,
    global_attention,
    normalise_rows,
    on_pixels,
    propagate,
    regrid,
    with_residual,
)
from vitrail.explanation.rollout import propagate_back
from vitrail.layers.attention import Attend, SeparableAttend
from vitrail.layers.fold import fold, unfold
from vitrail.layers.window import (
    ShiftMask,
    join_heads,
    lay_windows,
    split_heads,
    window_partition,
    window_reverse,
)
from vitrail.models.swin import Swin, SwinConfig

HEADS, WIDTH = 2, 3

sides = st.integers(1, 9)


@st.composite
def windows(draw: st.DrawFn) -> TokenLayout:
    """Windows as every code base lays them: padded or not, shifted or not, oblong."""
    return lay_windows(
        (draw(st.integers(2, 17)), draw(st.integers(2, 17))),
        merged=draw(st.integers(0, 1)),
        patch_size=4,
        size=draw(st.integers(2, 5)),
        shifted=draw(st.booleans()),
        window_policy=draw(st.sampled_from(get_args(WindowPolicy))),
    )


@st.composite
def folds(draw: st.DrawFn) -> TokenLayout:
    down, across = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    grid = (down * draw(st.integers(1, 4)), across * draw(st.integers(1, 4)))
    return TokenLayout(grid=grid, stride=8, fold=(down, across))


@st.composite
def sequences(draw: st.DrawFn) -> TokenLayout:
    return TokenLayout(grid=(draw(sides), draw(sides)), stride=16, prefix=draw(st.integers(0, 3)))


layouts = st.one_of(windows(), folds(), sequences())


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def random_map(layout: TokenLayout) -> AttentionMap:
    groups, tokens = attention_groups(layout).shape
    shape = (2, groups, HEADS) if layout.window or layout.fold else (2, HEADS)
    rows = 1 if layout.separable else tokens
    return AttentionMap(random(*shape, rows, tokens).softmax(dim=-1), layout)


def random_cells(layout: TokenLayout) -> Cells:
    return Cells.of(random(2, count_tokens(layout)).abs(), layout)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(layouts)
def test_every_token_is_in_one_group(layout: TokenLayout) -> None:
    numbers = attention_groups(layout).flatten()
    assert numbers[numbers >= 0].sort().values.tolist() == list(range(count_tokens(layout)))
    assert attention_groups(layout).shape[1] == layout.tokens


@settings(deadline=None)
@given(windows())
def test_windows_scattered_reproduce_the_output(layout: TokenLayout) -> None:
    """Padded cells are zero here, so that nothing comes from them but what they take."""
    grids = [random(2, *layout.grid, HEADS * WIDTH) for _ in range(3)]
    q, k, v = (split_heads(window_partition(grid, layout), HEADS) for grid in grids)
    bias = ShiftMask(layout)(random(1, HEADS, layout.tokens, layout.tokens))
    expected = window_reverse(join_heads(Attend(layout)(q, k, v, bias)), layout)
    matrix = global_attention(AttentionMap(attention_weights(q, k, bias), layout))
    values = grids[2].flatten(1, 2).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    close((matrix @ values).transpose(1, 2).flatten(2).unflatten(1, layout.grid), expected)


@settings(deadline=None)
@given(folds())
def test_folds_scattered_reproduce_the_output(layout: TokenLayout) -> None:
    assert layout.fold is not None
    side = layout.fold[0]
    layout = replace(layout, fold=(side, side), grid=(layout.grid[0], side * 2))
    grids = [random(2, HEADS * WIDTH, *layout.grid) for _ in range(3)]
    q, k, v = (
        unfold(grid, side).unflatten(1, (HEADS, WIDTH)).permute(0, 3, 1, 4, 2) for grid in grids
    )
    out = Attend(layout)(q, k, v).permute(0, 2, 4, 1, 3).flatten(1, 2)
    expected = fold(out, side, rows=layout.grid[0] // side)
    matrix = global_attention(AttentionMap(attention_weights(q, k), layout))
    values = grids[2].flatten(2).unflatten(1, (HEADS, WIDTH)).mT
    close((matrix @ values).mT.flatten(1, 2).unflatten(2, layout.grid), expected)


@settings(deadline=None)
@given(folds())
def test_the_context_of_separable_attention_is_reproduced(layout: TokenLayout) -> None:
    assert layout.fold is not None
    side = layout.fold[0]
    layout = replace(layout, fold=(side, side), grid=(layout.grid[0], side * 2), separable=True)
    scores, keys = random(2, 1, *layout.grid), random(2, WIDTH, *layout.grid)
    folded = unfold(scores, side), unfold(keys, side)
    context = SeparableAttend(layout)(*folded).expand_as(folded[1])
    expected = fold(context.contiguous(), side, rows=layout.grid[0] // side)
    matrix = global_attention(AttentionMap(context_weights(*folded), layout))[:, 0]
    close((matrix @ keys.flatten(2).mT).mT.unflatten(2, layout.grid), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("window_policy", get_args(WindowPolicy))
def test_a_padded_block_is_its_matrix_and_what_padding_says(window_policy: WindowPolicy) -> None:
    """Within a model, empty cells have a value too, the bias's: the rest of each row goes there."""
    config = SwinConfig(
        dim=8,
        depths=(2,),
        heads=(2,),
        window_size=4,
        image_size=(36, 52),
        window_policy=window_policy,
    )
    torch.manual_seed(0)
    model = Swin(config).double().eval()
    torch.nn.init.normal_(model.get_parameter("stages.0.blocks.1.attention.qkv.bias"))
    inside = model.get_submodule("stages.0.blocks.1.attention")
    seen: dict[str, Tensor] = {}
    inside.register_forward_hook(lambda m, args, out: seen.update(x=args[0], y=out))
    with capture(model, where="stages.0.blocks.1.*") as maps:
        model(random(2, 3, 36, 52))
    layout = maps["stages.0.blocks.1.attention"].layout
    assert layout.padded != layout.grid
    assert any(layout.shift)
    matrix = global_attention(maps["stages.0.blocks.1.attention"])
    missing = 1 - matrix.sum(dim=-1, keepdim=True)
    assert missing.max() > 0.01

    def values(x: Tensor) -> Tensor:
        v = inside.get_submodule("qkv")(x).chunk(3, dim=-1)[2]
        return v.flatten(1, 2).unflatten(-1, (2, 4)).transpose(1, 2)

    mixed = matrix @ values(seen["x"]) + missing * values(torch.zeros_like(seen["x"][:, :1, :1]))
    y = inside.get_submodule("out")(mixed.transpose(1, 2).flatten(2))
    close(y.unflatten(1, layout.grid), seen["y"])


@settings(deadline=None)
@given(layouts, st.booleans())
def test_relevance_goes_as_by_the_dense_matrix(layout: TokenLayout, separable: bool) -> None:
    layout = replace(layout, separable=separable)
    attention, before = random_map(layout), random_cells(layout)
    after = propagate(attention.weights.mean(dim=-3), layout, before)
    dense = global_attention(attention).mean(dim=1)
    close(after.sequence(), (before.sequence()[:, None] @ dense)[:, 0])
    assert after.prefix.shape[1] == layout.prefix


@settings(deadline=None)
@given(layouts, st.booleans(), st.floats(0, 0.9))
def test_sums_are_kept_by_attention(layout: TokenLayout, separable: bool, residual: float) -> None:
    layout = replace(layout, separable=separable)
    weights = random_map(layout).weights.mean(dim=-3)
    before = random_cells(layout)
    for rows in (normalise_rows(weights, layout), with_residual(weights, layout, residual)):
        close(propagate(rows, layout, before).total(), before.total())


@settings(deadline=None)
@given(layouts)
def test_identity_attention_changes_nothing_however_often(layout: TokenLayout) -> None:
    groups, tokens = attention_groups(layout).shape
    same = torch.eye(tokens, dtype=torch.float64)
    shape = (2, groups) if layout.window or layout.fold else (2,)
    layers = [(same.expand(*shape, tokens, tokens), layout)] * 3
    before = random_cells(layout)
    after, at = propagate_back(layers, before, layout, residual=0.5)
    close(after.sequence(), before.sequence())
    assert at == layout


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3), st.integers(0, 2))
def test_sums_are_kept_from_grid_to_grid(rows: int, columns: int, merged: int, prefix: int) -> None:
    """As patch merging does: an odd side gets a cell that is half empty."""
    fine = TokenLayout(grid=(rows, columns), stride=4, prefix=prefix)
    shrunk = (-(-rows // 2**merged), -(-columns // 2**merged))
    coarse = TokenLayout(grid=shrunk, stride=4 * 2**merged, prefix=prefix)
    before = random_cells(coarse)
    after = regrid(before, coarse, fine)
    close(after.total(), before.total())
    assert torch.equal(after.prefix, before.prefix)
    back = regrid(after, fine, coarse)
    close(back.sequence(), before.sequence())
    # all cells that came from one have the same
    first = after.grid[:, : 2**merged, : 2**merged].flatten(1)
    close(first, first[:, :1].expand_as(first))


@settings(deadline=None)
@given(sides, sides, sides, sides)
def test_sums_are_kept_where_a_map_was_stretched(a: int, b: int, c: int, d: int) -> None:
    old = TokenLayout(grid=(a, b), stride=32)
    new = TokenLayout(grid=(2 * c, 2 * d), stride=8, fold=(2, 2))
    before = random_cells(old)
    close(regrid(before, old, new).total(), before.total())


def test_prefix_tokens_have_nothing_where_there_were_none() -> None:
    old, new = TokenLayout(grid=(4, 4), stride=1), TokenLayout(grid=(2, 2), stride=2, prefix=2)
    after = regrid(random_cells(old), old, new)
    assert torch.equal(after.prefix, torch.zeros(2, 2, dtype=torch.float64))


def test_tokens_of_another_picture_are_refused_with_the_way_out() -> None:
    layout = TokenLayout(grid=(4, 4), stride=8, fold=(2, 2))
    with pytest.raises(UserError, match=r"met 6 tokens.*image_size of these images"):
        propagate(random(2, 4, 6, 6).softmax(-1), layout, random_cells(layout))


def test_a_map_lies_where_its_cells_do() -> None:
    heat = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    square = torch.ones(4, 4)
    close(on_pixels(heat, (8, 12), mode="nearest")[0], torch.kron(heat[0], square))
    # a last cell that reaches beyond the picture is window_partition, not squeezed
    layout = TokenLayout(grid=(2, 3), stride=4)
    for mode in ("nearest", "bilinear"):
        whole = on_pixels(heat, (8, 12), mode=mode)
        close(on_pixels(heat, (6, 9), layout=layout, mode=mode), whole[:, :6, :9])
    # a map that was stretched is squeezed again
    assert on_pixels(heat, (6, 9), layout=replace(layout, fold=(1, 1))).shape == (1, 6, 9)


@settings(deadline=None)
@given(layouts, st.booleans())
def test_one_query_on_the_grid_is_a_row_of_the_matrix(layout: TokenLayout, separable: bool) -> None:
    layout = replace(layout, separable=separable)
    attention = random_map(layout)
    matrix = global_attention(attention)
    (rows, columns), prefix = layout.grid, layout.prefix
    for query in {0, count_tokens(layout) // 2, count_tokens(layout) - 1}:
        expected = matrix[:, :, query, prefix:].unflatten(-1, layout.grid)
        assert torch.equal(attention.on_grid(query), expected)
    last = attention.on_grid((rows - 1, columns - 1))
    assert torch.equal(last, attention.on_grid(count_tokens(layout) - 1))
