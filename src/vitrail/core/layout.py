"""Where each token of a sequence comes from in the image."""

from dataclasses import dataclass
from typing import Literal

Sides = int | tuple[int, int]  # a side of a square, or height and width of a rectangle
# How code bases cut a grid that their windows do not divide (`layers/window.py`: `lay_windows`).
WindowPolicy = Literal["paper", "timm", "torchvision", "hf"]


def height_and_width(sides: Sides) -> tuple[int, int]:
    """
    >>> height_and_width(16), height_and_width((16, 8))
    ((16, 16), (16, 8))
    """
    return (sides, sides) if isinstance(sides, int) else sides


def simplify_sides(sides: Sides) -> Sides:
    """One number for a square.

    >>> simplify_sides((16, 16)), simplify_sides((16, 8))
    (16, (16, 8))
    """
    return sides[0] if isinstance(sides, tuple) and sides[0] == sides[1] else sides


def format_sides(sides: Sides) -> str:
    """
    >>> format_sides(16), format_sides((16, 8))
    ('16', '16x8')
    """
    return "x".join(map(str, sides)) if isinstance(sides, tuple) else str(sides)


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """How an attention's tokens lie on the image: prefix tokens first, then the grid row by row.

    `stride` is the side of one grid cell in pixels, or its height and width. Attention within
    windows sets `window` (cells a side) and `shift` (cells by which the grid was rolled up and left
    before it was cut into windows). `grid` is always the true one: where windows do not divide it,
    empty cells were added below and to the right, before it was rolled, or after it with
    `rolled_first`. So a map on windows finds its way back to the image from here alone
    (`layers/window.py`: `cells_of`).

    Attention across folds sets `fold` (cells a side of a patch): a cell meets the cells at the same
    place of every other patch, and the places, row by row, are an axis before the heads. The grid
    is one that patches divide: a map that they did not was stretched to it.

    `separable` attention (MobileViT V2) has one row of weights, which all of its queries share.
    """

    grid: tuple[int, int]
    stride: Sides
    prefix: int = 0
    window: tuple[int, int] | None = None
    shift: tuple[int, int] = (0, 0)
    rolled_first: bool = False
    fold: tuple[int, int] | None = None
    separable: bool = False

    @property
    def strides(self) -> tuple[int, int]:
        """Height and width of one grid cell in pixels."""
        return height_and_width(self.stride)

    @property
    def tokens(self) -> int:
        """How many tokens one attention sees."""
        rows, columns = self.window or self.grid
        down, across = self.fold or (1, 1)
        return self.prefix + (rows // down) * (columns // across)

    @property
    def padded(self) -> tuple[int, int]:
        """The grid with the empty cells that make its windows whole."""
        (rows, columns), (high, wide) = self.grid, self.window or (1, 1)
        return rows + -rows % high, columns + -columns % wide
