"""How far attention reaches: the mean distance between a patch and what it looks at, in pixels.

Figure 7 (right) and figure 11 of arXiv:2010.11929: for each head, the distance from the patch that
asks to every patch of the image, weighted by attention, averaged over patches and images. It is
the receptive field of a convolution, for attention.

Prefix tokens lie nowhere, so neither their rows nor their columns count. What attention is left is
brought back to a sum of one, so that the number is a mean of distances; without that
(`renormalise=False`, as Raghu et al., arXiv:2108.08810, have it) a head that looks at the class
token seems to look at its neighbours.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.propagation import attention_groups
from vitrail.layers.window import regions_of


def mean_distance(one: AttentionMap, *, renormalise: bool = True) -> Float[Tensor, "B h"]:
    """The mean attention distance of each head in each image, in pixels."""
    renormalised, raw = attention_distances(one)
    return renormalised if renormalise else raw


def attention_distances(one: AttentionMap) -> tuple[Float[Tensor, "B h"], Float[Tensor, "B h"]]:
    """With rows brought back to a sum of one, and without."""
    weights, prefix = one.grouped(), one.layout.prefix
    apart = pairwise_distances(one.layout).to(weights)
    real = (group_cells(one.layout) >= 0).to(weights)
    if not one.layout.separable:  # one row for all queries, and no prefix
        weights = weights[..., prefix:, :]
    weights = weights[..., prefix:]
    reach = (weights * (apart * real[:, None])[:, None]).sum(dim=-1)
    mass = (weights @ real[:, None, :, None])[..., 0].clamp(min=torch.finfo(weights.dtype).tiny)

    def mean(each: Float[Tensor, "B G h n"]) -> Float[Tensor, "B h"]:
        return (each * real[:, None]).sum(dim=(1, 3)) / real.sum()

    return mean(reach / mass), mean(reach)


def uniform_distance(layout: TokenLayout) -> float:
    """The mean distance of attention that looks at all it can see alike: what a head that has
    learnt nothing about places would have. Cells that a shift brought into one window, and that are
    kept apart there, do not see each other."""
    real = group_cells(layout) >= 0
    pairs = real[:, :, None] & real[:, None]
    if any(layout.shift):
        region = regions_of(layout)
        pairs &= region[:, :, None] == region[:, None]
    each = (pairwise_distances(layout) * pairs).sum(dim=-1) / pairs.sum(dim=-1).clamp(min=1)
    return float((each * real).sum() / real.sum())


def group_cells(layout: TokenLayout) -> Int[Tensor, "G n"]:
    """Where in the grid, counted in reading order, each patch of each group lies that is attended
    to together: one group, or one a window (-1 for the empty cells of padding), or one for each
    place of a fold."""
    groups = attention_groups(layout)[:, layout.prefix :]
    return torch.where(groups < 0, groups, groups - layout.prefix)


def pairwise_distances(layout: TokenLayout) -> Float[Tensor, "G n n"]:
    """Pixels between the middles of every two patches that see each other."""
    cells = group_cells(layout)
    place = torch.stack([cells // layout.grid[1], cells % layout.grid[1]], dim=-1).double()
    place = place * place.new_tensor(layout.strides)
    return (place[:, :, None] - place[:, None]).norm(dim=-1)
