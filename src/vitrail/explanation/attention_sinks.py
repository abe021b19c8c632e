"""Attention sinks: tokens that everybody looks at, and patches whose features are far too large.

Large models put what they know of the whole image into a few patches that show nothing, whose
norms are then many times those of the others; registers are prefix tokens made to take that over
(arXiv:2309.16588).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.distance import group_cells
from vitrail.explanation.propagation import attention_groups
from vitrail.explanation.tokens import Tokens

SINK = 5.0  # times its even share of attention
MAX_SINKS = 8  # that are listed for one image
OUTLIER = 3.0  # times the median norm of the patches of one image


@dataclass(frozen=True)
class ReceivedAttention:
    """To which tokens patches look: the share that goes to each prefix token, and how many times
    its even share the most looked-at patch gets."""

    prefix: Float[Tensor, "B h P"]
    strongest: Float[Tensor, "B h"]


def received_attention(one: AttentionMap) -> ReceivedAttention:
    """How the attention of patches is spread; within windows each one has its own even share."""
    weights, prefix = one.grouped(), one.layout.prefix
    real = (group_cells(one.layout) >= 0).to(weights)
    if not one.layout.separable:
        weights = weights[..., prefix:, :]
        queries = real[:, None, :, None]
    else:
        queries = torch.ones_like(real[:, None, :1, None])
    # mean over the patches as queries; padding has queries too, which do not count
    each = (weights * queries).sum(dim=-2) / queries.sum(dim=-2).clamp(min=1)
    to_prefix = each[..., :prefix].mean(dim=1)
    patches = each[..., prefix:] * real[:, None]
    times = patches * real.sum(dim=-1)[:, None, None]
    return ReceivedAttention(to_prefix, times.amax(dim=(1, 3)))


def sink_tokens(one: AttentionMap, most: int = MAX_SINKS) -> list[tuple[int, float]]:
    """Tokens of the first image that patches look at far more than evenly, in the mean of all
    heads: where they are in the sequence, and how many times their even share they get.

    >>> from vitrail.core.layout import TokenLayout
    >>> sink_tokens(AttentionMap(torch.eye(2)[None, None], TokenLayout(grid=(1, 2), stride=8)))
    []
    """
    groups, weights = attention_groups(one.layout), one.grouped()[0].mean(dim=1)
    asking = (groups >= one.layout.prefix).to(weights)
    asking = asking[:, :1] * 0 + 1 if one.layout.separable else asking
    received = (asking[:, None] @ weights)[:, 0] / asking.sum(dim=-1, keepdim=True).clamp(min=1)
    times = received * (groups >= 0).to(received).sum(dim=-1, keepdim=True)
    times = times.where(groups >= 0, 0).flatten().nan_to_num(0, 0, 0)
    best = times.topk(min(most, len(times)))
    tokens = groups.flatten()[best.indices].tolist()
    found = zip(tokens, best.values.tolist(), strict=True)
    return [(token, share) for token, share in found if share >= SINK]


@dataclass(frozen=True)
class FeatureNorms:
    """Lengths of the features of one step, a number for each image."""

    median: Float[Tensor, " B"]
    high: Float[Tensor, " B"]  # of a hundred patches one is longer
    most: Float[Tensor, " B"]
    outliers: Float[Tensor, " B"]  # share of the patches
    prefix: Float[Tensor, "B P"]


def feature_norms(tokens: Tokens) -> FeatureNorms:
    """Outliers are patches longer than `OUTLIER` times the median of their image."""
    lengths = tokens.grid.flatten(1, 2).double().norm(dim=-1)
    median = lengths.quantile(0.5, dim=1)
    outliers = (lengths > OUTLIER * median[:, None]).double().mean(dim=1)
    high, most = lengths.quantile(0.99, dim=1), lengths.amax(dim=1)
    return FeatureNorms(median, high, most, outliers, tokens.prefix.double().norm(dim=-1))


def prefix_names(model: nn.Module, prefix: int) -> tuple[str, ...]:
    """What the prefix tokens are called, where the model says so by its parameters."""
    kinds = {"cls": "class token", "distillation": "distillation token", "registers": "register"}
    names: list[str] = []
    for attribute, kind in kinds.items():
        token = getattr(model, attribute, None)
        count = token.shape[1] if isinstance(token, Tensor) and token.ndim == 3 else 0
        names += [kind if count == 1 else f"{kind} {number + 1}" for number in range(count)]
    return tuple(names) if len(names) == prefix else tuple(f"token {i + 1}" for i in range(prefix))
