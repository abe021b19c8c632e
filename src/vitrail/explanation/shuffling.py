"""Shuffled weights (arXiv:1810.03292): a map of a model whose weights are in disorder must become
another map; one that stays, or turns into its negative, shows the image and not the model."""

import copy
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.randomness import seed_of
from vitrail.explanation.readout import Relevance

Images: TypeAlias = Float[Tensor, "B C H W"]
Maps: TypeAlias = Float[Tensor, "B rows columns"]
ExplainFunction: TypeAlias = Callable[[nn.Module, Images], Relevance]


def shuffle_check(
    explain: ExplainFunction,
    model: nn.Module,
    images: Images,
    before: Maps,
    *,
    times: int = 3,
    seed: int = 0,
) -> tuple[float, tuple[float, ...]]:
    """How alike `before`, the maps of a model, are to those of the model with a shuffled head, and
    to those of models with all weights shuffled, `times` in turn: the mean over images of the
    absolute rank correlation. The model itself is not touched."""
    shuffled = copy.deepcopy(model)
    shuffle(shuffled, head_weights(model), seed_of("shuffle", seed, 0))
    head = mean_rank_correlation(before, explain(shuffled, images).map)
    every = [name for name, _ in model.named_parameters()]
    found = []
    for turn in range(times):
        shuffle(shuffled, every, seed_of("shuffle", seed, turn + 1))
        found.append(mean_rank_correlation(before, explain(shuffled, images).map))
    return head, tuple(found)


def shuffle(model: nn.Module, names: list[str], seed: int) -> None:
    """The weights of these parameters change places, each tensor within itself, so that their
    values stay what they were. Tensors of one size share an order: drawing it is what takes
    time."""
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    orders: dict[int, Tensor] = {}  # by the number of weights
    for name in names:
        weights = parameters[name].data
        if weights.numel() not in orders:
            orders[weights.numel()] = torch.randperm(weights.numel(), generator=generator)
        order = orders[weights.numel()].to(weights.device)
        parameters[name].data = weights.flatten()[order].view_as(weights)


def shuffled_copy(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """The model with all weights in disorder."""
    other = copy.deepcopy(model)
    shuffle(other, [name for name, _ in model.named_parameters()], seed_of("shuffle", seed, 1))
    return other


def head_weights(model: nn.Module) -> list[str]:
    """Names of the head's parameters, or, where no part is called so, of the last part's."""
    names = [name for name, _ in model.named_parameters()]
    if not names:
        raise UserError("this model has no weights to shuffle: use a trained model")
    last = "head" if any(name.startswith("head") for name in names) else names[-1].split(".")[0]
    return [name for name in names if name.startswith(last)]


def mean_rank_correlation(first: Maps, second: Maps) -> float:
    return float(rank_correlation(first, second).abs().mean())


def rank_correlation(first: Maps, second: Maps) -> Float[Tensor, "B"]:
    """Spearman's, of two maps of each image; a map that says nothing is like no other.

    >>> maps = torch.rand(2, 4, 4)
    >>> rank_correlation(maps, -maps.exp()).round(decimals=6).tolist()
    [-1.0, -1.0]
    """
    assert first.shape == second.shape, f"maps of {first.shape} and {second.shape}"
    ranks = []
    for maps in (first, second):
        values = maps.detach().flatten(1).double().cpu().nan_to_num().numpy()
        each = torch.from_numpy(np.stack([average_ranks(row) for row in values]))
        ranks.append(F.normalize(each - each.mean(dim=1, keepdim=True), dim=1))
    return (ranks[0] * ranks[1]).sum(dim=1)


def average_ranks(values: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """Ranks from 1 on; equal values have the mean of theirs.

    >>> average_ranks(np.array([0.5, 0.1, 0.5])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = counts.cumsum() - (counts - 1) / 2
    return mean_ranks[which.reshape(-1)]
