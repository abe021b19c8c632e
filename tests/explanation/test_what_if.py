"""Edits of pixels, cell by cell, and positions that move along with their patches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.models.kinds import KINDS, perturbed, random_images
from tests.parity.test_every_family import make, picture

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.what_if import (
    blur_cells,
    cell_box,
    check_cells,
    erase_cells,
    moved_positions,
    permute_cells,
    random_order,
    shift_pixels,
)

GLOBAL = ("plain", "sine positions", "2-D positions", "relative positions", "registers")


def noise(height: int = 32, width: int = 48, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(9, 40), st.integers(9, 40))
def test_cells_cover_every_pixel_once(rows: int, columns: int, height: int, width: int) -> None:
    seen = np.zeros((height, width), dtype=int)
    for row in range(rows):
        for column in range(columns):
            seen[cell_box((row, column), (rows, columns), (height, width))] += 1
    assert (seen == 1).all()


def test_cells_of_a_layout_are_as_large_as_its_stride() -> None:
    layout = TokenLayout(grid=(2, 3), stride=16)  # the last column lies half outside
    assert cell_box((1, 2), (2, 3), (32, 40), layout) == (slice(16, 32), slice(32, 40))


def test_an_erased_cell_has_the_mean_colour_and_no_other_changes() -> None:
    pixels = noise()
    edited = erase_cells(pixels, [(1, 2)], (4, 6))
    assert (edited[8:16, 16:24] == pixels.mean(axis=(0, 1)).round()).all()
    changed = (edited != pixels).any(axis=2)
    changed[8:16, 16:24] = False
    assert not changed.any()


def test_a_blurred_cell_has_less_contrast_and_no_other_changes() -> None:
    pixels = noise(channels=1)
    edited = blur_cells(pixels, [(0, 0)], (2, 2))
    assert edited[:16, :24].std() < 0.5 * pixels[:16, :24].std()
    assert (edited[16:] == pixels[16:]).all()
    assert (edited[:, 24:] == pixels[:, 24:]).all()


def test_a_shift_there_and_back_leaves_the_middle() -> None:
    pixels = noise()
    moved = shift_pixels(pixels, 3, -2)
    assert (moved[:-2, 3:] == pixels[2:, :-3]).all()
    assert (shift_pixels(moved, -3, 2)[2:, :-3] == pixels[2:, :-3]).all()


@given(st.integers(-5, 10**9))
def test_patches_change_places_and_nothing_is_lost(seed: int) -> None:
    pixels, order = noise(), random_order(24, seed)
    moved = permute_cells(pixels, (4, 6), order)
    assert sorted(order.tolist()) == list(range(24))
    source = int(order[7])  # of row 1, column 1
    row, column = source // 6 * 8, source % 6 * 8
    assert (moved[8:16, 8:16] == pixels[row : row + 8, column : column + 8]).all()
    assert (permute_cells(moved, (4, 6), np.argsort(order)) == pixels).all()


@pytest.mark.parametrize("kind", GLOBAL)
def test_patches_that_keep_their_positions_change_nothing(kind: str) -> None:
    """Attention knows no order: with its position a patch may stand anywhere."""
    config = KINDS[kind]
    model, image = perturbed(config).double().eval(), random_images(config, 1).double()
    order = random_order(config.grid[0] * config.grid[1], 3)
    patches = image.unflatten(3, (6, 8)).unflatten(2, (4, 8)).movedim((2, 4), (1, 2))
    moved = patches.flatten(1, 2)[:, order].unflatten(1, (4, 6)).movedim((1, 2), (2, 4))
    moved = moved.reshape(image.shape)
    expected = model(image)
    assert not torch.allclose(model(moved), expected, atol=1e-6)
    with moved_positions(model, config.grid, order):
        again = model(moved)
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-10)
    assert not torch.allclose(model(moved), expected, atol=1e-6)  # nothing stays behind


def test_biases_of_beit_move_along_too() -> None:
    model, image = make("beit", torch.float64), picture("beit", torch.float64, batch=1)
    order = random_order(24, 1)
    patches = image.unflatten(3, (6, 8)).unflatten(2, (4, 8)).movedim((2, 4), (1, 2))
    moved = patches.flatten(1, 2)[:, order].unflatten(1, (4, 6)).movedim((1, 2), (2, 4))
    with moved_positions(model, (4, 6), order):
        again = model(moved.reshape(image.shape))
    torch.testing.assert_close(again, model(image), rtol=0, atol=1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["swin", "mobilevit", "coatnet"])
def test_positions_that_are_built_in_cannot_move(family: str) -> None:
    with (
        pytest.raises(UserError, match="positions cannot move with patches"),
        moved_positions(make(family), (4, 6), random_order(24, 0)),
    ):
        pass


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match=r"erase must name cells from \[0, 0\] to \[3, 5\]"):
        check_cells([(4, 0)], (4, 6), "erase")
    with pytest.raises(UserError, match="does not divide 32x48 pixels"):
        permute_cells(noise(), (5, 6), random_order(30, 0))
