"""Windows against plain statements: which cells meet, and which are kept apart."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vitrail.core.layout import TokenLayout, WindowPolicy
from vitrail.layers.attention import Attend, attend_exported, attend_fused, attend_unfused
from vitrail.layers.computed import Computed
from vitrail.layers.window import (
    APART,
    ShiftMask,
    cells_of,
    lay_windows,
    merge_neighbours,
    window_partition,
    window_reverse,
)

POLICIES: tuple[WindowPolicy, ...] = ("paper", "timm", "torchvision", "hf")
layouts = st.builds(
    lay_windows,
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    merged=st.integers(0, 2),
    patch_size=st.just(4),
    size=st.integers(1, 9),
    shifted=st.booleans(),
    window_policy=st.sampled_from(POLICIES),
)


@given(layouts)
def test_a_grid_is_the_same_after_cutting_and_joining(layout: TokenLayout) -> None:
    rows, columns = layout.grid
    x = torch.arange(2.0 * rows * columns * 3).view(2, rows, columns, 3)
    windows = window_partition(x, layout)
    assert windows.shape[2] == layout.tokens
    assert torch.equal(window_reverse(windows, layout), x)


@given(layouts)
def test_every_cell_lies_in_one_window(layout: TokenLayout) -> None:
    cells = cells_of(layout)
    rows, columns = layout.grid
    found = cells[cells >= 0]
    assert sorted(found.tolist()) == list(range(rows * columns))
    tall, broad = layout.padded
    assert cells.numel() == tall * broad
    x = torch.randn(1, rows * columns, 1)
    expected = torch.where(cells[None] >= 0, x[:, cells.clamp(min=0), 0], 0.0)
    assert torch.equal(window_partition(x.view(1, rows, columns, 1), layout)[..., 0], expected)


@given(layouts)
def test_neighbours_of_the_grid_are_neighbours_in_a_window(layout: TokenLayout) -> None:
    """Without the mask they would not be: what a roll brought from the other end is kept apart."""
    if layout.rolled_first and layout.padded != layout.grid:
        return  # timm masks such a grid as if it had been padded first
    if not any(layout.shift):
        bias = torch.zeros(1, 1, layout.tokens, layout.tokens)
        assert ShiftMask(layout)(bias) is bias
        return
    broad, wide = layout.padded[1], (layout.window or (1, 1))[1]
    whole = TokenLayout(grid=layout.padded, stride=4, window=layout.window, shift=layout.shift)
    cells, place = cells_of(whole), torch.arange(layout.tokens)
    # as far from each other in the grid as in the window
    apart = between(cells // broad) != between(place // wide)
    apart |= between(cells % broad) != between(place % wide)
    mask = ShiftMask(layout)(torch.zeros(1, 1, layout.tokens, layout.tokens))[:, 0]
    assert torch.equal(mask, apart * APART)


def between(places: Tensor) -> Tensor:
    return places[..., :, None] - places[..., None, :]


@pytest.mark.parametrize(
    ("window_policy", "grid", "window", "shift"),
    [
        ("paper", (7, 14), (7, 7), (0, 0)),
        ("timm", (7, 14), (7, 7), (0, 3)),
        ("torchvision", (7, 14), (7, 7), (0, 3)),
        ("hf", (7, 14), (7, 7), (0, 0)),
        ("hf", (14, 7), (7, 7), (3, 3)),
        ("paper", (5, 14), (5, 5), (0, 0)),
        ("timm", (5, 14), (5, 7), (0, 3)),
        ("torchvision", (5, 14), (7, 7), (0, 3)),
        ("hf", (5, 14), (5, 5), (0, 0)),
        ("paper", (9, 8), (7, 7), (3, 3)),
    ],
)
def test_small_grids_as_each_code_base_has_them(
    window_policy: WindowPolicy,
    grid: tuple[int, int],
    window: tuple[int, int],
    shift: tuple[int, int],
) -> None:
    layout = lay_windows(
        grid, merged=0, patch_size=4, size=7, shifted=True, window_policy=window_policy
    )
    assert (layout.window, layout.shift) == (window, shift)
    still = lay_windows(
        grid, merged=0, patch_size=4, size=7, shifted=False, window_policy=window_policy
    )
    assert (still.window, still.shift) == (window, (0, 0))


def test_all_agree_where_windows_divide_the_grid() -> None:
    for shifted in (False, True):
        found = {
            lay_windows(
                (14, 21),
                merged=0,
                patch_size=4,
                size=7,
                shifted=shifted,
                window_policy=window_policy,
            )
            for window_policy in ("paper", "torchvision", "hf")
        }
        assert len(found) == 1


def test_four_neighbours_become_one_column_by_column() -> None:
    x = torch.arange(12.0).view(1, 3, 4, 1)
    merged = merge_neighbours(x)
    assert merged.shape == (1, 2, 2, 4)
    assert merged[0, 0, 0].tolist() == [0, 4, 1, 5]
    assert merged[0, 1, 1].tolist() == [10, 0, 11, 0]  # an odd side gets an empty cell


@pytest.mark.parametrize("windows", [1, 5])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_fused_and_plain_attention_agree(windows: int, scale: float | None) -> None:
    """One bias for all windows, or one for each; without windows too."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 5, 3, 16, 8, dtype=torch.float64)
    bias = torch.randn(windows, 3, 16, 16, dtype=torch.float64)
    expected = attend_unfused(q, k, v, bias, scale)
    for attend in (attend_fused, attend_exported):
        torch.testing.assert_close(attend(q, k, v, bias, scale), expected, rtol=0, atol=1e-12)
    one = attend_fused(q[:, 0], k[:, 0], v[:, 0], bias[:1], scale)
    torch.testing.assert_close(one, expected[:, 0], rtol=0, atol=1e-12)
    none = attend_fused(q, k, v, None, scale)
    zero = attend_unfused(q, k, v, torch.zeros_like(bias), scale)
    torch.testing.assert_close(none, zero, rtol=0, atol=1e-12)


def test_a_bias_that_learns_gets_its_gradient_either_way() -> None:
    layout = TokenLayout(grid=(4, 4), stride=4)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 16, 8, dtype=torch.float64)
    bias = torch.randn(1, 3, 16, 16, dtype=torch.float64, requires_grad=True)

    def gradient(y: Tensor) -> Tensor:
        return torch.autograd.grad(y.square().sum(), bias)[0]

    fused = gradient(attend_fused(q, k, v, bias))
    torch.testing.assert_close(gradient(Attend(layout)(q, k, v, bias)), fused, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(Attend(layout)(q, k, v, bias), attend_unfused(q, k, v, bias))


def test_what_is_computed_is_there_on_every_device_and_in_every_precision() -> None:
    with torch.device("meta"):
        made = Computed(lambda: torch.arange(3, device="cpu") / 3)
    assert made().tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    assert made.to("meta")().is_meta
    assert made.to_empty(device="cpu")().tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    assert made.double()().dtype is torch.float64
    assert not made.state_dict()
