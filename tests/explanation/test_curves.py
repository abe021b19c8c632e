"""Deletion and insertion against closed forms, on the pixels that overlays show."""

import math
from functools import partial
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explanation.templates import LAYOUT, Templates, chance, pictures
from torch import Tensor, nn

from vitrail.core.layout import TokenLayout
from vitrail.explanation.curves import (
    BATCH_SIZE,
    FILLINGS,
    Filling,
    class_probability,
    compute_curves,
    fill_blur,
    fill_mean,
    random_order,
    relevance_order,
    scores_without,
)
from vitrail.explanation.readout import Relevance
from vitrail.explanation.verdict import CURVE_SHARES, REMOVED_SHARES, contrast

# Swin-T at 72x100: its windows' grids reach beyond the image
PADDED = [
    TokenLayout(grid=(9, 13), stride=8, window=(7, 7)),
    TokenLayout(grid=(5, 7), stride=16, window=(7, 7), shift=(3, 3)),
    TokenLayout(grid=(3, 4), stride=32, window=(7, 7)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", PADDED, ids=lambda layout: str(layout.grid))
def test_a_cell_takes_away_the_pixels_that_it_was_made_of(layout: TokenLayout) -> None:
    """And no other cell's, where the last cells reach beyond the image."""
    size, cells = (72, 100), math.prod(layout.grid)
    images = torch.ones(1, 1, *size)
    for place in range(cells):
        row, column = divmod(place, layout.grid[1])
        heat = torch.zeros(1, *layout.grid)
        heat[0, row, column] = 1
        found = Relevance(heat, layout, "by hand")
        order, seen = relevance_order(found), list[Tensor]()

        def score(x: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(x)
            return x.mean(dim=(1, 2, 3))

        compute_curves(
            score, images, order, layout, (0, 1 / cells, 1), filling=cast(Filling, "zero")
        )
        scores_without(score, images, order, layout, (1 / cells,), filling=cast(Filling, "zero"))
        gone = seen[0][2, 0] == 0
        assert torch.equal(gone, seen[1][0, 0] == 0)
        side = layout.stride
        expected = torch.zeros(size, dtype=torch.bool)
        expected[row * side : (row + 1) * side, column * side : (column + 1) * side] = True
        assert torch.equal(gone, expected)
        # the overlay is brightest there too
        shown = found.on_pixels(size, mode="nearest")[0] > 0
        assert torch.equal(shown, expected)


@pytest.fixture(autouse=True)
def _black(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILLINGS, cast(Filling, "zero"), torch.zeros_like)


@given(seed=st.integers(0, 10_000), rows=st.integers(2, 6), columns=st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_curves_of_a_sum_are_partial_sums(seed: int, rows: int, columns: int) -> None:
    """Where the score is the mean of an image of `rows` by `columns` cells, each step is known."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.rand(3, rows, columns, generator=generator, dtype=torch.float64)
    images = cells.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)[:, None]
    # the mean would not move if cells were replaced by it: half of it is put there
    doubled = torch.cat([images, -images], dim=3)  # mean 0
    count = rows * columns

    def score(x: Tensor) -> Tensor:
        return x[:, :, :, : images.shape[3]].mean(dim=(1, 2, 3))

    layout = TokenLayout(grid=(rows, 2 * columns), stride=4)
    maps = torch.cat([cells, torch.full_like(cells, -1)], dim=2)  # the left half goes first
    steps = [step / (2 * count) for step in range(2 * count + 1)]
    own = relevance_order(Relevance(maps, layout, "by hand"))
    follow = partial(compute_curves, score, doubled, layout=layout, shares=steps, filling="mean")
    curves = follow(order=own)
    ordered = cells.flatten(1).sort(dim=1, descending=True).values
    gone = torch.cat([torch.zeros(3, 1), ordered.cumsum(dim=1) / count], dim=1)
    left = ordered.mean(dim=1, keepdim=True) - gone
    torch.testing.assert_close(curves.deletion[:, : count + 1], left, check_dtype=False)
    torch.testing.assert_close(curves.insertion[:, : count + 1], gone, check_dtype=False)
    torch.testing.assert_close(curves.deletion[:, count:].abs().max(), torch.tensor(0.0).double())
    for turn in range(3):  # no order is better than the right one
        other = follow(order=random_order(3, layout.grid, 0, turn))
        assert (curves.insertion_area >= other.insertion_area - 1e-9).all()
        assert (curves.deletion_area <= other.deletion_area + 1e-9).all()


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 5), columns=st.integers(2, 7))
@settings(max_examples=30, deadline=None)
def test_the_reverse_order_has_the_same_contrast_with_the_other_sign(
    seed: int, rows: int, columns: int
) -> None:
    layout = TokenLayout(grid=(rows, columns), stride=4)
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(2, 1, 4 * rows, 4 * columns, generator=generator, dtype=torch.float64)
    weights = torch.randn(images.shape[1:], generator=generator, dtype=torch.float64)

    def score(x: Tensor) -> Tensor:
        return (x * weights).sum(dim=(1, 2, 3)).tanh()

    order = random_order(2, layout.grid, seed, 0)
    forth, back = (
        scores_without(score, images, each, layout, REMOVED_SHARES)
        for each in (order, order.flip(1))
    )
    torch.testing.assert_close(forth, back.flip(0))
    torch.testing.assert_close(contrast(forth), -contrast(back))
    curves = compute_curves(
        score, images, order, layout, CURVE_SHARES
    )  # what both have in common is the same
    places = [CURVE_SHARES.index(share) for share in REMOVED_SHARES]
    torch.testing.assert_close(forth[0], curves.deletion[:, places].mT)
    torch.testing.assert_close(forth[1], curves.insertion.flip(1)[:, places].mT)


def test_random_maps_are_smooth_and_each_another_one() -> None:
    """Neighbours in a random map are alike, as in a map, and every cell comes first at times."""
    orders = torch.cat([random_order(4, (8, 8), 0, turn) for turn in range(100)])
    assert len({tuple(row) for row in orders.tolist()}) == 400
    assert all(sorted(row) == list(range(64)) for row in orders[:5].tolist())
    assert len(set(orders[:, 0].tolist())) > 50
    rank = orders.argsort(dim=1).view(-1, 8, 8).double()
    beside = np.corrcoef(rank[:, :, 1:].flatten(), rank[:, :, :-1].flatten())[0, 1]
    assert 0.4 < beside < 0.9


def test_both_curves_end_where_the_other_begins() -> None:
    model = Templates().eval()
    images, kinds, _ = pictures(model, 3)
    score = class_probability(model, kinds)
    for filling in ("blur", "mean"):
        order = relevance_order(chance(images))
        curves = compute_curves(score, images, order, LAYOUT, CURVE_SHARES, filling=filling)
        assert torch.equal(curves.deletion[:, 0], curves.insertion[:, -1])
        assert torch.equal(curves.deletion[:, -1], curves.insertion[:, 0])
        torch.testing.assert_close(curves.deletion[:, 0], score(images))
        torch.testing.assert_close(curves.deletion[:, -1], score(FILLINGS[filling](images)))


def test_equal_cells_go_in_a_random_order() -> None:
    layout = TokenLayout(grid=(5, 5), stride=1)
    order = relevance_order(Relevance(torch.zeros(4, 5, 5), layout, "by hand"))
    assert all(sorted(row) == list(range(25)) for row in order.tolist())
    assert all(row != list(range(25)) for row in order.tolist())
    assert len({tuple(row) for row in order.tolist()}) == 4
    maps = torch.zeros(1, 2, 2)
    maps[0, 1, 0], maps[0, 0, 1] = 3, math.nan  # what is no number goes last
    order = relevance_order(Relevance(maps, TokenLayout(grid=(2, 2), stride=1), "by hand"))
    assert order[0, [0, -1]].tolist() == [2, 1]


def test_fillings_keep_the_mean_and_lose_the_rest() -> None:
    images = torch.rand(2, 3, 40, 56, dtype=torch.float64)
    assert fill_mean(images).std(dim=(2, 3)).max() < 1e-12
    soft = fill_blur(images)
    assert soft.shape == images.shape
    assert (soft.std(dim=(2, 3)) < 0.2 * images.std(dim=(2, 3))).all()
    torch.testing.assert_close(soft.mean(dim=(2, 3)), images.mean(dim=(2, 3)), atol=0.03, rtol=0)
    flat = torch.full((1, 1, 16, 16), 0.3, dtype=torch.float64)
    torch.testing.assert_close(fill_blur(flat), flat)


def test_several_labels_are_scored_each_for_itself() -> None:
    linear = nn.Flatten()
    images = torch.tensor([[[[0.0, 2.0]]]])
    assert float(class_probability(linear, torch.tensor([1]))(images)) == pytest.approx(
        float(np.exp(2) / (1 + np.exp(2)))
    )
    both = class_probability(linear, torch.tensor([0]), multi_label=True)(images)
    assert float(both) == pytest.approx(0.5)


def test_many_images_are_read_some_at_a_time() -> None:
    sizes: list[int] = []

    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append(len(x))
            return x.flatten(1)

    images = torch.rand(3 * BATCH_SIZE, 1, 1, 4)
    target = torch.arange(3) % 4
    found = class_probability(Counted(), target)(images)
    expected = images.flatten(1).softmax(dim=1)[
        torch.arange(len(images)), target.repeat(BATCH_SIZE)
    ]
    torch.testing.assert_close(found, expected)
    assert max(sizes) == BATCH_SIZE
