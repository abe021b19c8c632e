"""Optimisers from torch, and which parameter gets which learning rate and decay."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from vitrail.core.errors import UserError
from vitrail.models.model import Model, freeze_statistics
from vitrail.objectives.objective import Objective
from vitrail.training.lora import LowRank
from vitrail.training.muon import Muon
from vitrail.training.recipe import Optimiser

Group = dict[str, Any]
MODEL = "model."  # what an objective calls the parameters of its model


def make_optimisers(objective: Objective, recipe: Optimiser) -> list[torch.optim.Optimizer]:
    """One optimiser, or two: Muon knows matrices alone, and AdamW takes what is left."""
    groups = group_parameters(objective, recipe)
    match recipe.name:
        case "adamw":
            return [torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, fused=True)]
        case "sgd":
            fused = next(objective.parameters()).is_cuda or None
            return [torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, fused=fused)]
        case "muon":
            matrices = [g for g in groups if g["parts"]]
            rest = [g for g in groups if not g["parts"]]
            # a model may have convolutions alone, and a frozen one matrices alone
            found: list[torch.optim.Optimizer] = [Muon(matrices, lr=recipe.lr)] if matrices else []
            if rest:
                found.append(torch.optim.AdamW(rest, lr=recipe.lr, betas=recipe.betas, fused=True))
            return found


def freeze(objective: Objective, patterns: Sequence[str]) -> None:
    """Leave what the patterns name as it is; before the model is shared among processes, which
    agree then on what has gradients."""
    for name, parameter in objective.model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    freeze_statistics(objective.model)
    if not any(parameter.requires_grad for parameter in objective.parameters()):
        raise UserError(f"optimiser.freeze {tuple(patterns)} leaves nothing to train: freeze less")


def group_parameters(objective: Objective, recipe: Optimiser) -> list[Group]:
    """Groups of equal learning rate and decay, by name, so that their order never varies. What an
    objective has beside its model learns like a head."""
    model = objective.model
    steps = tuple(model.blocks_by_depth())
    depth = len(steps)
    matrices, of_muon = matrix_names(objective), muon_matrices(model)
    groups: dict[tuple[float, float, int], list[Parameter]] = {}
    for full, parameter in objective.named_parameters():
        if not parameter.requires_grad:
            continue
        name = full.removeprefix(MODEL)
        inside = name != full
        scale = recipe.layer_decay ** (depth + 1 - layer_of(name, steps)) if inside else 1.0
        decay = recipe.weight_decay if recipe.decay_all or full in matrices else 0.0
        parts = of_muon.get(name, 0) if inside else 0
        groups.setdefault((scale, decay, parts), []).append(parameter)
    return [
        {"params": params, "weight_decay": decay, "scale": scale, "parts": parts}
        for (scale, decay, parts), params in groups.items()
    ]


def matrix_names(module: nn.Module) -> set[str]:
    """The matrices and kernels of its layers, which decay and which Muon may take. A parameter that
    is no layer's weight does not, whatever its shape: biases, norms, tokens, positions, tables of
    offsets, scales. Nor do the layers that a model declares as `no_decay`."""
    names: set[str] = set()
    left_out: set[str] = set()
    for at, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            names.add(f"{at}.weight".removeprefix("."))
        elif isinstance(part, LowRank):
            names |= {f"{at}.a", f"{at}.b"}
        elif isinstance(part, Model):
            left_out |= {
                f"{at}.{name}".removeprefix(".")
                for name, _ in part.named_parameters()
                if any(fnmatchcase(name, pattern) for pattern in part.no_decay)
            }
    return names - left_out


def muon_matrices(model: Model) -> dict[str, int]:
    """The parameters of a model that Muon trains, and how many matrices each of them is: those
    inside blocks, not patches, heads or kernels. AdamW trains the rest.

    >>> from vitrail.models.catalogue import build_meta, find
    >>> [len(muon_matrices(build_meta(find(name)))) for name in ("vit_ti_16", "resnet18")]
    [48, 0]
    """
    steps, matrices = tuple(model.blocks_by_depth()), matrix_names(model)
    return {
        name: 3 if name.endswith("qkv.weight") else 1
        for name, parameter in model.named_parameters()
        if name in matrices and parameter.ndim == 2 and 0 < layer_of(name, steps) <= len(steps)
    }


def layer_of(name: str, steps: tuple[str, ...]) -> int:
    """0 for what comes before the blocks, 1 to depth for the blocks, depth + 1 for what comes
    after."""
    for number, block in enumerate(steps, start=1):
        if name.startswith(f"{block}."):
            return number
    return len(steps) + 1 if name.startswith(("norm.", "head")) else 0


def set_rate(optimisers: Iterable[torch.optim.Optimizer], lr: float) -> None:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = lr * group["scale"]
