"""Inductive bias measured: what a model computes when an image is shifted, or its patches permuted.

An image is rolled down and to the right by one pixel, and by one patch (one cell of the model's
coarsest map). A model that is equivariant gives the map that it gave before, moved by as many
cells; how far its map is from that is measured away from the border, for every block, as the norm
of the difference divided by the norm of the map. A shift by less than half a cell moves no cell.
For comparison the same number is taken between different images: a ratio of 1 means that the shift
changes as much as another image does.

Permuted are tiles of one patch, while positions stay as they are: a ViT without position embeddings
gives the same output. How local a block is shows the gradient of the middle cell of its map with
respect to the image: the mean distance of pixels from the middle, weighted by the squared gradient
(the effective receptive field of arXiv:1701.04128); attention has its mean distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import Sides, height_and_width, simplify_sides
from vitrail.explanation.capture import AttentionMap, list_attentions
from vitrail.explanation.distance import mean_distance
from vitrail.explanation.hooks import forward_hooks

BORDER = 8  # of a map's side one in so many cells is left out on each side
FEWEST_CELLS = 7  # a side: smaller maps are nearly all border
Maps = list[Float[Tensor, "B D rows columns"]]


@dataclass(frozen=True)
class Moved:
    """How far a shift, a permutation or another image moves what a model computes: by block,
    `pooled` features, and logits; `same_label` is the share of images that keep their label. None
    where there is nothing to compare."""

    blocks: tuple[float, ...] = ()
    pooled: float | None = None
    logits: float | None = None
    same_label: float | None = None


@dataclass(frozen=True, kw_only=True)
class Equivariance:
    """What was measured of one model over `images` images; the blocks are in order of depth.
    `patch` is the side of its patch in pixels, or its height and width; distances are shares of the
    image's diagonal."""

    images: int
    image_size: Sides
    patch: Sides
    blocks: tuple[str, ...]
    reductions: tuple[Sides, ...]
    cells: tuple[Sides, ...]  # of the map of each block
    pixel: Moved
    shifted: Moved | None  # by one patch; None where an image is one patch
    permuted: Moved | None
    other: Moved | None  # another image in place of the shifted one
    receptive_field: tuple[float, ...]
    attention: dict[str, float] = field(default_factory=dict)  # mean distance, by attention

    def relative(self, what: str) -> tuple[float | None, ...]:
        """How far blocks moved, as a share of how far another image moves them."""
        moved: Moved | None = getattr(self, what)
        if moved is None or self.other is None:
            return ()
        pairs = zip(moved.blocks, self.other.blocks, strict=True)
        return tuple(one / two if two else None for one, two in pairs)

    @property
    def fewest_cells(self) -> Sides:
        """Of the coarsest map."""
        return min(self.cells, key=lambda sides: min(height_and_width(sides)))


def _rows_and_columns(values: Tensor) -> tuple[int, int]:
    return values.shape[2], values.shape[3]


@torch.no_grad()
def measure_equivariance(
    model: nn.Module, images: Float[Tensor, "B C H W"], *, seed: int = 0
) -> Equivariance:
    """Measure a model in evaluation mode on prepared images."""
    model.eval()
    info: Any = model.feature_info
    if not info:
        raise UserError("equivariance is measured on the maps of blocks: this model has none")
    images = images.to(next(model.parameters()))
    sides = [height_and_width(one.reduction) for one in info]
    patch = max(high for high, _ in sides), max(wide for _, wide in sides)
    before = outputs_of(model, images)
    has_tiles = all(step < side for step, side in zip(patch, images.shape[2:], strict=True))
    tiles = permute_tiles(images, patch, seed) if has_tiles else None
    return Equivariance(
        images=len(images),
        image_size=simplify_sides(_rows_and_columns(images)),
        patch=simplify_sides(patch),
        blocks=tuple(one.module for one in info),
        reductions=tuple(one.reduction for one in info),
        cells=tuple(simplify_sides(_rows_and_columns(one)) for one in before.maps),
        pixel=moved_by(model, images, before, (1, 1)),
        shifted=moved_by(model, images, before, patch) if has_tiles else None,
        permuted=None if tiles is None else compare_outputs(before, outputs_of(model, tiles)),
        other=compare_outputs(before, before.rolled(), shift=(0, 0)) if len(images) > 1 else None,
        receptive_field=receptive_fields(model, images[:1]),
        attention=attention_distances(model, images),
    )


@dataclass(frozen=True)
class Outputs:
    """What a model computes for a batch."""

    maps: Maps
    reductions: tuple[Sides, ...]
    pooled: Float[Tensor, "B D"]
    logits: Float[Tensor, "B K"] | None

    def rolled(self) -> "Outputs":
        """The same of the image before each."""
        logits = None if self.logits is None else self.logits.roll(1, dims=0)
        maps = [one.roll(1, dims=0) for one in self.maps]
        return Outputs(maps, self.reductions, self.pooled.roll(1, dims=0), logits)


def outputs_of(model: Any, images: Float[Tensor, "B C H W"]) -> Outputs:
    """Maps, features and logits, as float64 so that small differences are not those of sums."""
    maps = [one.double() for one in model.intermediates(images)]
    pooled = model.features(images).double()
    logits = model(images).double() if getattr(model.config, "num_classes", 0) else None
    return Outputs(maps, tuple(one.reduction for one in model.feature_info), pooled, logits)


def moved_by(
    model: nn.Module, images: Float[Tensor, "B C H W"], before: Outputs, pixels: tuple[int, int]
) -> Moved:
    shifted = images.roll(pixels, dims=(2, 3))
    return compare_outputs(before, outputs_of(model, shifted), shift=pixels)


