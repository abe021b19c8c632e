"""Where each token of a sequence comes from in the image."""

from dataclasses import dataclass
from typing import Literal

# How code bases cut a grid that their windows do not divide (`layers/window.py`: `lay_windows`).
WindowPolicy = Literal["paper", "timm", "torchvision", "hf"]


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """How an attention's tokens lie on the image: prefix tokens first, then the grid row by row.

    `stride` is the side of one grid cell in pixels. Attention within windows sets `window` (cells
    a side) and `shift` (cells by which the grid was rolled up and left before it was cut into
    windows). `grid` is always the true one: where windows do not divide it, empty cells were added
    below and to the right, before it was rolled, or after it with `rolled_first`. So a map on
    windows finds its way back to the image from here alone (`layers/window.py`: `cells_of`).

    Attention across folds sets `fold` (cells a side of a patch): a cell meets the cells at the same
    place of every other patch, and the places, row by row, are an axis before the heads. The grid
    is one that patches divide: a map that they did not was stretched to it.

    `separable` attention (MobileViT V2) has one row of weights, which all of its queries share.
    """

    grid: tuple[int, int]
    stride: int
    prefix: int = 0
    window: tuple[int, int] | None = None
    shift: tuple[int, int] = (0, 0)
    rolled_first: bool = False
    fold: tuple[int, int] | None = None
    separable: bool = False

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
