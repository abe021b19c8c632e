"""Patches embedded by one matrix product instead of a strided convolution."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.rewrites.sharing import make_linear, replace_modules
from vitrail.layers.patch import PatchEmbedding, flatten_patches
from vitrail.models.model import Model

LEAST = 256  # values in a patch from which the product is quicker, measured with one thread


class PatchProduct(nn.Module):
    """Every patch, flattened, through one linear layer."""

    def __init__(self, linear: nn.Linear, patch_size: tuple[int, int]) -> None:
        super().__init__()
        self.linear, self.patch_size = linear, patch_size

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        return self.linear(flatten_patches(x, *self.patch_size))


def multiply_patches(model: Model) -> Model:
    """The model with its patch embedding as a matrix product over the same weights."""

    def multiply(module: nn.Module) -> nn.Module | None:
        if type(module) is not PatchEmbedding or type(module.projection) is not nn.Conv2d:
            return None
        conv = module.projection
        if conv.weight[0].numel() < LEAST or conv.kernel_size == (1, 1):
            return None
        height, width = conv.kernel_size
        return PatchProduct(make_linear(conv.weight.flatten(1), conv.bias), (height, width))

    multiplied = replace_modules(model, multiply)
    assert isinstance(multiplied, Model)
    return multiplied
