"""Which patches a sample has to do without: masks of a grid, each drawn for (seed, epoch, index).

A mask is (B, N) in reading order, True where a cell is hidden, and hides the same number of cells
in every sample. What a sample draws does not depend on the batch it is in.
"""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.randomness import uniform, words

Grid = tuple[int, int]

ATTEMPTS = 10  # at each block, before blocks are given up
LEAST_BLOCK = 16  # cells
FLATTEST = 0.3  # height over width of a block; its inverse is the steepest
UNIT = 32  # pixels
ENOUGH_UNITS = 16


def hidden(ratio: float, cells: int) -> int:
    """How many of the cells a ratio hides: the nearest number that hides something and leaves
    something to see.

    >>> hidden(0.75, 196), hidden(0.99, 4)
    (147, 3)
    """
    check_ratio(ratio)
    if cells < 2:
        raise UserError(
            f"a mask of {cells} patch would hide all of the image or nothing: use larger images or "
            "smaller patches"
        )
    return min(max(round(ratio * cells), 1), cells - 1)


def check_ratio(ratio: float) -> None:
    if not 0 < ratio < 1:
        raise UserError(f"the mask ratio must be between 0 and 1, got {ratio}")


def shuffled(cells: int, *, seed: int, epoch: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """(B, N): the cells of each sample in an order of its own.

    >>> sorted(shuffled(4, seed=0, epoch=0, indices=np.array([7]))[0].tolist())
    [0, 1, 2, 3]
    """
    noise = words("mask", seed, epoch, indices[:, None], np.arange(cells))
    return np.argsort(noise, axis=1, kind="stable")


def random_mask(
    cells: int, ratio: float, *, seed: int, epoch: int, indices: NDArray[np.int64]
) -> Bool[Tensor, "B N"]:
    """Cells anywhere: all but the first that `shuffled` names, as many as `hidden` says.

    >>> random_mask(8, 0.75, seed=0, epoch=0, indices=np.arange(3)).sum(1)
    tensor([6, 6, 6])
    """
    order = shuffled(cells, seed=seed, epoch=epoch, indices=indices)
    mask = np.zeros(order.shape, dtype=bool)
    np.put_along_axis(mask, order[:, cells - hidden(ratio, cells) :], True, axis=1)
    return torch.from_numpy(mask)


def blockwise_mask(
    grid: Grid,
    count: int,
    *,
    least: int = LEAST_BLOCK,
    seed: int,
    epoch: int,
    indices: NDArray[np.int64],
) -> Bool[Tensor, "B N"]:
    """Blocks (BEiT, algorithm 1), until no more fit; then single cells up to `count` exactly, as
    the second version of BEiT does. Blocks have `least` cells or more where so many are to be had;
    a grid of one row or column has no room for blocks, and all its cells are single ones.

    >>> blockwise_mask((14, 14), 75, seed=0, epoch=0, indices=np.arange(3)).sum(1)
    tensor([75, 75, 75])
    """
    cells = math.prod(grid)
    if not 1 <= count < cells:
        raise UserError(
            f"a mask of {count} cells does not fit a grid of {grid[0]} x {grid[1]}: hide at least "
            f"one and leave one to see{f', so 1 to {cells - 1}' if cells > 1 else ''}"
        )
    mask = lay_blocks(grid, count, least=least, seed=seed, epoch=epoch, indices=indices)
    mask = mask.reshape(len(indices), cells)
    # hidden cells first, the others behind them in random order: the first `count` are the mask
    noise = uniform("mask the rest", seed, epoch, indices[:, None], np.arange(cells))
    order = np.argsort(np.where(mask, -1.0, noise), axis=1, kind="stable")
    np.put_along_axis(mask, order[:, :count], True, axis=1)
    return torch.from_numpy(mask)


def lay_blocks(
    grid: Grid,
    count: int,
    *,
    least: int = LEAST_BLOCK,
    seed: int,
    epoch: int,
    indices: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """(B, rows, columns) with at most `count` cells hidden, all of them by blocks.

    Every round is an attempt of each sample that is not done: a block that hides something new,
    and no more than is left, is taken. A sample is done with nothing left, or when ten attempts in
    a row were in vain; so there are at most ten rounds for each cell.
    """
    rows, columns = np.arange(grid[0])[:, None], np.arange(grid[1])
    mask = np.zeros((len(indices), *grid), dtype=bool)
    left = np.full(len(indices), count)
    vain = np.zeros(len(indices), dtype=np.int64)
    attempt = 0
    while (going := np.flatnonzero((left > 0) & (vain < ATTEMPTS))).size:
        chances = uniform("blocks", seed, epoch, indices[going][:, None], attempt, np.arange(4))
        height, width = shape_blocks(chances[:, :2], min(least, count), left[going])
        fits = (height < grid[0]) & (width < grid[1])
        top = np.floor(chances[:, 2] * (grid[0] - height + 1))
        start = np.floor(chances[:, 3] * (grid[1] - width + 1))
        top, bottom, start, stop = (
            edge[:, None, None] for edge in (top, top + height, start, start + width)
        )
        block = (rows >= top) & (rows < bottom) & (columns >= start) & (columns < stop)
        new = (block & ~mask[going]).sum(axis=(1, 2))
        taken = fits & (new > 0) & (new <= left[going])
        mask[going[taken]] |= block[taken]
        left[going[taken]] -= new[taken]
        vain[going] = np.where(taken, 0, vain[going] + 1)
        attempt += 1
    return mask


def shape_blocks(
    chances: NDArray[np.float64], least: int, left: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Heights and widths for pairs of chances: an area between `least` and what is left, all
    equally likely, and a ratio of height to width, all equally likely in its logarithm."""
    area = least + (left - least) * chances[:, 0]
    flat = math.log(FLATTEST)
    ratio = np.exp(flat - 2 * flat * chances[:, 1])
    return np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))


def unit_mask(
    grid: Grid,
    patch_size: int,
    *,
    unit: int = UNIT,
    ratio: float = 0.6,
    seed: int,
    epoch: int,
    indices: NDArray[np.int64],
) -> Bool[Tensor, "B N"]:
    """Whole squares of `unit` pixels a side (SimMIM), each of one patch or more; of the squares
    ⌈ratio · squares⌉ are hidden. `fitting_unit` finds a unit for a grid.

    >>> unit_mask((56, 56), 4, seed=0, epoch=0, indices=np.arange(2)).sum(1)  # 30 units of 64
    tensor([1920, 1920])
    """
    check_unit(grid, patch_size, unit)
    check_ratio(ratio)
    times = unit // patch_size
    coarse = grid[0] // times, grid[1] // times
    units = math.prod(coarse)
    count = math.ceil(ratio * units)
    if count == units:
        raise UserError(
            f"{ratio:g} of {units} units of {unit} pixels is all of them, and nothing is left to "
            "see: use a smaller ratio, smaller units or larger images"
        )
    order = shuffled(units, seed=seed, epoch=epoch, indices=indices)
    mask = np.zeros(order.shape, dtype=bool)
    np.put_along_axis(mask, order[:, :count], True, axis=1)
    fine = mask.reshape(len(indices), *coarse).repeat(times, axis=1).repeat(times, axis=2)
    return torch.from_numpy(fine.reshape(len(indices), math.prod(grid)))


def check_unit(grid: Grid, patch_size: int, unit: int) -> None:
    fitting = units_of(grid, patch_size)
    if unit not in fitting:
        height, width = (side * patch_size for side in grid)
        some = ", ".join(str(side) for side in fitting[:8])
        raise UserError(
            f"units of {unit} pixels do not divide images of {height} x {width} into whole patches "
            f"of {patch_size}: use {some}{' or larger' if len(fitting) > 8 else ''}"
        )


def units_of(grid: Grid, patch_size: int) -> list[int]:
    """Sides of squares that divide a grid into whole ones, in pixels, smallest first."""
    common = math.gcd(*grid)
    return [patch_size * times for times in range(1, common + 1) if common % times == 0]


def fitting_unit(grid: Grid, patch_size: int) -> int:
    """SimMIM's 32 pixels where they fit: the largest unit of at most so many that divides the grid
    into sixteen units or more; else a single patch.

    >>> fitting_unit((14, 14), 16), fitting_unit((8, 8), 4), fitting_unit((7, 7), 32)
    (32, 8, 32)
    """
    cells = math.prod(grid)
    fitting = [
        unit
        for unit in units_of(grid, patch_size)
        if unit <= UNIT and cells // (unit // patch_size) ** 2 >= ENOUGH_UNITS
    ]
    return max(fitting, default=patch_size)


def in_pixels(mask: Bool[Tensor, "B N"], grid: Grid, patch_size: int) -> Bool[Tensor, "B 1 H W"]:
    """Every cell as large as its patch."""
    on_grid = mask.unflatten(1, grid)[:, None]
    return on_grid.repeat_interleave(patch_size, 2).repeat_interleave(patch_size, 3)


def veil(images: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B 1 H W"]) -> Tensor:
    """Hidden pixels in the mean colour, which is zero after preprocessing."""
    return images.masked_fill(mask, 0.0)
