"""Biases of attention by the offset, down and across, between two cells of a grid."""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.computed import Computed


class Offsets(nn.Module):
    """From a table with a row for every offset to a bias for every pair of cells.

    The table runs over offsets down, -(rows - 1) to rows - 1, and for each over offsets across.
    Rows are looked up first, then columns: two short lists instead of one for every pair.
    """

    def __init__(self, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.down, self.across = (Computed(partial(offsets, side)) for side in grid)

    def forward(self, table: Float[Tensor, "M h"]) -> Float[Tensor, "1 h N N"]:
        rows, columns = self.grid
        bias = table.mT.unflatten(1, (2 * rows - 1, 2 * columns - 1))
        bias = bias.index_select(1, self.down()).index_select(2, self.across())
        bias = bias.unflatten(1, (rows, rows)).unflatten(3, (columns, columns))
        # head, row and row of a pair, column and column -> head, one cell, the other
        return bias.transpose(2, 3).flatten(3).flatten(1, 2)[None]

    def extra_repr(self) -> str:
        return f"{self.grid[0]}x{self.grid[1]} cells"


def offsets(cells: int) -> Int[Tensor, "pairs"]:
    """The offset of every pair on a line, counted from the least.

    >>> offsets(2)
    tensor([1, 0, 2, 1])
    """
    place = torch.arange(cells, device="cpu")
    return (place[:, None] - place + cells - 1).flatten()


class RelativeBias(nn.Module):
    """One learned number a head for every offset (arXiv:2106.04803, eq. 3)."""

    def __init__(self, grid: tuple[int, int], heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty((2 * grid[0] - 1) * (2 * grid[1] - 1), heads))
        self.offsets = Offsets(grid)

    def forward(self) -> Float[Tensor, "1 h N N"]:
        return self.offsets(self.table)


class ComputedBias(nn.Module):
    """The same numbers from a small perceptron that reads the logarithm of the offset, so that it
    knows grids of any size (timm's "rmlp" models, after arXiv:2111.09883)."""

    def __init__(self, grid: tuple[int, int], heads: int, *, hidden: int) -> None:
        super().__init__()
        self.where = Computed(partial(log_offsets, grid))
        self.fc1 = nn.Linear(2, hidden)
        self.dropout = nn.Dropout(0.125)
        self.fc2 = nn.Linear(hidden, heads)
        self.offsets = Offsets(grid)

    def forward(self) -> Float[Tensor, "1 h N N"]:
        return self.offsets(self.fc2(self.dropout(F.relu(self.fc1(self.where())))))


def log_offsets(grid: tuple[int, int]) -> Float[Tensor, "M 2"]:
    """sign · log(1 + |offset|), down and across, in the order of the table; in float32, which is
    what weights were trained on, whatever the precision of a model is."""
    down, across = (torch.arange(1.0 - side, side, device="cpu") for side in grid)
    pairs = torch.cartesian_prod(down, across).float()
    return pairs.sign() * (1 + pairs.abs()).log()
