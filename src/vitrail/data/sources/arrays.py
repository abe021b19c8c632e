"""Images that are one array in memory, read again from its file rather than pickled."""

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.data.bands import MOST_BANDS, Values
from vitrail.data.sources.origin import digest

# A function and its arguments that give the pixels: it can be called in another process.
Loader: TypeAlias = "tuple[Callable[..., NDArray[Any]], tuple[Any, ...]]"


class Arrays:
    """Images of one shape, (N, H, W) or (N, H, W, C), of 8 or 16 bits, named by their place."""

    uniform = True

    def __init__(
        self,
        loader: Loader,
        title: str,
        labels: tuple[str, ...] = (),
        targets: NDArray[Any] | None = None,
    ) -> None:
        self.loader, self.title, self.labels, self.targets = loader, title, labels, targets
        self.pixels = load(*loader)
        if 0 in self.pixels.shape[1:]:
            raise UserError(f"{title}: images must have pixels, got the shape {self.pixels.shape}")
        if targets is not None and len(targets) != len(self.pixels):
            raise UserError(f"{title}: {len(self.pixels)} images but {len(targets)} labels")

    def __reduce__(self) -> tuple[Any, ...]:
        return Arrays, (self.loader, self.title, self.labels, self.targets)

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, index: int) -> Values:
        return self.pixels[index].copy()  # whoever gets it may write to it

    def name(self, index: int) -> str:
        return f"{self.title}[{range(len(self))[index]}]"

    def key(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> str:
        pixels = np.ascontiguousarray(self.pixels)
        return digest(str(pixels.shape).encode(), pixels.data.cast("B"))


def load(function: Callable[..., NDArray[Any]], arguments: tuple[Any, ...]) -> Values:
    """Pixels once per process, as long as a source shows them."""
    pixels = _shown.get((function, arguments))
    if pixels is None:
        pixels = function(*arguments)
        pixels.flags.writeable = False
        _shown[function, arguments] = pixels
    return pixels


_shown: WeakValueDictionary[Any, NDArray[Any]] = WeakValueDictionary()


def to_pixels(array: NDArray[Any], *, where: str) -> Values:
    """Pixels (N, H, W) or (N, H, W, C) from what people store, uint8 or uint16 where values are
    larger, or one sentence why not.

    >>> to_pixels(np.zeros((5, 3, 8, 8), dtype=np.int64), where="x_train").shape
    (5, 8, 8, 3)
    """
    if array.ndim not in (3, 4):
        raise UserError(
            f"{where} has shape {array.shape}, expected images (N, H, W) or (N, H, W, C)"
        )
    if array.ndim == 4 and not has_channels_last(array.shape, where):
        array = np.moveaxis(array, 1, -1)
    if array.dtype == np.uint8:
        return array
    whole = array.dtype.kind in "iub"
    if not whole or (array.size and (array.min() < 0 or array.max() > 65535)):
        raise UserError(
            f"{where} is {array.dtype}, expected whole numbers from 0 to 255 or to 65535: save it "
            "as uint8, times 255 where it goes from 0 to 1, or as uint16"
        )
    deep = array.size > 0 and array.max() > 255
    return array.astype(np.uint16 if deep else np.uint8, copy=False)


def has_channels_last(shape: tuple[int, ...], where: str) -> bool:
    """Whether the last axis of (N, H, W, C) holds the channels, or the second of (N, C, H, W).

    >>> has_channels_last((5, 64, 64, 13), "x"), has_channels_last((5, 13, 64, 64), "x")
    (True, False)
    """
    for counts in ((1, 3, 4), range(1, MOST_BANDS + 1)):
        if shape[-1] in counts or shape[1] in counts:
            return shape[-1] in counts
    raise UserError(
        f"{where} has shape {shape}, expected 1 to {MOST_BANDS} channels on the last axis"
    )
