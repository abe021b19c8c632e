"""The two-layer perceptron of a transformer block, and its activations."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.linear import Linear

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "swiglu"]  # that a ViT may have
AnyActivation = Activation | Literal["silu"]


class QuickGELU(nn.Module):
    """x · sigmoid(1.702 x), OpenAI CLIP's approximation."""

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return x * torch.sigmoid(1.702 * x)


class SwiGLU(nn.Module):
    """silu(a) · b of a doubled hidden layer."""

    def forward(self, x: Float[Tensor, "*B twoM"]) -> Float[Tensor, "*B M"]:
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


class MLP(nn.Module):
    """Linear, activation, dropout, linear, dropout. SwiGLU's first layer makes gate and value at
    once."""

    def __init__(self, dim: int, hidden: int, *, activation: AnyActivation, dropout: float) -> None:
        super().__init__()
        self.fc1 = Linear(dim, 2 * hidden if activation == "swiglu" else hidden)
        self.act = make_activation(activation)
        self.fc2 = Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return self.dropout(self.fc2(self.dropout(self.act(self.fc1(x)))))


def make_activation(activation: AnyActivation) -> nn.Module:
    match activation:
        case "gelu":
            return nn.GELU()
        case "gelu_tanh":
            return nn.GELU(approximate="tanh")
        case "quick_gelu":
            return QuickGELU()
        case "relu":
            return nn.ReLU()
        case "swiglu":
            return SwiGLU()
        case "silu":
            return nn.SiLU()
