"""Norms that torch does not have, or has otherwise."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError

SMALLEST = 1e-12  # below it a vector has no direction


class BatchNorm(nn.BatchNorm2d):
    """torch's BatchNorm without its counter of batches: with a fixed momentum nobody reads it, and
    weights are numbers to compute with, all of them."""

    def __init__(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.register_buffer("num_batches_tracked", None)
        self.frozen = False  # whether training leaves its statistics alone, and uses them

    def train(self, mode: bool = True) -> Self:
        return super().train(mode and not self.frozen)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        if self.training:
            check_values(input.numel() // max(input.shape[1], 1))
        return super().forward(input)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *rest: Any
    ) -> None:
        # past torch's own, which would add the counter to a file that has none
        nn.Module._load_from_state_dict(self, state_dict, prefix, *rest)

    def reset_running_stats(self) -> None:
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)


def check_values(count: int) -> None:
    """Refuse what a batch norm in training cannot learn from: one value in each channel."""
    if count == 1:
        raise UserError(
            "a batch norm in training got one value in each channel, from a single image: give "
            "batches of two images or more, or larger images"
        )


def unit_length(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """x / |x|, computed in float32 or better; a vector without a direction stays as it is.

    torch's `normalize` divides by 1e-12 there: in float16 that is 0 / 0, and its gradient is 1e12
    times too large for half precision even where the result is zero.

    >>> unit_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float16))
    tensor([[0.6001, 0.7998],
            [0.0000, 0.0000]], dtype=torch.float16)
    """
    wide, length = with_length(x)
    return (wide / length).to(x.dtype)


def scale_to(
    x: Float[Tensor, "*B D"], scale: Float[Tensor, "..."] | float
) -> Float[Tensor, "*B D"]:
    """x / |x| · scale, to rounding: each vector is multiplied by one number, quicker than
    to divide it."""
    wide, length = with_length(x)
    return (wide * (scale / length)).to(x.dtype)


def with_length(x: Float[Tensor, "*B D"]) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B 1"]]:
    """x in float32 or better, and its length, which is 1 where there is no direction."""
    wide = x if x.dtype is torch.float64 else x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return wide, length.masked_fill(length <= SMALLEST, 1.0)
