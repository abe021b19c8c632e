"""Low-rank adaptation (arXiv:2106.09685), put on a model from outside and merged when it is saved.

The change is a parametrisation of the weight, so every family has it and none knows of it.
"""

from fnmatch import fnmatchcase
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitrail.core.errors import UserError
from vitrail.models.model import freeze_statistics
from vitrail.training.recipe import Lora

TRAINED = ("head.", "head_distilled.")  # beside the low-rank parts
BASE, CHANGE = ".parametrizations.weight.original", ".parametrizations.weight.0."


class LowRank(nn.Module):
    """W + scale · B A. A fused matrix of queries, keys and values has a change for each. A kernel
    of 1x1 pixels is a matrix."""

    def __init__(self, weight: Float[Tensor, "out in *one"], lora: Lora, parts: int) -> None:
        super().__init__()
        out, width = weight.shape[:2]
        self.scale = lora.alpha / lora.rank
        self.a = nn.Parameter(torch.empty(parts, lora.rank, width).to(weight))
        self.b = nn.Parameter(torch.zeros(parts, out // parts, lora.rank).to(weight))
        for part in self.a:  # each is a matrix of its own: at most 1/√width
            nn.init.kaiming_uniform_(part, a=5**0.5)

    def forward(self, weight: Float[Tensor, "out in *one"]) -> Float[Tensor, "out in *one"]:
        return changed(weight, self.a, self.b, self.scale)


def changed(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    return weight + scale * (b @ a).view_as(weight)


def adapt(model: nn.Module, lora: Lora) -> None:
    """Freeze everything but the head, statistics of batch norms too, and give the chosen matrices a
    low-rank change."""
    chosen = [
        (name, module)
        for name, module in model.named_modules()
        if is_matrix(module) and any(fnmatchcase(name, pattern) for pattern in lora.targets)
    ]
    if not chosen and not getattr(model, "has_attention", True):
        raise UserError(
            f"lora changes the matrices of attention, and {type(model).__name__} has none: leave "
            "out lora, or name its 1x1 convolutions in lora.targets"
        )
    if not chosen:
        raise UserError(f"lora.targets must name linear layers of the model, got {lora.targets}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(TRAINED))
    freeze_statistics(model)
    for name, module in chosen:
        # the one score of separable attention has its change with keys and values
        parts = 3 if name.endswith("qkv") and isinstance(module, nn.Linear) else 1
        change = LowRank(module.weight, lora, parts)
        parametrize.register_parametrization(module, "weight", change)


def is_matrix(module: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    """Whether a layer multiplies each token, or each pixel, with one matrix."""
    if isinstance(module, nn.Conv2d):
        return module.kernel_size == (1, 1) and module.groups == 1
    return isinstance(module, nn.Linear)


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
