"""What a model loses when one place of the image forgets where it is.

The image is cut into tiles, and the positions of one tile after the other are taken away: in a
table of positions its vectors become the mean of all, and in every bias of attention the entries
between its cells and any other become the mean of their head. It is the mean and not zero that
is put there, because what all places have in common tells nothing of any of them: taking it away
too would be another change than forgetting a place.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import bind_arguments, find_attentions
from vitrail.explanation.distance import group_cells
from vitrail.explanation.hooks import ATTEND_ARGUMENTS, token_layouts
from vitrail.explanation.positions import is_masked
from vitrail.layers.attention import Attend

FEW, MANY = 64, 256  # tiles: of a grid that is finer than many, few are made

Grid = tuple[int, int]


def tile_grid(layouts: list[TokenLayout]) -> Grid:
    """A tile for each cell of the finest grid; where these are too many, tiles of several cells.

    >>> tile_grid([TokenLayout(grid=(56, 56), stride=4)])
    (8, 8)
    """
    rows, columns = max((layout.grid for layout in layouts), key=math.prod)
    if rows * columns <= MANY:
        return rows, columns
    factor = next(f for f in range(2, rows * columns) if -(-rows // f) * -(-columns // f) <= FEW)
    return -(-rows // factor), -(-columns // factor)


def cells_of_tile(tile: Grid, tiles: Grid, grid: Grid) -> Bool[Tensor, " N"]:
    """The cells of a grid whose middle lies in the tile."""
    inside = []
    for which, count, side in zip(tile, tiles, grid, strict=True):
        inside.append(((torch.arange(side) + 0.5) * count / side).floor() == which)
    return (inside[0][:, None] & inside[1]).flatten()


@contextmanager
def without_positions(model: nn.Module, tile: Grid, tiles: Grid) -> Iterator[None]:
    """While it lasts, the model does not know where the patches of this tile are."""
    handles = []
    layouts = token_layouts(model)
    first = next(iter(layouts.values()))
    positions = getattr(model, "positions", None)
    if isinstance(positions, nn.Module):
        inside = cells_of_tile(tile, tiles, first.grid)
        handles.append(positions.register_forward_hook(_mean_positions_hook(inside)))
    for module in find_attentions(model).values():
        if isinstance(module, Attend):
            inside = cells_of_tile(tile, tiles, module.layout.grid)
            hook = _mean_bias_hook(inside, module.layout)
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mean_positions_hook(inside: Bool[Tensor, " N"]) -> Callable[..., Tensor]:
    def hook(_: nn.Module, __: Any, table: Float[Tensor, "1 M D"]) -> Float[Tensor, "1 M D"]:
        prefix = table.shape[1] - len(inside)
        gone = F.pad(inside, (prefix, 0)).to(table.device)
        mean = table[:, prefix:].mean(dim=1, keepdim=True)
        return torch.where(gone[:, None], mean, table)

    return hook


def _mean_bias_hook(inside: Bool[Tensor, " N"], layout: TokenLayout) -> Callable[..., Any]:
    cells = group_cells(layout)
    gone = F.pad(inside[cells.clamp(min=0)] & (cells >= 0), (layout.prefix, 0))
    pairs = (gone[:, :, None] | gone[:, None])[:, None]
    pairs[..., : layout.prefix, :] = False  # what a prefix token has is no place
    pairs[..., :, : layout.prefix] = False

    def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
        given = bind_arguments(ATTEND_ARGUMENTS, args, kwargs)
        bias = given.get("bias")
        if bias is None:
            return None
        apart = is_masked(bias)
        known = (~apart).to(bias)
        patches = (..., slice(layout.prefix, None), slice(layout.prefix, None))
        # windows share a bias, whatever they keep apart; images may have one each
        over = (-2, -1) if layout.window is None else (0, -2, -1)
        total = (bias * known)[patches].sum(dim=over, keepdim=True)
        mean = total / known[patches].sum(dim=over, keepdim=True)
        given["bias"] = torch.where(pairs.to(bias.device) & ~apart, mean, bias)
        return (), given

    return hook


@torch.no_grad()
def position_ablation(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    tiles: Grid | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[Float[Tensor, "B rows columns"], str]:
    """By how much of its length the model's answer changes when a tile forgets where it is, and
    what the answer is: logits without their mean, or, where these say nothing, features."""
    tiles = tiles or tile_grid(list(token_layouts(model).values()))
    ask, what = output_function(model, images)
    before = ask(images)
    length = before.norm(dim=1).clamp(min=1e-300)
    changes = []
    for number in range(tiles[0] * tiles[1]):
        with without_positions(model, divmod(number, tiles[1]), tiles):
            changes.append((ask(images) - before).norm(dim=1) / length)
        if on_progress is not None:
            on_progress(number + 1, tiles[0] * tiles[1])
    return torch.stack(changes, dim=1).unflatten(1, tiles), what


def output_function(
    model: nn.Module, images: Float[Tensor, "B C H W"]
) -> tuple[Callable[[Tensor], Float[Tensor, "B K"]], str]:
    """Logits less their mean, which is all that a softmax sees of them; features where a model has
    no head, or one that has learnt nothing yet."""

    def logits(x: Tensor) -> Tensor:
        found: Tensor = model(x).double()
        return found - found.mean(dim=1, keepdim=True)

    def features(x: Tensor) -> Tensor:
        found: Tensor = model.features(x)  # type: ignore[operator]
        return found.double()

    has_head = getattr(getattr(model, "config", None), "num_classes", 1) > 1
    if has_head and bool((logits(images).norm(dim=1) > 1e-6).all()):
        return logits, "logits"
    return features, "features"
