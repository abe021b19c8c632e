"""Patches embedded by one matrix product instead of a strided convolution."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.rewrites.sharing import make_linear, replace_modules
from vitrail.layers.patch import PatchEmbedding
from vitrail.models.model import Model

LEAST = 256  # values in a patch from which the product is quicker, measured with one thread


class PatchProduct(nn.Module):
    """Every patch, flattened, through one linear layer. No view has more than four axes."""

    def __init__(self, linear: nn.Linear, patch_size: int) -> None:
        super().__init__()
        self.linear, self.patch_size = linear, patch_size

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        (batch, channels, height, width), side = x.shape, self.patch_size
        rows, columns = height // side, width // side
        lines = x.reshape(batch, channels, rows, side * width).transpose(1, 2)
        cells = lines.reshape(batch * rows, channels * side, columns, side).transpose(1, 2)
        return self.linear(cells.reshape(batch, rows * columns, channels * side * side))


def multiply_patches(model: Model) -> Model:
    """The model with its patch embedding as a matrix product over the same weights."""

    def multiply(module: nn.Module) -> nn.Module | None:
        if type(module) is not PatchEmbedding or type(module.projection) is not nn.Conv2d:
            return None
        conv = module.projection
        if conv.weight[0].numel() < LEAST or conv.kernel_size == (1, 1):
            return None
        return PatchProduct(make_linear(conv.weight.flatten(1), conv.bias), conv.kernel_size[0])

    multiplied = replace_modules(model, multiply)
    assert isinstance(multiplied, Model)
    return multiplied
