"""How weights start, where torch has no such start."""

import math

import torch
from torch import Tensor, nn


@torch.no_grad()
def lecun_normal_(weight: Tensor) -> None:
    """Truncated normal of variance 1/fan_in; what cutting at two deviations takes from the
    variance, the constant gives back."""
    std = math.sqrt(1 / weight[0].numel()) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def zero_(parameter: Tensor | None) -> None:
    """Zeros, where there is such a parameter."""
    if parameter is not None:
        nn.init.zeros_(parameter)
