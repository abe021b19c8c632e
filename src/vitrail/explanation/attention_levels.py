"""Attention of one image in few bytes: each weight as a level of the square root of its share of
the largest in its row, and grids that are too fine for that as means of their neighbours.

A weight is (level / levels)² times its row's largest, so that small weights, which are the most,
have the finest steps; it is off by at most (1 + 1 / (4 levels)) / levels of that largest.

Where all weights of a model are too many, places of a group (its patches, or the cells of a window)
are pooled: `places` has the pooled place of each. A pooled row is the mean of the rows of its
queries, and a pooled key has the sum over its keys: spread evenly over them, it is their mean.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from vitrail.core.layout import TokenLayout
from vitrail.core.packed import compress
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.hooks import token_layouts
from vitrail.explanation.propagation import attention_groups

LEVELS = (255, 191, 127, 95, 63, 47, 31, 23, 15)  # the first that fits is taken
MAX_WEIGHTS = 6_000_000  # of a model, before places are pooled: 4 bits each are 3 megabytes
SAMPLED = (16, 8)  # of so many rows, one block of every eight shows how well all compress


@dataclass(frozen=True)
class Pooling:
    """How the places of each group are pooled: their grid before and after, and the pooled place of
    each; prefix tokens stay as they are."""

    before: tuple[int, int]
    after: tuple[int, int]
    places: Int[Tensor, " n"]


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one attention for one image, over groups; pooled where they were too many."""

    layout: TokenLayout
    groups: Int[Tensor, "G n"]
    weights: Float[Tensor, "G h m k"]  # one row (m = 1) where attention is separable
    pooling: Pooling | None = None

    @property
    def largest(self) -> Float[Tensor, "G h m"]:
        return self.weights.amax(dim=-1)


def choose_factors(model: nn.Module, most: int = MAX_WEIGHTS) -> dict[str, int]:
    """By how much the places of each attention are pooled a side, so that all weights of one image
    are at most so many: the largest attentions first.

    >>> set(choose_factors(model).values())
    {1}
    """
    layouts = token_layouts(model)
    factors = dict.fromkeys(layouts, 1)
    counts = {name: count_weights(model, name, at, 1) for name, at in layouts.items()}
    while sum(counts.values()) > most and max(counts.values()) > 1:
        name = max(counts, key=lambda each: (counts[each], each))
        if factors[name] > max(place_grid(layouts[name])):
            break
        factors[name] += 1
        counts[name] = count_weights(model, name, layouts[name], factors[name])
    return factors


