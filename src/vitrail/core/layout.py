"""Where each token of a sequence comes from in the picture."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """How an attention's tokens lie on the image: prefix tokens first, then the grid row by row.

    `stride` is the side of one grid cell in pixels. Attention within windows sets `window` (cells
    a side) and `shift` (cells by which the grid was rolled up and left before it was cut into
    windows).
    """

    grid: tuple[int, int]
    stride: int
    prefix: int = 0
    window: tuple[int, int] | None = None
    shift: tuple[int, int] = (0, 0)

    @property
    def tokens(self) -> int:
        """How many tokens one attention sees."""
        rows, columns = self.window or self.grid
        return self.prefix + rows * columns
