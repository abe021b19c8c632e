"""Where each head of each attention looks, from one query or from every query of a grid."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.hooks import forward_hooks, token_layouts
from vitrail.explanation.propagation import normalise_rows, on_pixels, pixel_extent, propagate
from vitrail.explanation.readout import readout

MAX_HEADS = 16  # that are shown one by one
MAX_SIDE = 16  # cells of a map from a grid of queries
MAX_CELLS = 1_500_000  # of all maps from a grid of queries: about a megabyte in a page
QUERY_SIDES = (14, 10, 7, 5, 4, 3, 2)

Grid = tuple[int, int]


@dataclass(frozen=True)
class HeadMaps:
    """Where each head of an attention looks, and where its cells lie on an image of this size."""

    heat: Float[Tensor, "heads rows columns"]
    layout: TokenLayout
    size: tuple[int, int]

    def on_pixels(self) -> Float[Tensor, "maps H W"]:
        """The mean of all heads, then each of the first few."""
        mean = self.heat.mean(dim=0, keepdim=True)
        return on_pixels(torch.cat([mean, self.heat[:MAX_HEADS]]), self.size, layout=self.layout)


@dataclass(frozen=True)
class QueryMaps:
    """Maps of one attention in 256 levels, each on its own scale: first the mean of the heads, then
    each head; of each first what the model reads out, then each query. `covers` is how far the
    cells reach along the image's height and width: beyond it where it is above 1."""

    levels: UInt8[np.ndarray, "heads queries rows columns"]
    covers: tuple[float, float]


@torch.no_grad()
def head_maps(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    query: int | tuple[int, int] | None = None,
) -> dict[str, HeadMaps]:
    """Of every attention, by its name, where the query looks in each head: a token, or a patch of
    the first attention's grid, which is found again on coarser ones; None: what is read out.

    Weights are gone as soon as their maps are made, so that no more than one attention's are held.
    """
    first = next(iter(token_layouts(model).values())).grid
    size = (image.shape[2], image.shape[3])
    found: dict[str, HeadMaps] = {}

    def see_attention(name: str, one: AttentionMap, _: Tensor | None) -> None:
        found[name] = HeadMaps(_maps_of_query(model, one, query, first).cpu(), one.layout, size)

    with forward_hooks(model, attention=see_attention):
        model(image)
    return found


def _maps_of_query(
    model: nn.Module,
    one: AttentionMap,
    query: int | tuple[int, int] | None,
    first: tuple[int, int],
) -> Float[Tensor, "heads rows columns"]:
    if query is None:
        each = []
        for weights in one.weights.unbind(dim=-3):
            start = readout(model, one.layout, weights)
            each.append(propagate(normalise_rows(weights, one.layout), one.layout, start).grid[0])
        return torch.stack(each)
    if isinstance(query, tuple):
        (row, column), (rows, columns) = query, first
        if not (0 <= row < rows and 0 <= column < columns):
            raise UserError(
                f"query must be a patch from (0, 0) to ({rows - 1}, {columns - 1}), got {query}"
            )
        query = row * one.layout.grid[0] // rows, column * one.layout.grid[1] // columns
    return one.on_grid(query)[0]


@torch.no_grad()
def query_maps(
    model: nn.Module, image: Float[Tensor, "1 C H W"], heads: Mapping[str, int]
) -> tuple[Grid, dict[str, QueryMaps]]:
    """Of every attention, by its name, the maps of each head for a grid of queries, which is as
    fine as `MAX_CELLS` allows; `heads` says how many heads each attention has.

    >>> grid, maps = query_maps(model, images, {f"blocks.{i}.attention": 3 for i in range(12)})
    >>> grid, maps["blocks.0.attention"].levels.shape
    ((10, 10), (4, 101, 14, 14))
    """
    layouts = token_layouts(model)
    first = next(iter(layouts.values())).grid
    size = (image.shape[2], image.shape[3])
    sides = {name: [min(side, MAX_SIDE) for side in at.grid] for name, at in layouts.items()}
    cells = sum((min(heads[name], MAX_HEADS) + 1) * math.prod(sides[name]) for name in sides)
    grids = [(min(first[0], side), min(first[1], side)) for side in QUERY_SIDES]
    grid = next((g for g in grids if cells * (g[0] * g[1] + 1) <= MAX_CELLS), grids[-1])
    queries = [
        ((2 * row + 1) * first[0] // (2 * grid[0]), (2 * column + 1) * first[1] // (2 * grid[1]))
        for row in range(grid[0])
        for column in range(grid[1])
    ]
    found: dict[str, QueryMaps] = {}

    def see_attention(name: str, one: AttentionMap, _: Tensor | None) -> None:
        each = [_maps_of_query(model, one, query, first) for query in (None, *queries)]
        heat = torch.stack(each, dim=1).float().cpu()
        heat = torch.cat([heat.mean(dim=0, keepdim=True), heat[:MAX_HEADS]])
        small = F.adaptive_avg_pool2d(heat, (sides[name][0], sides[name][1]))
        low, high = small.amin(dim=(2, 3), keepdim=True), small.amax(dim=(2, 3), keepdim=True)
        levels = (255 * (small - low) / (high - low).clamp(min=1e-12)).round()
        height, width = pixel_extent(one.layout.grid, size, one.layout)
        found[name] = QueryMaps(levels.to(torch.uint8).numpy(), (height / size[0], width / size[1]))

    with forward_hooks(model, attention=see_attention):
        model(image)
    return grid, found
