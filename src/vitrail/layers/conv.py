"""Convolutions that standardise their weights (arXiv:1903.10520), and TensorFlow's padding."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

Standardize = Literal["jax", "timm", "bit"]
TINY = {"timm": 1e-8, "bit": 1e-10}  # added to a variance before its root is taken


class StandardizedConv(nn.Conv2d):
    """A convolution whose kernels are brought to mean 0 and deviation 1 before use; SAME padding,
    no bias.

    Three published formulas differ in the last digits, and weights belong to one of them: "jax"
    divides by (std + 1e-5), "timm" by sqrt(variance + 1e-8), "bit" by sqrt(variance + 1e-10).
    """

    def __init__(
        self,
        channels: int,
        out: int,
        size: int,
        stride: int = 1,
        *,
        standardize: Standardize = "jax",
    ) -> None:
        super().__init__(channels, out, size, stride, bias=False)
        self.standardize = standardize

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.standardized(), stride=self.stride)

    def standardized(self) -> Float[Tensor, "D C p q"]:
        # variances, and 1e-8, are below what float16 can hold
        weight = self.weight if self.weight.dtype is torch.float64 else self.weight.float()
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
        if self.standardize == "jax":
            standardized = (weight - mean) / (variance.sqrt() + 1e-5)
        else:
            standardized = (weight - mean) * (variance + TINY[self.standardize]).rsqrt()
        return standardized.to(self.weight.dtype)


class PaddedStandardizedConv(StandardizedConv):
    """The same with as much padding on either side, whatever the size of the image: where it is
    even and the stride is 2, SAME padding has none on the left."""

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        padding = self.kernel_size[0] // 2
        return F.conv2d(x, self.standardized(), stride=self.stride, padding=padding)


class MaxPoolSame(nn.Module):
    """Max pooling with SAME padding; what lies outside never wins."""

    def __init__(self, size: int, stride: int) -> None:
        super().__init__()
        self.size, self.stride = size, stride

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C rows columns"]:
        return F.max_pool2d(
            pad_same(x, self.size, self.stride, value=-torch.inf), self.size, self.stride
        )


def pad_same(
    x: Float[Tensor, "B C H W"], size: int, stride: int, value: float = 0.0
) -> Float[Tensor, "B C H2 W2"]:
    """Pad so that the output has ceil(side / stride) cells; an odd pixel goes to the bottom and
    right."""
    missing = [
        max((-(-side // stride) - 1) * stride + size - side, 0) for side in (x.shape[3], x.shape[2])
    ]
    if not any(missing):
        return x
    left_right, top_bottom = ((gap // 2, gap - gap // 2) for gap in missing)
    return F.pad(x, (*left_right, *top_bottom), value=value)
