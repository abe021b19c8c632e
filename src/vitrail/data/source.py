"""A source of images: how many, which bytes, which label, under which name. Nothing is decoded
here."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

# What a source holds for one image: encoded bytes, or pixels of shape (H, W) or (H, W, C), uint8 or
# of 16 bits.
Raw: TypeAlias = "bytes | NDArray[Any]"


class Source(Protocol):
    """Images by index. `targets` are class numbers (N,), or rows of zeros and ones (N, K) where an
    image may have several labels; without labels it is None and `labels` is empty."""

    labels: tuple[str, ...]
    targets: NDArray[Any] | None

    @property
    def uniform(self) -> bool:
        """Whether every image is an array of one size."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Raw:
        """The undecoded image; raises `BadImage` where even the bytes cannot be had."""
        ...

    def name(self, index: int) -> str:
        """What a person would call the image: its path, or its place in an archive."""
        ...


@dataclass(frozen=True)
class Splits:
    """The parts of a data set, each under the name a person knows: train, val, test. `ignored` are
    files between the images that are no images, as paths below the data set."""

    parts: dict[str, Source]
    ignored: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Source:
        return self.parts[name]