def count_weights(model: nn.Module, name: str, layout: TokenLayout, factor: int) -> int:
    rows, columns = (-(-side // factor) for side in place_grid(layout))
    keys = layout.prefix + rows * columns
    queries = 1 if layout.separable else keys
    return len(attention_groups(layout)) * count_heads(model, name) * queries * keys


def count_heads(model: nn.Module, name: str) -> int:
    """Of an attention by its name; separable attention has one."""
    heads: int = getattr(model.get_submodule(name), "heads", 1)
    return heads


def place_grid(layout: TokenLayout) -> tuple[int, int]:
    """Rows and columns of the places of one group: of a window, of the patches of a fold, or of
    the whole grid."""
    if layout.window is not None:
        return layout.window
    down, across = layout.fold or (1, 1)
    return layout.grid[0] // down, layout.grid[1] // across


def make_pooling(layout: TokenLayout, factor: int) -> Pooling:
    """
    >>> make_pooling(TokenLayout(grid=(2, 4), stride=8, prefix=1), 2).places.tolist()
    [0, 1, 1, 2, 2, 1, 1, 2, 2]
    """
    rows, columns = place_grid(layout)
    after = -(-rows // factor), -(-columns // factor)
    row, column = torch.arange(rows) // factor, torch.arange(columns) // factor
    pooled = (row[:, None] * after[1] + column).flatten() + layout.prefix
    return Pooling((rows, columns), after, torch.cat([torch.arange(layout.prefix), pooled]))


def layer_weights(one: AttentionMap, factor: int = 1) -> LayerWeights:
    """The weights of a map of one image, pooled by a factor a side."""
    groups, weights = attention_groups(one.layout), one.grouped()[0]
    if factor == 1:
        return LayerWeights(one.layout, groups, weights)
    pooling = make_pooling(one.layout, factor)
    members = torch.nn.functional.one_hot(pooling.places).to(weights)  # n places, m pooled
    weights = weights @ members
    if not one.layout.separable:
        real = (groups >= 0).to(weights)  # rows of padding are nobody's
        counts = (real @ members).clamp(min=1)
        weights = torch.einsum("gn,nm,ghnk->ghmk", real, members, weights)
        weights = weights / counts[:, None, :, None]
    return LayerWeights(one.layout, groups, weights, pooling)


def quantise(layer: LayerWeights, levels: int) -> UInt8[np.ndarray, "G h m k"]:
    """The level of each weight, from 0 to `levels`."""
    return to_levels(square_roots(layer), levels)


def square_roots(layer: LayerWeights) -> Float[np.ndarray, "G h m k"]:
    """Of each weight as a share of the largest of its row, from 0 to 1; what is not a number is 0,
    as is a row of nothing."""
    largest = layer.largest[..., None]
    shares = (layer.weights / torch.where(largest > 0, largest, 1)).nan_to_num(0, 0, 0)
    roots: Float[np.ndarray, "G h m k"] = shares.clamp(0, 1).sqrt().float().cpu().numpy()
    return roots


def to_levels(roots: Float[np.ndarray, "..."], levels: int) -> UInt8[np.ndarray, "..."]:
    return (roots * levels + 0.5).astype(np.uint8)


def tolerance(levels: int) -> float:
    """How far a weight may be off, as a share of the largest of its row.

    >>> round(tolerance(255), 5)
    0.00393
    """
    return (1 + 1 / (4 * levels)) / levels


def estimate_bytes(levels: Iterable[UInt8[np.ndarray, "G h m k"]]) -> int:
    """How many bytes compression leaves, from a part of all rows."""
    sample = [row_blocks(one)[:: SAMPLED[1]].tobytes() for one in levels]
    return len(compress(b"".join(sample))) * SAMPLED[1]


def row_blocks(levels: UInt8[np.ndarray, "G h m k"]) -> UInt8[np.ndarray, "N rows k"]:
    """Rows in blocks, since neighbours are alike, so that each compresses as it does among all."""
    rows = levels.reshape(-1, levels.shape[-1])
    size = min(SAMPLED[0], len(rows))
    return rows[: len(rows) // size * size].reshape(-1, size, levels.shape[-1])


def decode_rows(
    levels: UInt8[np.ndarray, "G h m k"],
    largest: Float[np.ndarray, "G h m"],
    count: int,
    places: Int[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, "G h n n"]:
    """The weights that levels stand for, as whoever reads them computes them; a row for each place
    of a group, or one for all."""
    weights = (levels.astype(np.float64) / count) ** 2 * largest[..., None]
    if places is None:
        return weights
    members = np.bincount(places)
    weights = (weights / members)[..., places]
    is_shared = levels.shape[2] < levels.shape[3]  # one row for all
    return weights if is_shared else weights[:, :, places]


def choose_levels(
    roots: Mapping[str, Float[np.ndarray, "G h m k"]], most_bytes: float
) -> tuple[int, dict[str, UInt8[np.ndarray, "G h m k"]] | None]:
    """As many levels as fit into so many bytes when they are compressed, and the levels of every
    attention; none where the fewest do not fit."""
    for levels in LEVELS:
        if estimate_bytes(to_levels(one, levels) for one in roots.values()) > most_bytes:
            continue
        coded = {name: to_levels(one, levels) for name, one in roots.items()}
        if len(compress(b"".join(one.tobytes() for one in coded.values()))) <= most_bytes:
            return levels, coded
    return LEVELS[-1], None
