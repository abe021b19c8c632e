"""Where each patch was: tables that are added to the embedded patches."""

from collections.abc import Callable
from typing import Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import UserError

# "none" adds nothing, and "relative" is a matter of attention
Positions = Literal["learned", "none", "sincos1d", "sincos2d", "learned2d", "relative"]


class LearnedPositions(nn.Module):
    """One free vector for every token: first the prefix tokens that have a slot, then the grid row
    by row."""

    def __init__(self, slots: int, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, slots + grid[0] * grid[1], dim))

    def forward(self) -> Float[Tensor, "1 N D"]:
        return self.table


class LearnedPositions2d(nn.Module):
    """Half of the vector from the column, half from the row (arXiv:2010.11929, appendix D.4)."""

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        if dim % 2:
            raise UserError(f"2-D positions split the width in two, so it must be even, got {dim}")
        self.rows = nn.Parameter(torch.empty(grid[0], dim // 2))
        self.columns = nn.Parameter(torch.empty(grid[1], dim // 2))

    def forward(self) -> Float[Tensor, "1 N D"]:
        return cross_positions(self.rows, self.columns)


def cross_positions(
    rows: Float[Tensor, "rows d"], columns: Float[Tensor, "columns d"]
) -> Float[Tensor, "1 N D"]:
    """A position for every cell of the grid of these rows and columns."""
    across = columns.expand(len(rows), -1, -1)
    down = rows[:, None].expand(-1, len(columns), -1)
    return torch.cat([across, down], dim=-1).flatten(0, 1)[None]


class FixedPositions(nn.Module):
    """Nothing learned: a table that is computed when the model is made, and never saved."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        table = self.compute()[None].to(torch.get_default_dtype())
        self.register_buffer("table", table, persistent=False)

    def compute(self) -> Float[Tensor, "N D"]:
        """The table in float64, on the CPU even while a model is laid out on the meta device,
        because no checkpoint brings it back."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moved to another precision, the table is exact in that precision, not rounded twice."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.table = self.compute()[None].to(self.table)
        return self

    def forward(self) -> Float[Tensor, "1 N D"]:
        return self.table


class SinCosPositions(FixedPositions):
    """Sines and cosines of the two coordinates."""

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        self.grid, self.dim = grid, dim
        super().__init__()

    def compute(self) -> Float[Tensor, "N D"]:
        return sincos_2d(self.grid, self.dim)


class SinCosPositions1d(FixedPositions):
    """Sines and cosines of the place in the sequence: first the prefix tokens that have a slot,
    then the grid row by row."""

    def __init__(self, slots: int, grid: tuple[int, int], dim: int) -> None:
        self.count, self.dim = slots + grid[0] * grid[1], dim
        super().__init__()

    def compute(self) -> Float[Tensor, "N D"]:
        return sincos_1d(self.count, self.dim)


def sincos_1d(count: int, dim: int, temperature: float = 10_000.0) -> Float[Tensor, "N D"]:
    """The first `count` positions of arXiv:1706.03762, section 3.5: sin(n / 10000^(2i/D)) in even
    channels, the cosine of the same in odd ones; float64, on the CPU.

    >>> sincos_1d(197, 192).shape
    torch.Size([197, 192])
    """
    if dim % 2:
        raise UserError(f"1-D sine positions need an even width, got {dim}")
    frequency = temperature ** -(torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)
    angle = torch.arange(count, dtype=torch.float64, device="cpu")[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def sincos_2d(
    grid: tuple[int, int], dim: int, temperature: float = 10_000.0
) -> Float[Tensor, "N D"]:
    """Both coordinates in MoCo v3's order: sin x, cos x, sin y, cos y; float64, on the CPU.

    >>> sincos_2d((14, 14), 192).shape
    torch.Size([196, 192])
    """
    if dim % 4 or dim < 8:
        raise UserError(
            f"2-D sine positions need a width that is a multiple of 4 and at least 8, got {dim}"
        )
    rows, columns = grid
    frequency = temperature ** -(
        torch.arange(dim // 4, dtype=torch.float64, device="cpu") / (dim // 4 - 1)
    )
    row, column = torch.meshgrid(
        torch.arange(rows, dtype=torch.float64, device="cpu"),
        torch.arange(columns, dtype=torch.float64, device="cpu"),
        indexing="ij",
    )
    y, x = row.reshape(-1, 1) * frequency, column.reshape(-1, 1) * frequency
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)


def make_positions(
    kind: Positions, slots: int, grid: tuple[int, int], dim: int
) -> LearnedPositions | LearnedPositions2d | FixedPositions | None:
    """`slots` are those of prefix tokens, which positions over the sequence alone have."""
    match kind:
        case "learned":
            return LearnedPositions(slots, grid, dim)
        case "learned2d":
            return LearnedPositions2d(grid, dim)
        case "sincos1d":
            return SinCosPositions1d(slots, grid, dim)
        case "sincos2d":
            return SinCosPositions(grid, dim)
        case "none" | "relative":
            return None
