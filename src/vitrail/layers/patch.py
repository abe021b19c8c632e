"""Cutting an image, or the feature map of a stem, into patches and embedding each one."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class PatchEmbedding(nn.Module):
    """A strided convolution: every patch, flattened, through one linear layer, in reading order."""

    def __init__(self, channels: int, dim: int, patch_size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, dim, patch_size, patch_size, bias=bias)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        return self.projection(x).flatten(2).mT


class NormedPatchEmbedding(nn.Module):
    """The same with a LayerNorm on the patch's pixels and one on its embedding (vit-pytorch)."""

    def __init__(
        self, channels: int, dim: int, patch_size: int, *, bias: bool = True, eps: float
    ) -> None:
        super().__init__()
        self.pixel_norm = nn.LayerNorm(channels * patch_size**2, eps=eps)
        self.projection = nn.Conv2d(channels, dim, patch_size, patch_size, bias=bias)
        self.norm = nn.LayerNorm(dim, eps=eps)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        pixels = F.pixel_unshuffle(x, self.projection.kernel_size[0]).flatten(2).mT
        kernel = self.projection.weight.flatten(1)
        return self.norm(F.linear(self.pixel_norm(pixels), kernel, self.projection.bias))
