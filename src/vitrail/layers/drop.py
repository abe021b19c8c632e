"""Regularisers that act on whole branches of a block."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth (arXiv:1603.09382): in training a sample's branch is dropped with
    probability `rate`, and the others are scaled so that the mean stays."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        kept = torch.bernoulli(x.new_full((x.shape[0], *[1] * (x.ndim - 1)), keep))
        return x * kept / keep

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class LayerScale(nn.Module):
    """A learned factor per channel, small at first (arXiv:2103.17239)."""

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.factor = nn.Parameter(torch.empty(dim))

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return x * self.factor
