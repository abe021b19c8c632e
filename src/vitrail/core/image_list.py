"""Images of different sizes that go together where a batch of one size would."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Shaped
from torch import Tensor


class ImageList(tuple[Shaped[Tensor, "C _ _"], ...]):
    """Images (C, H, W), each of its own size, with those methods of a tensor (B, C, H, W) that
    move a batch and divide it."""

    def to(self, *where: Any, **how: Any) -> "ImageList":
        """Every image on another device, or in another precision."""
        return ImageList(image.to(*where, **how) for image in self)

    def split(self, sizes: Sequence[int]) -> "list[ImageList]":
        """So many images in each part."""
        ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
        return [ImageList(self[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
