"""Low-rank adaptation (arXiv:2106.09685), put on a model from outside and merged when it is saved.

The change is a parametrisation of the weight, so every family has it and none knows of it.
"""

from fnmatch import fnmatchcase

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitrail.core.errors import UserError
from vitrail.train.recipe import Lora

TRAINED = ("head.", "head_distilled.")  # beside the low-rank parts
BASE, CHANGE = ".parametrizations.weight.original", ".parametrizations.weight.0."


class LowRank(nn.Module):
    """W + scale · B A. A fused matrix of queries, keys and values has a change for each."""

    def __init__(self, weight: Float[Tensor, "out in"], lora: Lora, parts: int) -> None:
        super().__init__()
        out, width = weight.shape
        self.scale = lora.alpha / lora.rank
        self.a = nn.Parameter(torch.empty(parts, lora.rank, width).to(weight))
        self.b = nn.Parameter(torch.zeros(parts, out // parts, lora.rank).to(weight))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        return changed(weight, self.a, self.b, self.scale)


def changed(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    return weight + scale * (b @ a).view_as(weight)


def adapt(model: nn.Module, lora: Lora) -> None:
    """Freeze everything but the head, and give the chosen matrices a low-rank change."""
    chosen = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and any(fnmatchcase(name, pattern) for pattern in lora.targets)
    ]
    if not chosen:
        raise UserError(f"lora.targets {lora.targets} name no linear layer of this model")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(TRAINED))
    for name, module in chosen:
        parts = 3 if name.endswith("qkv") else 1
        change = LowRank(module.weight, lora, parts)
        parametrize.register_parametrization(module, "weight", change)


def merged(state: dict[str, Tensor], lora: Lora | None) -> dict[str, Tensor]:
    """A state as the model itself names it, with every change added to its matrix."""
    if lora is None:
        return state
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if CHANGE in name:
            continue
        stem = name.removesuffix(BASE)
        if stem == name:
            plain[name] = tensor
            continue
        a, b = state[f"{stem}{CHANGE}a"], state[f"{stem}{CHANGE}b"]
        plain[f"{stem}.weight"] = changed(tensor, a, b, lora.alpha / lora.rank)
    return plain
