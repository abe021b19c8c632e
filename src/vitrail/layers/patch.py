"""Cutting an image, or the feature map of a stem, into patches and embedding each one."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.layout import Sides, height_and_width
from vitrail.layers.linear import linear


class PatchEmbedding(nn.Module):
    """A strided convolution: every patch, flattened, through one linear layer, in reading order."""

    def __init__(self, channels: int, dim: int, patch_size: Sides, *, bias: bool = True) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, dim, patch_size, patch_size, bias=bias)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        return self.projection(x).flatten(2).mT


class NormedPatchEmbedding(nn.Module):
    """The same with a LayerNorm on the patch's pixels and one on its embedding (vit-pytorch)."""

    def __init__(
        self, channels: int, dim: int, patch_size: Sides, *, bias: bool = True, eps: float
    ) -> None:
        super().__init__()
        height, width = height_and_width(patch_size)
        self.pixel_norm = nn.LayerNorm(channels * height * width, eps=eps)
        self.projection = nn.Conv2d(channels, dim, patch_size, patch_size, bias=bias)
        self.norm = nn.LayerNorm(dim, eps=eps)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        height, width = self.projection.kernel_size
        pixels = flatten_patches(x, height, width)
        kernel = self.projection.weight.flatten(1)
        return self.norm(linear(self.pixel_norm(pixels), kernel, self.projection.bias))


def flatten_patches(
    x: Float[Tensor, "B C H W"], height: int, width: int
) -> Float[Tensor, "B N pixels"]:
    """Patches in reading order, each channel by channel, row by row. No view has more than four
    axes, which some formats want.

    >>> flatten_patches(torch.arange(8.0).view(1, 1, 2, 4), 2, 2)
    tensor([[[0., 1., 4., 5.],
             [2., 3., 6., 7.]]])
    """
    batch, channels, rows, columns = *x.shape[:2], x.shape[2] // height, x.shape[3] // width
    lines = x.reshape(batch, channels, rows, height * x.shape[3]).transpose(1, 2)
    cells = lines.reshape(batch * rows, channels * height, columns, width).transpose(1, 2)
    return cells.reshape(batch, rows * columns, channels * height * width)
