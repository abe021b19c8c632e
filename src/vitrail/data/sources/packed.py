"""Many short strings in two flat buffers: a million paths pickle as fast as their bytes copy.

A list of strings is a million objects: workers that start by pickling unpack them one by one, and
workers that start by forking copy every page on which a reference count changes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np


class Packed(Sequence[str]):
    """Strings by index, frozen.

    >>> names = Packed(["cat/1.jpg", "dog/2.jpg"])
    >>> names[1], len(names)
    ('dog/2.jpg', 2)
    """

    def __init__(self, strings: Iterable[str]) -> None:
        # a name on a disk need not be valid Unicode: surrogates carry what is not
        encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
        self._letters = b"".join(encoded)
        self._ends = np.cumsum([len(string) for string in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Packed": ...
    def __getitem__(self, index: int | slice) -> "str | Packed":
        if isinstance(index, slice):
            return Packed(self[i] for i in range(*index.indices(len(self))))
        place = range(len(self))[index]
        start = int(self._ends[place - 1]) if place else 0
        return self._letters[start : int(self._ends[place])].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))
