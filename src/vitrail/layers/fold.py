"""Folds (arXiv:2110.02178): a map cut into patches, and what stands at each place of all of them.

Phones know no tensor of more than five axes, and no im2col: batch and channels go as one axis while
rows and columns are taken apart. Sizes are written out: torch.export then finishes for any size.
"""

from jaxtyping import Float
from torch import Tensor


def unfold(x: Float[Tensor, "B D H W"], patch: int) -> Float[Tensor, "B D P N"]:
    """P the place in a patch and N the patch, both row by row.

    >>> unfold(torch.arange(8.0).view(1, 1, 2, 4), patch=2)[0, 0].tolist()
    [[0.0, 2.0], [1.0, 3.0], [4.0, 6.0], [5.0, 7.0]]
    """
    batch, dim, height, width = x.shape
    rows, columns = height // patch, width // patch
    cells = x.reshape(batch * dim, rows, patch, columns, patch)
    return cells.permute(0, 2, 4, 1, 3).reshape(batch, dim, patch * patch, rows * columns)


def fold(x: Float[Tensor, "B D P N"], patch: int, rows: int) -> Float[Tensor, "B D H W"]:
    """The map again, with `rows` rows of patches."""
    batch, dim, _, count = x.shape
    columns = count // rows
    cells = x.reshape(batch * dim, patch, patch, rows, columns)
    return cells.permute(0, 3, 1, 4, 2).reshape(batch, dim, rows * patch, columns * patch)


def round_up(side: int, patch: int) -> int:
    """The side of a map, stretched until patches divide it.

    >>> round_up(7, 2)
    8
    """
    return -(-side // patch) * patch
