"""Kernels of a BiT, or of a hybrid's ResNet, standardised once."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.inference.rewrites.sharing import Constant, replace_modules
from vitrail.layers.conv import PaddedStandardizedConv, StandardizedConv, pad_same
from vitrail.models.model import Model


class SameConv(nn.Module):
    """A convolution with SAME padding, whose kernels were standardised beforehand."""

    def __init__(self, conv: StandardizedConv) -> None:
        super().__init__()
        self.size, self.stride = conv.kernel_size[0], conv.stride[0]
        self.kernels = Constant(conv.standardized())

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return F.conv2d(pad_same(x, self.size, self.stride), self.kernels(), stride=self.stride)


class PaddedConv(nn.Module):
    """The same with as much padding on either side."""

    def __init__(self, conv: PaddedStandardizedConv) -> None:
        super().__init__()
        self.padding, self.stride = conv.kernel_size[0] // 2, conv.stride[0]
        self.kernels = Constant(conv.standardized())

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return F.conv2d(x, self.kernels(), stride=self.stride, padding=self.padding)


def bake_inside(module: nn.Module) -> nn.Module | None:
    if type(module) is StandardizedConv:
        return SameConv(module)
    return PaddedConv(module) if type(module) is PaddedStandardizedConv else None


def bake_kernels(model: Model) -> Model:
    """The model with fixed kernels where they would be standardised at every call."""
    baked = replace_modules(model, bake_inside)
    assert isinstance(baked, Model)
    return baked
