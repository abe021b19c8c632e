"""What a model knows of places: how alike its positions are, and its biases by offset."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.layout import TokenLayout
from vitrail.layers.window import APART


def position_similarity(
    vectors: Float[Tensor, "rows columns D"],
) -> Float[Tensor, "r c rows columns"]:
    """The cosine between every two places: a tile for each place, and in the tile every other
    place (arXiv:2010.11929, figure 7, centre)."""
    flat = F.normalize(vectors.flatten(0, 1).double(), dim=-1, eps=1e-300)
    rows, columns = vectors.shape[:2]
    return (flat @ flat.mT).unflatten(1, (rows, columns)).unflatten(0, (rows, columns))


@torch.no_grad()
def position_table(model: nn.Module, layout: TokenLayout) -> Float[Tensor, "rows columns D"] | None:
    """The vectors that are added to the patches, if the model has a table of positions; those of
    prefix tokens, which come first, are left out."""
    positions = getattr(model, "positions", None)
    if not isinstance(positions, nn.Module):
        return None
    rows, columns = layout.grid
    table: Tensor = positions()
    return table.detach()[0, -rows * columns :].unflatten(0, layout.grid)


def shared_bias(bias: Float[Tensor, "groups h N N"], layout: TokenLayout) -> Float[Tensor, "h n n"]:
    """What is added to the logits of two patches, whatever the window or the image.

    Windows that were shifted keep cells apart that are no neighbours: an offset's bias is the one
    of a window that does not. Biases that depend on the query are averaged over images.
    """
    one = bias.amax(dim=0) if layout.window is not None else bias.mean(dim=0)
    return one[:, layout.prefix :, layout.prefix :]


def bias_by_offset(
    bias: Float[Tensor, "h n n"], side: tuple[int, int]
) -> Float[Tensor, "h down across"]:
    """The mean bias for every offset from the patch that asks to the one that is looked at: the
    middle of a tile is the patch itself, above it lies what is above. Tables with a number for each
    offset come out as they are."""
    rows, columns = side
    place = torch.arange(rows * columns, device=bias.device)
    row, column = place // columns, place % columns
    down = row - row[:, None] + rows - 1  # the key's less the query's
    across = column - column[:, None] + columns - 1
    index = (down * (2 * columns - 1) + across).flatten()
    size = (2 * rows - 1) * (2 * columns - 1)
    heads = len(bias)
    total = bias.new_zeros(heads, size).index_add_(1, index, bias.reshape(heads, -1))
    count = bias.new_zeros(size).index_add_(0, index, torch.ones_like(bias[0]).flatten())
    return (total / count).view(heads, 2 * rows - 1, 2 * columns - 1)


def is_masked(bias: Tensor) -> Tensor:
    """Which entries of a bias keep two cells apart that are no neighbours."""
    return bias < APART / 2
