"""Native resolution: the size of an image in whole patches, with its own aspect ratio."""

import math
from dataclasses import dataclass

from vitrail.core.layout import Sides, height_and_width
from vitrail.core.passport import MOST_PIXELS


@dataclass(frozen=True)
class NativeSize:
    """Images keep their size, or are scaled down until they have at most `max_tokens` patches of
    `patch` pixels a side, or of that height and width; either side is then cut down to whole
    patches. None is enlarged, but to one patch a side."""

    patch: Sides
    max_tokens: int

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of an image of height x width pixels.

        >>> NativeSize(16, 196).grid(300, 400), NativeSize(16, 196).grid(64, 100)
        ((12, 16), (4, 6))
        """
        # in whole numbers: floor(sqrt(a / b)) is isqrt(a // b), and no square loses a row
        high, wide = height_and_width(self.patch)
        tall, broad = height * wide, width * high  # the image in patches, both times the same
        rows = min(math.isqrt(self.max_tokens * tall // broad), height // high)
        columns = min(math.isqrt(self.max_tokens * broad // tall), width // wide)
        # a strip of one row or column
        rows = min(rows, self.max_tokens, MOST_PIXELS // high)
        columns = min(columns, self.max_tokens, MOST_PIXELS // wide)
        return max(rows, 1), max(columns, 1)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels.

        >>> NativeSize(16, 196).size(300, 400)
        (192, 256)
        """
        rows, columns = self.grid(height, width)
        high, wide = height_and_width(self.patch)
        return rows * high, columns * wide

    @property
    def at_least(self) -> tuple[int, int]:
        """What an image has to cover to be scaled down to any of its sizes: a square of as many
        patches. The short side of an image that covers it is longer than that of its grid, and so
        is the long side."""
        side = math.isqrt(self.max_tokens - 1) + 1
        high, wide = height_and_width(self.patch)
        return side * high, side * wide
