"""Convolutions with channels innermost in memory, for eager PyTorch on a CPU.

oneDNN then needs no copies of maps in a layout of its own, and a 1x1 convolution is a matrix
product of the map as it lies there.
"""

from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.rewrites.sharing import make_conv, make_linear, replace_modules
from vitrail.models.model import Model


class PointwiseProduct(nn.Module):
    """A 1x1 convolution as a matrix product."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        return self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def use_channels_last(model: Model) -> Model:
    """The model with its convolutions that way, where some have patches that overlap. The first
    gives the map this layout, and the others keep it."""
    if not any(is_overlapping(module) for module in model.modules()):
        return model

    def replace(module: nn.Module) -> nn.Module | None:
        if is_pointwise(module):
            return PointwiseProduct(make_linear(module.weight.flatten(1), module.bias))
        if type(module) is nn.Conv2d:
            weight = module.weight.contiguous(memory_format=torch.channels_last)
            return make_conv(module, weight, module.bias)
        return None

    changed = replace_modules(model, replace)
    assert isinstance(changed, Model)
    return changed


def is_overlapping(module: nn.Module) -> bool:
    return type(module) is nn.Conv2d and module.kernel_size > module.stride


def is_pointwise(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    if type(module) is not nn.Conv2d or module.padding != (0, 0):
        return False
    return (module.kernel_size, module.stride, module.groups) == ((1, 1), (1, 1), 1)
