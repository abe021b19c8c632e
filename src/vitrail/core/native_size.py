"""Native resolution: the size of an image in whole patches, with its own aspect ratio."""

import math
from dataclasses import dataclass

from vitrail.core.passport import MOST_PIXELS


@dataclass(frozen=True)
class NativeSize:
    """Images keep their size, or are scaled down until they have at most `max_tokens` patches of
    `patch` pixels a side; either side is then cut down to whole patches. None is enlarged, but to
    one patch a side."""

    patch: int
    max_tokens: int

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of an image of height x width pixels.

        >>> NativeSize(16, 196).grid(300, 400), NativeSize(16, 196).grid(64, 100)
        ((12, 16), (4, 6))
        """
        # in whole numbers: floor(sqrt(a / b)) is isqrt(a // b), and no square loses a row
        rows = min(math.isqrt(self.max_tokens * height // width), height // self.patch)
        columns = min(math.isqrt(self.max_tokens * width // height), width // self.patch)
        most = min(self.max_tokens, MOST_PIXELS // self.patch)  # of a strip of one row
        return max(min(rows, most), 1), max(min(columns, most), 1)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels.

        >>> NativeSize(16, 196).size(300, 400)
        (192, 256)
        """
        rows, columns = self.grid(height, width)
        return rows * self.patch, columns * self.patch

    @property
    def at_least(self) -> tuple[int, int]:
        """What an image has to cover to be scaled down to any of its sizes: a square of as many
        patches. The short side of an image that covers it is longer than that of its grid, and so
        is the long side."""
        side = math.isqrt(self.max_tokens - 1) + 1
        return side * self.patch, side * self.patch
