"""The pointing game: the centre of the highest cell, wherever the layout has it."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.core.layout import TokenLayout
from vitrail.explanation.pointing import peak_position, pointing_game


@given(
    rows=st.integers(1, 9), columns=st.integers(1, 9), place=st.integers(0, 80),
    height=st.integers(9, 70), width=st.integers(9, 70),
)  # fmt: skip
@settings(deadline=None)
def test_pointing_asks_for_the_centre_of_the_highest_cell(
    rows: int, columns: int, place: int, height: int, width: int
) -> None:
    row, column = divmod(place % (rows * columns), columns)
    maps = torch.full((1, rows, columns), -1.0)
    maps[0, row, column] = 0.5
    y, x = peak_position(maps, (height, width))[0].tolist()
    assert row * height / rows < y < (row + 1) * height / rows
    assert column * width / columns < x < (column + 1) * width / columns
    around = torch.tensor([[math.floor(y), math.floor(x), math.floor(y) + 1, math.floor(x) + 1]])
    assert pointing_game(maps, around, (height, width)).all()
    below = around + torch.tensor([[2, 0, 2, 0]])
    assert not pointing_game(maps, below, (height, width)).any()
    assert pointing_game(maps, below, (height, width), tolerance=2).all()


def test_a_cell_that_reaches_beyond_the_image_has_its_centre_in_it() -> None:
    layout, size = TokenLayout(grid=(3, 4), stride=32), (72, 100)
    maps = torch.zeros(12, 3, 4)
    maps.view(12, 12).fill_diagonal_(1)
    found = peak_position(maps, size, layout=layout)
    expected = [(y, x) for y in (16.0, 48.0, 68.0) for x in (16.0, 48.0, 80.0, 98.0)]
    assert list(map(tuple, found.tolist())) == expected
