"""What a source that was opened here can say beyond the protocol, and how a part of one is seen."""

from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitrail.data.source import Raw, Source


@runtime_checkable
class Origin(Source, Protocol):
    """A source that knows where its images come from."""

    @property
    def uniform(self) -> bool:
        """Whether all images are arrays of one shape that cost nothing to read."""
        ...

    def key(self, index: int) -> str:
        """The image's name within its data set, the same wherever the data set lies."""
        ...

    def fingerprint(self) -> str:
        """Changes when an image does: from names, sizes and times, or from the content."""
        ...


class Subset:
    """Some images of a source, under numbers of their own.

    >>> from vitrail.data.sources.digits import open_digits
    >>> part = Subset(open_digits()["train"], np.array([5, 7]))
    >>> len(part), part.name(1)
    (2, 'digits[7]')
    """

    def __init__(self, whole: Origin, indices: NDArray[np.int64]) -> None:
        self.whole, self.indices = whole, indices
        self.labels: tuple[str, ...] = whole.labels
        self.targets: NDArray[Any] | None = (
            None if whole.targets is None else whole.targets[indices]
        )
        self.uniform = whole.uniform

    def __reduce__(self) -> tuple[Any, ...]:
        return Subset, (self.whole, self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> Raw:
        return self.whole.read(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.whole.name(int(self.indices[index]))

    def key(self, index: int) -> str:
        return self.whole.key(int(self.indices[index]))

    def fingerprint(self) -> str:
        return digest(self.whole.fingerprint().encode(), self.indices.tobytes())


def digest(*pieces: bytes | memoryview) -> str:
    """One short name for some bytes, which no other bytes will have."""
    state = blake2b(digest_size=16)
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "little"))
        state.update(piece)
    return state.hexdigest()
