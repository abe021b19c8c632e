"""Squeeze-excitation (arXiv:1709.01507): channels weighed by what the whole map holds."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn


class SqueezeExcite(nn.Module):
    """Each channel times a factor that the means of all channels decide."""

    def __init__(self, dim: int, hidden: int, *, activation: Literal["silu", "relu"]) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(dim, hidden, 1)
        self.act = nn.SiLU() if activation == "silu" else nn.ReLU()
        self.fc2 = nn.Conv2d(hidden, dim, 1)

    def forward(self, x: Float[Tensor, "B D H W"]) -> Float[Tensor, "B D H W"]:
        mean = x.mean(dim=(2, 3), keepdim=True)
        return x * self.fc2(self.act(self.fc1(mean))).sigmoid()
