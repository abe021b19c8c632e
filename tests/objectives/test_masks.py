"""Masks: exact counts on every grid, the distributions of the papers, and draws that no batch,
order or worker can change."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # ships no types
from torch import Tensor

from vitrail import UserError
from vitrail.objectives.masks import (
    blockwise_mask,
    fitting_unit,
    hidden,
    in_pixels,
    lay_blocks,
    random_mask,
    shape_blocks,
    shuffled,
    unit_mask,
    units_of,
    veil,
)

MANY = np.arange(20_000)
sides = st.integers(1, 20)
grids = st.tuples(sides, sides).filter(lambda grid: math.prod(grid) > 1)
seeds = st.integers(0, 2**40)
samples = st.lists(st.integers(0, 2**40), max_size=6).map(lambda some: np.array(some, np.int64))
ratios = st.floats(0.01, 0.99)


def test_blockwise_masks_hide_exactly_75_of_196() -> None:
    mask = blockwise_mask((14, 14), 75, seed=0, epoch=0, indices=MANY)
    assert mask.dtype == torch.bool
    assert mask.shape == (20_000, 196)
    assert (mask.sum(dim=1) == 75).all()


def test_blocks_alone_hide_what_the_first_version_was_measured_to_hide() -> None:
    """Two thirds of its masks are complete, and the mean is 74.47 cells."""
    blocks = lay_blocks((14, 14), 75, seed=1, epoch=0, indices=MANY)
    counts = blocks.sum(axis=(1, 2))
    deviation = math.sqrt(0.666 * 0.334 / len(MANY))
    assert abs((counts == 75).mean() - 0.666) < 3 * deviation + 0.0005  # three digits are known
    assert abs(counts.mean() - 74.47) < 3 * counts.std() / math.sqrt(len(MANY)) + 0.005
    assert counts.max() == 75
    topped = blockwise_mask((14, 14), 75, seed=1, epoch=0, indices=MANY).numpy()
    assert topped[blocks.reshape(topped.shape)].all(), "what blocks hide stays hidden"


def test_blocks_have_the_areas_and_proportions_of_the_paper() -> None:
    """Large ones, so that whole cells do not matter: the area is uniform between both ends, and so
    is the logarithm of height over width between 0.3 and its inverse."""
    chances = np.random.default_rng(0).uniform(size=(20_000, 2))
    height, width = shape_blocks(chances, 10**8, np.full(20_000, 5 * 10**8))
    area = stats.uniform(10**8, 4 * 10**8)
    proportion = stats.uniform(math.log(0.3), -2 * math.log(0.3))
    assert stats.kstest(height * width, area.cdf).pvalue > 0.01
    assert stats.kstest(np.log(height / width), proportion.cdf).pvalue > 0.01
    assert abs(stats.spearmanr(height * width, height / width).statistic) < 0.03


def test_blocks_lie_where_a_plain_loop_puts_them() -> None:
    """How often each cell is hidden, against the algorithm as it is printed."""
    loops = np.mean([printed_algorithm(random.Random(i)) for i in range(4000)], axis=0)
    ours = lay_blocks((14, 10), 50, seed=2, epoch=0, indices=MANY).mean(axis=0)
    spread = np.sqrt(loops * (1 - loops) * (1 / 4000 + 1 / len(MANY)))
    assert np.abs(loops - ours).max() < 4.5 * spread.max()  # the largest of 140
    assert ours[7, 5] > 1.5 * ours[0, 0], "corners are hidden less often than the middle"


def test_no_block_spans_a_side() -> None:
    """So that a single row or column has none at all, and its mask is made of single cells."""
    for grid in [(1, 20), (20, 1)]:
        assert not lay_blocks(grid, 10, least=1, seed=0, epoch=0, indices=MANY[:100]).any()
        single = blockwise_mask(grid, 10, seed=0, epoch=0, indices=MANY)
        assert (single.double().mean(dim=0) - 0.5).abs().max() < 4 * 0.5 / math.sqrt(len(MANY))


def printed_algorithm(
    chance: random.Random, rows: int = 14, columns: int = 10, count: int = 50
) -> NDArray[np.float64]:
    mask = np.zeros((rows, columns))
    while mask.sum() < count:
        left = count - mask.sum()
        for _ in range(10):
            area = chance.uniform(16, left)
            ratio = math.exp(chance.uniform(math.log(0.3), math.log(1 / 0.3)))
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height >= rows or width >= columns:
                continue
            top, start = chance.randint(0, rows - height), chance.randint(0, columns - width)
            block = mask[top : top + height, start : start + width]
            if 0 < block.size - block.sum() <= left:
                block[:] = 1
                break
        else:
            return mask
    return mask


@given(grid=grids, share=st.floats(0, 1), least=st.integers(1, 400), seed=seeds, indices=samples)
def test_blockwise_masks_are_exact_on_every_grid(
    grid: tuple[int, int], share: float, least: int, seed: int, indices: NDArray[np.int64]
) -> None:
    cells = math.prod(grid)
    count = 1 + round(share * (cells - 2))
    mask = blockwise_mask(grid, count, least=least, seed=seed, epoch=3, indices=indices)
    assert mask.shape == (len(indices), cells)
    assert (mask.sum(dim=1) == count).all()


@given(cells=st.integers(2, 300), ratio=ratios, seed=seeds, indices=samples)
def test_random_masks_are_exact_and_follow_the_order(
    cells: int, ratio: float, seed: int, indices: NDArray[np.int64]
) -> None:
    mask = random_mask(cells, ratio, seed=seed, epoch=1, indices=indices)
    order = torch.from_numpy(shuffled(cells, seed=seed, epoch=1, indices=indices))
    assert torch.equal(order.sort(dim=1).values, torch.arange(cells).expand_as(order))
    in_order = mask.gather(1, order)
    seen = cells - hidden(ratio, cells)
    assert not in_order[:, :seen].any()
    assert in_order[:, seen:].all()
    assert 1 <= seen < cells
    assert abs(ratio * cells - hidden(ratio, cells)) <= 1


@given(
    grid=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    patch=st.sampled_from([2, 4, 14, 16]),
    times=st.integers(1, 5),
    ratio=ratios,
    seed=seeds,
    indices=samples,
)
def test_units_are_hidden_whole_and_in_exact_number(
    grid: tuple[int, int],
    patch: int,
    times: int,
    ratio: float,
    seed: int,
    indices: NDArray[np.int64],
) -> None:
    rows, columns = grid
    units, count = rows * columns, math.ceil(ratio * rows * columns)
    fine = rows * times, columns * times

    def draw() -> Tensor:
        return unit_mask(
            fine, patch, unit=times * patch, ratio=ratio, seed=seed, epoch=0, indices=indices
        )

    if count == units:
        with pytest.raises(UserError, match="nothing is left to see"):
            draw()
        return
    cut = draw().view(len(indices), rows, times, columns, times)
    whole = cut[:, :, :1, :, :1]
    assert torch.equal(cut, whole.expand_as(cut))
    assert (whole.sum(dim=(1, 2, 3, 4)) == count).all()


@given(grid=grids, seed=seeds, epoch=st.integers(0, 1000), indices=samples)
def test_a_sample_draws_the_same_in_every_batch(
    grid: tuple[int, int], seed: int, epoch: int, indices: NDArray[np.int64]
) -> None:
    cells = math.prod(grid)

    def draws(some: NDArray[np.int64]) -> list[Tensor]:
        return [
            random_mask(cells, 0.75, seed=seed, epoch=epoch, indices=some),
            blockwise_mask(grid, max(cells // 3, 1), seed=seed, epoch=epoch, indices=some),
            unit_mask(grid, 16, unit=16, ratio=0.4, seed=seed, epoch=epoch, indices=some),
        ]

    if math.ceil(0.4 * cells) == cells:
        return
    together = draws(indices)
    backwards = draws(indices[::-1].copy())
    for mask, turned in zip(together, backwards, strict=True):
        assert torch.equal(mask, turned.flip(0))
    for place, index in enumerate(indices):
        for mask, alone in zip(together, draws(np.array([index])), strict=True):
            assert torch.equal(mask[place], alone[0])


def test_every_seed_epoch_and_index_draws_for_itself() -> None:
    def masks(seed: int, epoch: int, index: int) -> list[tuple[bool, ...]]:
        keys: dict[str, Any] = {"seed": seed, "epoch": epoch, "indices": np.array([index])}
        return [
            tuple(random_mask(196, 0.5, **keys)[0].tolist()),
            tuple(blockwise_mask((14, 14), 75, **keys)[0].tolist()),
            tuple(unit_mask((14, 14), 16, **keys)[0].tolist()),
        ]

    every = [masks(s, e, i) for s in range(3) for e in range(3) for i in range(3)]
    for kind in zip(*every, strict=True):
        assert len(set(kind)) == 27


def test_every_cell_is_hidden_equally_often() -> None:
    for mask, share in [
        (random_mask(49, 0.75, seed=0, epoch=0, indices=MANY), 37 / 49),
        (unit_mask((7, 7), 32, seed=0, epoch=0, indices=MANY), 30 / 49),
    ]:
        often = mask.double().mean(dim=0)
        assert (often - share).abs().max() < 4 * math.sqrt(share * (1 - share) / len(MANY))


def test_units_for_images_of_every_size() -> None:
    assert fitting_unit((14, 14), 16) == 32
    assert fitting_unit((48, 48), 4) == 32, "SimMIM's own: Swin on 192 pixels"
    assert fitting_unit((16, 16), 14) == 28
    assert fitting_unit((13, 14), 16) == 16, "13 rows have no larger units"
    assert fitting_unit((8, 8), 4) == 8
    assert fitting_unit((2, 2), 4) == 4
    assert fitting_unit((4, 4), 64) == 64
    assert units_of((12, 18), 4) == [4, 8, 12, 24]


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda keys: random_mask(9, 1.0, **keys), "mask ratio must be between 0 and 1, got 1.0"),
        (lambda keys: random_mask(1, 0.5, **keys), "1 patch would hide all of the image or noth"),
        (lambda keys: blockwise_mask((3, 4), 12, **keys), "12 cells does not fit .*so 1 to 11"),
        (lambda keys: blockwise_mask((3, 4), 0, **keys), "0 cells does not fit a grid of 3 x 4"),
        (lambda keys: blockwise_mask((1, 1), 1, **keys), "hide at least one and leave one to see"),
        (lambda keys: unit_mask((14, 14), 16, unit=48, **keys), "48 .* 224 x 224 .* use 16, 32, 1"),
        (lambda keys: unit_mask((14, 14), 16, unit=24, **keys), "whole patches of 16: use 16, 32"),
        (lambda keys: unit_mask((14, 14), 16, ratio=0.0, **keys), "must be between 0 and 1"),
        (lambda keys: unit_mask((8, 8), 4, **keys), "0.6 of 1 units of 32 pixels is all of them"),
    ],
)
def test_what_cannot_be_masked_is_said_in_a_sentence(
    draw: Callable[[dict[str, Any]], Tensor], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        draw({"seed": 0, "epoch": 0, "indices": np.arange(2)})


def test_a_mask_in_pixels() -> None:
    mask = torch.tensor([[True, False, False, False, False, True]])
    pixels = in_pixels(mask, (2, 3), 4)
    assert pixels.shape == (1, 1, 8, 12)
    assert pixels.sum() == 32
    assert pixels[0, 0, :4, :4].all()
    assert pixels[0, 0, 4:, 8:].all()
    veiled = veil(torch.ones(1, 3, 8, 12), pixels)
    assert torch.equal(veiled, (~pixels).float().expand(1, 3, 8, 12))
