"""Attention as it is, and rolled out over all layers (arXiv:2005.00928)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import AttentionMap, Fusion, capture, find_attentions
from vitrail.explanation.propagation import (
    Cells,
    normalise_rows,
    propagate,
    regrid,
    with_residual,
)
from vitrail.explanation.readout import Relevance, check_model, readout

Fused = tuple[Float[Tensor, "B *W #n n"], TokenLayout]


@torch.no_grad()
def attention(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    layer: str | int = -1,
    head: int | None = None,
    query: int | tuple[int, int] | None = None,
) -> Relevance:
    """What one attention looks at: `layer` by its name or its number in the order of running,
    `head` one of them or their mean, `query` a token, a patch's (row, column), or those that the
    model reads out. It knows no classes.

    >>> attention(model, images, layer="blocks.3.attention", head=0, query=(7, 7)).map.shape
    torch.Size([1, 14, 14])
    """
    check_model(model)
    name = attention_name(model, layer)
    with capture(model, where=name) as maps:
        model(images)
    one = maps[name]
    heads = one.weights.shape[-3]
    if head is not None and not 0 <= head < heads:
        raise UserError(f"head of {name} must be from 0 to {heads - 1}, got {head}")
    if query is None:
        weights = one.weights.mean(dim=-3) if head is None else one.weights.select(-3, head)
        start = readout(model, one.layout, weights)
        heat = propagate(normalise_rows(weights, one.layout), one.layout, start).grid
    else:
        every = one.on_grid(query)
        heat = every.mean(dim=1) if head is None else every[:, head]
    return Relevance(heat, one.layout, "attention")


def attention_name(model: nn.Module, layer: str | int) -> str:
    names = list(find_attentions(model))
    if isinstance(layer, int):
        if not -len(names) <= layer < len(names):
            raise UserError(f"layer must be from 0 to {len(names) - 1}, got {layer}")
        return names[layer]
    if layer in names:
        return layer
    if f"{layer}.attention" in names:  # a block's name will do
        return f"{layer}.attention"
    raise UserError(f"no attention is called {layer!r}, this model has {', '.join(names[-3:])}, …")


@torch.no_grad()
def rollout(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    target: Int[Tensor, "B"] | None = None,
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Relevance:
    """How the tokens that are read out are mixed from patches, if attention and shortcuts mix alike
    in every layer. It knows no classes.

    `fusion` makes one head of all, `discard` is the share of each map, its lowest weights, that is
    set to nothing, `residual` the shortcut's share. Rows are normalised afterwards, so they sum to
    one.

    >>> rollout(model, images, fusion="max", discard=0.9).map.shape
    torch.Size([1, 14, 14])
    """
    check_model(model)
    for name, share in (("discard", discard), ("residual", residual)):
        if not 0 <= share < 1:
            raise UserError(f"{name} is {share}, expected a share in [0, 1)")
    with capture(model, reduce=fusion) as maps:
        model(images)
    layers = [discard_fused(one, discard) for one in maps.values()]
    start = readout(model, layers[-1][1], layers[-1][0])
    cells, layout = propagate_back(layers, start, layers[-1][1], residual=residual)
    return Relevance(cells.grid, layout, "rollout")


def discard_fused(one: AttentionMap, discard: float) -> Fused:
    return discard_lowest(one.weights.squeeze(-3), discard), one.layout


def discard_lowest(weights: Float[Tensor, "B *W #n n"], share: float) -> Float[Tensor, "B *W #n n"]:
    """Without the lowest share of all weights of an image."""
    count = math.floor(weights[0].numel() * share)
    if not count:
        return weights
    lowest = weights.flatten(1).kthvalue(count, dim=1).values
    return weights.where(weights > lowest.view(-1, *[1] * (weights.ndim - 1)), 0)


def propagate_back(
    layers: Sequence[Fused], start: Cells, layout: TokenLayout, *, residual: float
) -> tuple[Cells, TokenLayout]:
    """From the tokens that are read back through every layer, the last first, to the first one's
    grid; a sum that stays the same on the way."""
    cells = start
    for weights, at in reversed(layers):
        cells = regrid(cells, layout, at)
        cells, layout = propagate(with_residual(weights, at, residual), at, cells), at
    return cells, layout
