"""Attention among merged tokens, and the way back from them to the tokens they were merged from.

A record of merges is a number for every original token: the place of the merged token that it
became a part of. So what a merged token has can be handed to all of its parts.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.attention import Attend


class MergedAttend(Attend):
    """`Attend` among M merged tokens. `group` says which of them each of the N tokens of the layout
    is a part of (None: every token is itself), for whoever observes the attention."""

    def forward(
        self,
        q: Float[Tensor, "B h m d"],
        k: Float[Tensor, "B h M d"],
        v: Float[Tensor, "B h M d"],
        bias: Float[Tensor, "#B #h #m M"] | None = None,
        scale: float | None = None,
        group: Int[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B h m d"]:
        return super().forward(q, k, v, bias, scale)


class Unmerge(nn.Module):
    """Every original token again: its value is that of the merged token that it is a part of."""

    def forward(
        self, x: Float[Tensor, "B M D"], group: Int[Tensor, "B N"] | None
    ) -> Float[Tensor, "B N D"]:
        if group is None:
            return x
        return x.gather(1, group[:, :, None].expand(-1, -1, x.shape[2]))


def membership(group: Int[Tensor, "B N"], count: int) -> Int[Tensor, "B M N"]:
    """One where token n is a part of merged token m, of which there are `count`."""
    return F.one_hot(group, count).mT


def shares(group: Int[Tensor, "B N"], like: Float[Tensor, "B ... M"]) -> Float[Tensor, "B M N"]:
    """What each token is of its merged token: one part of as many as were merged."""
    parts = membership(group, like.shape[-1]).to(like.dtype)
    return parts / parts.sum(dim=2, keepdim=True)


def unmerge_attention(
    weights: Float[Tensor, "B h m M"], group: Int[Tensor, "B N"]
) -> Float[Tensor, "B h n N"]:
    """Attention among merged tokens as attention among the tokens they were merged from: tokens of
    one group attend alike, and what a group receives is divided evenly among its parts. Rows keep
    their sums. Where a few tokens alone attended, their rows stay as many.

    >>> merged = torch.tensor([[[[0.4, 0.6], [1.0, 0.0]]]])
    >>> unmerge_attention(merged, torch.tensor([[0, 1, 1]]))[0, 0]
    tensor([[0.4000, 0.3000, 0.3000],
            [1.0000, 0.0000, 0.0000],
            [1.0000, 0.0000, 0.0000]])
    """
    spread = weights @ shares(group, weights)[:, None]
    if weights.shape[-2] != weights.shape[-1]:
        return spread
    rows = group[:, None, :, None].expand(-1, weights.shape[1], -1, spread.shape[-1])
    return spread.gather(2, rows)


def gather_weights(
    spread: Float[Tensor, "B h N N"], group: Int[Tensor, "B N"], count: int
) -> Float[Tensor, "B h M M"]:
    """The inverse of `unmerge_attention`: the mean over the parts that attend, the sum over those
    that are attended to."""
    parts = membership(group, count).to(spread.dtype)
    mean = parts / parts.sum(dim=2, keepdim=True)
    return mean[:, None] @ spread @ parts.mT[:, None]


def mean_bias(
    bias: Float[Tensor, "1 h N N"], group: Int[Tensor, "B N"], count: int
) -> Float[Tensor, "B h M M"]:
    """A bias between tokens as one between merged tokens: the mean over all pairs of their parts.

    Were the parts of a group equal but for their places, a query would give a group of keys the
    weight exp(q k) · Σ exp(bias); its logarithm is log(size) + log(mean(exp(bias))), and the mean
    of the bias is that to first order. The parts of a query differ in their bias too, and share
    one row: its mean.
    """
    mean = shares(group, bias.new_empty(1, count))
    return mean[:, None] @ bias @ mean.mT[:, None]


def log_sizes(sizes: Float[Tensor, "B M"]) -> Float[Tensor, "B 1 1 M"]:
    """The bias of proportional attention (arXiv:2210.09461, eq. 1): a token that stands for several
    counts as often as they would have."""
    return torch.log(sizes)[:, None, None, :]
