"""Edits of an image as a model sees it, cell by cell, and positions that move with their patches.

Pixels stay whole numbers, so that an edited image that is saved as PNG is the one that the model
read.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.blur import gaussian_blur
from vitrail.explanation.capture import find_attentions
from vitrail.explanation.hooks import ATTEND_ARGUMENTS, is_convolutional
from vitrail.explanation.propagation import pixel_extent
from vitrail.layers.attention import Attend, RelativeDistances

BLUR = 0.06  # the deviation of a blur, as a share of the image's sides

Pixels = UInt8[np.ndarray, "H W C"]
Cell = tuple[int, int]


def cell_box(
    cell: Cell, grid: Cell, size: Cell, layout: TokenLayout | None = None
) -> tuple[slice, slice]:
    """Rows and columns of pixels under a cell: of a layout's grid where it has them, else of a grid
    that divides the image evenly.

    >>> cell_box((1, 0), (2, 2), (32, 48))
    (slice(16, 32, None), slice(0, 24, None))
    """
    extent = pixel_extent(grid, size, layout)
    ends = [
        [min(round((place + more) * length / count), side) for more in (0, 1)]
        for place, count, length, side in zip(cell, grid, extent, size, strict=True)
    ]
    return slice(*ends[0]), slice(*ends[1])


def check_cells(cells: Sequence[Cell], grid: Cell, name: str) -> None:
    for row, column in cells:
        if not (0 <= row < grid[0] and 0 <= column < grid[1]):
            raise UserError(
                f"{name} must name cells from [0, 0] to [{grid[0] - 1}, {grid[1] - 1}], got "
                f"[{row}, {column}]"
            )


def erase_cells(
    pixels: Pixels, cells: Sequence[Cell], grid: Cell, layout: TokenLayout | None = None
) -> Pixels:
    """The mean colour of the image in these cells.

    >>> erase_cells(np.arange(4, dtype=np.uint8).reshape(2, 2, 1), [(0, 0)], (2, 2))[..., 0]
    array([[2, 1],
           [2, 3]], dtype=uint8)
    """
    mean = pixels.mean(axis=(0, 1)).round().astype(np.uint8)
    return paste(pixels, np.broadcast_to(mean, pixels.shape), cells, grid, layout)


def blur_cells(
    pixels: Pixels, cells: Sequence[Cell], grid: Cell, layout: TokenLayout | None = None
) -> Pixels:
    """The blurred image in these cells."""
    image = torch.from_numpy(pixels.astype(np.float32)).movedim(-1, 0)[None]
    blurred = gaussian_blur(image, BLUR)[0].movedim(0, -1).round().clamp(0, 255)
    return paste(pixels, blurred.numpy().astype(np.uint8), cells, grid, layout)


def paste(
    pixels: Pixels,
    other: Pixels,
    cells: Sequence[Cell],
    grid: Cell,
    layout: TokenLayout | None,
) -> Pixels:
    edited = pixels.copy()
    for cell in cells:
        box = cell_box(cell, grid, (pixels.shape[0], pixels.shape[1]), layout)
        edited[box] = other[box]
    return edited


def shift_pixels(pixels: Pixels, right: int, down: int) -> Pixels:
    """Moved by so many pixels; the border is continued where nothing comes in.

    >>> shift_pixels(np.array([[[1], [2], [3]]], dtype=np.uint8), 1, 0)[0, :, 0]
    array([1, 1, 2], dtype=uint8)
    """
    height, width = pixels.shape[:2]
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    return pixels[rows][:, columns]


def random_order(cells: int, seed: int) -> Int[np.ndarray, " N"]:
    """Which patch comes to each place."""
    return np.random.default_rng(abs(seed)).permutation(cells)


def permute_cells(pixels: Pixels, grid: Cell, order: Int[np.ndarray, " N"]) -> Pixels:
    """Patches in another order: `order` has, for each place row by row, the patch that comes there.

    >>> image = np.arange(4, dtype=np.uint8).reshape(2, 2, 1)
    >>> permute_cells(image, (2, 2), np.array([3, 2, 1, 0]))[..., 0]
    array([[3, 2],
           [1, 0]], dtype=uint8)
    """
    (height, width), (rows, columns) = pixels.shape[:2], grid
    if height % rows or width % columns:
        raise UserError(
            f"patches of one size are needed to exchange them, but a grid of {rows}x{columns} does "
            f"not divide {height}x{width} pixels: choose another grid"
        )
    high, wide = height // rows, width // columns
    patches = pixels.reshape(rows, high, columns, wide, -1).swapaxes(1, 2)
    moved = patches.reshape(rows * columns, high, wide, -1)[order]
    return moved.reshape(rows, columns, high, wide, -1).swapaxes(1, 2).reshape(pixels.shape)


@contextmanager
def moved_positions(model: nn.Module, grid: Cell, order: Int[np.ndarray, " N"]) -> Iterator[None]:
    """Positions go along with patches that change places: those that are added to patches, and
    biases of attention over the whole grid. Where places are built into windows, folds or
    convolutions of several grids, they cannot, and `UserError` says so."""
    if is_convolutional(model):
        raise UserError(
            f"positions cannot move with patches: {type(model).__name__} has none, it is a "
            "convolutional network"
        )
    layouts = {attend.layout for attend in find_attentions(model).values()}
    fixed = [one for one in layouts if one.window or one.fold or one.grid != grid]
    if fixed:
        where = "windows" if fixed[0].window else "folds" if fixed[0].fold else "several grids"
        raise UserError(
            f"positions cannot move with patches: this model has them in {where}, not in a table "
            f"for a grid of {grid[0]}x{grid[1]}"
        )
    source = torch.from_numpy(order)
    with ExitStack() as stack:
        positions = getattr(model, "positions", None)
        if isinstance(positions, nn.Module):
            stack.enter_context(moved_table(positions, source))
        for module in model.modules():
            if isinstance(module, RelativeDistances):
                stack.enter_context(moved_distances(module, source))
        for name, attend in find_attentions(model).items():
            is_relative = getattr(model.get_submodule(name), "distances", None) is not None
            if isinstance(attend, Attend) and not is_relative:
                stack.enter_context(moved_bias(attend, source))
        yield


@contextmanager
def moved_table(positions: nn.Module, source: Int[Tensor, " N"]) -> Iterator[None]:
    def move(module: nn.Module, inputs: Any, table: Float[Tensor, "1 M D"]) -> Tensor:
        return table[:, with_prefix(source, table.shape[1]).to(table.device)]

    handle = positions.register_forward_hook(move)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def moved_bias(attend: Attend, source: Int[Tensor, " N"]) -> Iterator[None]:
    def move(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = dict(zip(ATTEND_ARGUMENTS, inputs, strict=False)) | named
        bias = given.get("bias")
        if bias is None:
            return None
        tokens = with_prefix(source, bias.shape[-1]).to(bias.device)
        return (), given | {"bias": bias[..., tokens, :][..., tokens].contiguous()}

    handle = attend.register_forward_pre_hook(move, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def moved_distances(module: RelativeDistances, source: Int[Tensor, " N"]) -> Iterator[None]:
    before = module.index
    tokens = with_prefix(source, len(before)).to(before.device)
    module.index = before[tokens][:, tokens]
    try:
        yield
    finally:
        module.index = before


def with_prefix(source: Int[Tensor, " N"], tokens: int) -> Int[Tensor, " M"]:
    """The order of all tokens where those before the patches stay.

    >>> with_prefix(torch.tensor([1, 0]), 3)
    tensor([0, 2, 1])
    """
    prefix = tokens - len(source)
    return torch.cat([torch.arange(prefix), source + prefix])
