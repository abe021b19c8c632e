"""Kernels of a hybrid's ResNet standardised once."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.inference.rewrites.sharing import Constant, replace_modules
from vitrail.layers.conv import StandardizedConv, pad_same
from vitrail.models.model import Model


class SameConv(nn.Module):
    """A convolution with SAME padding, whose kernels were standardised beforehand."""

    def __init__(self, conv: StandardizedConv) -> None:
        super().__init__()
        self.size, self.stride = conv.kernel_size[0], conv.stride[0]
        self.kernels = Constant(conv.standardized())

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D rows columns"]:
        return F.conv2d(pad_same(x, self.size, self.stride), self.kernels(), stride=self.stride)


def bake_kernels(model: Model) -> Model:
    """The model with fixed kernels where they would be standardised at every call."""
    baked = replace_modules(
        model, lambda module: SameConv(module) if type(module) is StandardizedConv else None
    )
    assert isinstance(baked, Model)
    return baked
