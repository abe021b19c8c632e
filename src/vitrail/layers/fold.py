"""Folds (arXiv:2110.02178): a map cut into patches, and what stands at each place of all of them.

Phones know no tensor of more than five axes, and no im2col: batch and channels go as one axis while
rows and columns are taken apart.
"""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor


def unfold(x: Float[Tensor, "B D H W"], patch: int) -> Float[Tensor, "B D P N"]:
    """P the place in a patch and N the patch, both row by row.

    >>> unfold(torch.arange(8.0).view(1, 1, 2, 4), patch=2)[0, 0].tolist()
    [[0.0, 2.0], [1.0, 3.0], [4.0, 6.0], [5.0, 7.0]]
    """
    places = rearrange(
        x.flatten(0, 1),
        "BD (rows p) (columns q) -> BD (p q) (rows columns)",
        p=patch,
        q=patch,
    )
    return places.unflatten(0, x.shape[:2])


def fold(x: Float[Tensor, "B D P N"], patch: int, rows: int) -> Float[Tensor, "B D H W"]:
    """The map again, with `rows` rows of patches."""
    cells = rearrange(
        x.flatten(0, 1),
        "BD (p q) (rows columns) -> BD (rows p) (columns q)",
        p=patch,
        q=patch,
        rows=rows,
    )
    return cells.unflatten(0, x.shape[:2])


def round_up(side: int, patch: int) -> int:
    """The side of a map, stretched until patches divide it.

    >>> round_up(7, 2)
    8
    """
    return -(-side // patch) * patch
