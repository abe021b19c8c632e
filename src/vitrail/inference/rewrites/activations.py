"""Activations computed by the matrix product before them, where oneDNN multiplies."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.inference.rewrites.sharing import replace_modules
from vitrail.layers.linear import Linear, multiply, prefers_onednn
from vitrail.layers.mlp import MLP
from vitrail.models.model import Model


class FusedMLP(nn.Module):
    """An MLP in evaluation mode. With gradients its activation is a step of its own, as oneDNN's
    operator has none."""

    def __init__(self, mlp: MLP, activation: tuple[str, str]) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2, self.activation = mlp.fc1, mlp.act, mlp.fc2, activation

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        weight, bias = self.fc1.weight, self.fc1.bias
        if not torch.is_grad_enabled() and prefers_onednn(x, weight, bias):
            return self.fc2(multiply(x, weight, bias, self.activation))
        return self.fc2(self.act(self.fc1(x)))


def fuse_activations(model: Model) -> Model:
    """The model with the activations of its MLPs in their first products."""

    def fuse(module: nn.Module) -> nn.Module | None:
        if type(module) is not MLP or type(module.fc1) is not Linear:
            return None
        activation = name_of(module.act)
        return None if activation is None else FusedMLP(module, activation)

    fused = replace_modules(model, fuse)
    assert isinstance(fused, Model)
    return fused


def name_of(activation: nn.Module) -> tuple[str, str] | None:
    """What oneDNN calls it; None where it has another one. Its ReLU makes 0 of NaN."""
    if type(activation) is nn.GELU:
        return "gelu", activation.approximate
    return ("swish", "") if type(activation) is nn.SiLU else None
