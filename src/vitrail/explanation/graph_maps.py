"""Attention maps inside a graph that is exported: from all weights to one small map for each layer.

`attention` and `rollout` of `rollout.py` do the same for a model that runs. Here everything that
depends on the model alone, such as which tokens the head reads and where windows lie, is a
constant, and what is left are products and gathers, which every format has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.layout import TokenLayout
from vitrail.explanation.propagation import (
    attention_groups,
    count_tokens,
    normalise_rows,
    overlap_shares,
    pixel_extent,
    with_groups,
    with_residual,
)
from vitrail.explanation.readout import readout

ROLLOUT = "rollout"  # the map of all layers together
PREFIX = "maps."  # of the names of outputs

# Weights (B, *W, h, N, N) of every attention by name -> maps (B, rows, columns) by output name.
ReduceWeights = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Layer:
    """The constants of one attention: the share of each token that the head reads, the token of
    each place of each group (one beyond the last for padding), and the place of each token."""

    layout: TokenLayout
    start: Float[Tensor, "1 N"]
    groups: Int[Tensor, "W n"]
    places: Int[Tensor, " N"]

    @classmethod
    def of(cls, model: nn.Module, layout: TokenLayout) -> "Layer":
        cells = readout(model, layout, torch.zeros(1))
        groups = attention_groups(layout)
        groups = torch.where(groups < 0, count_tokens(layout), groups)
        places = groups.flatten().argsort(stable=True)[: count_tokens(layout)]
        return cls(layout, cells.sequence(), groups, places)

    def propagate(
        self, weights: Float[Tensor, "B *W #n n"], tokens: Float[Tensor, "#B N"]
    ) -> Float[Tensor, "B N"]:
        """What tokens have is handed to those that they looked at."""
        asking = F.pad(tokens, (0, 1))[:, self.groups]
        if weights.shape[-2] == 1:
            asking = asking.sum(dim=-1, keepdim=True)
        given = asking[..., None, :] @ with_groups(weights, self.layout)
        return given.flatten(1)[:, self.places]

    def on_grid(self, tokens: Float[Tensor, "B N"]) -> Float[Tensor, "B rows columns"]:
        return tokens[:, self.layout.prefix :].unflatten(1, self.layout.grid)


def reduce_weights(model: nn.Module, layouts: Mapping[str, TokenLayout]) -> ReduceWeights:
    """A function from the weights of every attention to maps: where the tokens that the head reads
    look, the mean of all heads, by "maps." and the name of the layer, the last one first, and
    of several layers also rolled out as "maps.rollout".

    >>> reduce = reduce_weights(model, {"blocks.0.attention": model.config.layout})
    >>> maps = reduce({"blocks.0.attention": torch.full((1, 3, 197, 197), 1 / 197)})
    >>> maps["maps.blocks.0.attention"].shape
    torch.Size([1, 14, 14])
    """
    layers = {name: Layer.of(model, layout) for name, layout in layouts.items()}
    every = list(layers.values())
    steps = [regrid_constants(*pair) for pair in zip(every[1:], every, strict=False)]

    def reduce(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        fused = {name: weights[name].mean(dim=-3) for name in layers}
        maps = {ROLLOUT: roll_out(layers, steps, fused)} if len(layers) > 1 else {}
        for name in reversed(layers):
            layer = layers[name]
            rows = normalise_rows(fused[name], layer.layout)
            maps[name] = layer.on_grid(layer.propagate(rows, layer.start))
        return {f"{PREFIX}{name}": found for name, found in maps.items()}

    return reduce


def map_names(layouts: Mapping[str, TokenLayout]) -> tuple[str, ...]:
    """The outputs of `reduce_weights`, in their order."""
    names = [*([ROLLOUT] if len(layouts) > 1 else []), *reversed(list(layouts))]
    return tuple(f"{PREFIX}{name}" for name in names)


def map_covers(
    layouts: Mapping[str, TokenLayout], size: tuple[int, int]
) -> dict[str, tuple[float, float]]:
    """How far each map reaches along the height and the width of an image of this size: beyond it
    where it is above 1."""
    of_rollout = next(iter(layouts.values()), None)
    found = {}
    for name in map_names(layouts):
        layout = layouts.get(name.removeprefix(PREFIX), of_rollout)
        assert layout is not None
        height, width = pixel_extent(layout.grid, size, layout)
        found[name] = (height / size[0], width / size[1])
    return found


Regrid = tuple[Tensor, Tensor] | None


def regrid_constants(old: Layer, new: Layer) -> Regrid:
    """The two matrices that take a map from one grid to another; None where they are the same."""
    if old.layout.grid == new.layout.grid:
        return None
    down, across = (overlap_shares(old.layout, new.layout, side).float() for side in (0, 1))
    return down.mT.contiguous(), across


def roll_out(
    layers: Mapping[str, Layer], steps: list[Regrid], fused: Mapping[str, Tensor]
) -> Float[Tensor, "B rows columns"]:
    """From the tokens that the head reads back through every layer to the grid of the first."""
    names = list(layers)
    tokens, last = layers[names[-1]].start, layers[names[-1]]
    for number in reversed(range(len(names))):
        layer = layers[names[number]]
        if number < len(steps):
            tokens = regrid_tokens(tokens, last, layer, steps[number])
        weights = with_residual(fused[names[number]], layer.layout)
        tokens, last = layer.propagate(weights, tokens), layer
    return last.on_grid(tokens)


def regrid_tokens(
    tokens: Float[Tensor, "B N"], old: Layer, new: Layer, matrices: Regrid
) -> Float[Tensor, "B M"]:
    """As `regrid` of `propagation.py`."""
    prefix = tokens[:, : old.layout.prefix]
    if old.layout.prefix != new.layout.prefix:
        prefix = F.pad(prefix, (0, new.layout.prefix - old.layout.prefix))
    if matrices is None:
        return torch.cat([prefix, tokens[:, old.layout.prefix :]], dim=1)
    down, across = matrices
    return torch.cat([prefix, (down @ old.on_grid(tokens) @ across).flatten(1)], dim=1)