def compare_outputs(before: Outputs, after: Outputs, shift: tuple[int, int] | None = None) -> Moved:
    """How far two outputs are apart; maps where one is the other shifted down and to the right by
    so many pixels."""
    blocks: tuple[float, ...] = ()
    if shift is not None:
        pairs = zip(before.maps, after.maps, before.reductions, strict=True)
        blocks = tuple(map_distance(a, b, cells_of(shift, stride)) for a, b, stride in pairs)
    pooled = relative_distance(before.pooled, after.pooled)
    if before.logits is None or after.logits is None:
        return Moved(blocks, pooled)
    # what softmax does not see, a constant added to all logits, does not count
    one, two = (x - x.mean(dim=1, keepdim=True) for x in (before.logits, after.logits))
    same = (one.argmax(dim=1) == two.argmax(dim=1)).double().mean()
    return Moved(blocks, pooled, relative_distance(one, two), float(same))


def cells_of(pixels: tuple[int, int], stride: Sides) -> tuple[int, int]:
    """By how many cells a map moves down and to the right.

    >>> cells_of((1, 1), 16), cells_of((16, 8), (16, 8)), cells_of((16, 16), 4)
    ((0, 0), (1, 1), (4, 4))
    """
    (down, across), (high, wide) = pixels, height_and_width(stride)
    return round(down / high), round(across / wide)


def map_distance(
    before: Float[Tensor, "B D rows columns"],
    after: Float[Tensor, "B D rows columns"],
    cells: tuple[int, int],
) -> float:
    """Between the map of a shifted image and the shifted map, away from the border."""
    expected = before.roll(cells, dims=(2, 3))
    sides = zip(before.shape[2:], cells, strict=True)
    rows, columns = (inner_cells(side, shift) for side, shift in sides)
    return relative_distance(expected[:, :, rows, columns], after[:, :, rows, columns]) or 0.0


def inner_cells(side: int, shift: int) -> slice:
    """Cells of a side that lie away from its border, and hold nothing that a shift brought in from
    the other side.

    >>> inner_cells(14, 1), inner_cells(56, 8), inner_cells(1, 1)
    (slice(2, 12, None), slice(8, 48, None), slice(0, 1, None))
    """
    margin = min(max(shift, round(side / BORDER)), (side - 1) // 2)
    return slice(margin, side - margin)


def relative_distance(before: Tensor, after: Tensor) -> float | None:
    """The norm of the difference by the norm, as a mean over images; None where all is zero."""
    apart = (after - before).flatten(1).norm(dim=1)
    length = before.flatten(1).norm(dim=1)
    known = length > 0
    if not known.any():
        return None
    return float((apart[known] / length[known]).mean())


def permute_tiles(
    images: Float[Tensor, "B C H W"], tile: Sides, seed: int
) -> Float[Tensor, "B C H W"] | None:
    """The images with their tiles in one random order; what is left beside whole tiles stays. None
    where there is one tile."""
    high, wide = height_and_width(tile)
    rows, columns = images.shape[2] // high, images.shape[3] // wide
    if rows * columns < 2:
        return None
    order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(seed))
    whole = images[:, :, : rows * high, : columns * wide]
    tiles = whole.unflatten(3, (columns, wide)).unflatten(2, (rows, high))
    tiles = tiles.movedim((2, 4), (1, 2)).flatten(1, 2)[:, order.to(images.device)]
    placed = tiles.unflatten(1, (rows, columns)).movedim((1, 2), (2, 4))
    result = images.clone()
    result[:, :, : rows * high, : columns * wide] = placed.flatten(4, 5).flatten(2, 3)
    return result


def receptive_fields(model: Any, image: Float[Tensor, "1 C H W"]) -> tuple[float, ...]:
    """Of each block: how far from the middle the pixels are that its middle cell depends on, as a
    share of the image's diagonal."""
    with torch.enable_grad():
        pixels = image.clone().requires_grad_()
        maps = model.intermediates(pixels)
        return tuple(_reach(one, pixels) for one in maps)


def _reach(values: Float[Tensor, "1 D rows columns"], pixels: Float[Tensor, "1 C H W"]) -> float:
    row, column = (side // 2 for side in values.shape[2:])
    middle = values[0, :, row, column]
    weight = torch.linspace(-1, 1, len(middle)).to(middle)  # norms make the plain sum a constant
    (gradient,) = torch.autograd.grad((weight * middle).sum(), pixels, retain_graph=True)
    energy = gradient[0].double().square().sum(dim=0)
    if not float(energy.sum()):
        return 0.0
    sides = pixels.shape[2:]
    centre = [(place + 0.5) * side / cells for place, side, cells in
              zip((row, column), sides, values.shape[2:], strict=True)]  # fmt: skip
    down, across = (
        torch.arange(side, device=energy.device) + 0.5 - middle
        for side, middle in zip(sides, centre, strict=True)
    )
    distance = (down[:, None] ** 2 + across[None] ** 2).sqrt()
    return float((energy * distance).sum() / energy.sum()) / diagonal(sides)


def diagonal(sides: Sequence[int]) -> float:
    return float(sum(side**2 for side in sides)) ** 0.5


def attention_distances(model: nn.Module, images: Float[Tensor, "B C H W"]) -> dict[str, float]:
    """The mean distance of each attention, as a share of the image's diagonal; none without any."""
    found: dict[str, float] = {}
    if not list_attentions(model):
        return found

    def see(name: str, one: AttentionMap, bias: Tensor | None) -> None:
        found[name] = float(mean_distance(one).double().mean()) / diagonal(images.shape[2:])

    with forward_hooks(model, attention=see):
        model.encode(images)  # type: ignore[operator]
    return found
