"""Images that are files of their own, as class folders and manifests have them."""

import re
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from vitrail.data.sources.origin import digest
from vitrail.data.sources.packed import Packed
from vitrail.data.sources.places import image_bytes, join, stamp

# What counts as an image among other files. It is wider than what can be decoded: an image in an
# unknown format is better named as broken than passed over.
SUFFIXES = re.compile(
    r"[^/]\.(apng|avif|bmp|dds|dib|exr|gif|hdr|hei[cf]|ico|j2k|jfif|jif|jp2|jpe|jpeg|jpg|jxl|"
    r"npy|p[bgnp]m|png|psd|qoi|tga|tiff?|webp)$",
    re.IGNORECASE,
)


def is_image(path: str) -> bool:
    """Whether a file's name is that of an image.

    >>> is_image("cat/IMG_17.JPG"), is_image("cat/notes.txt")
    (True, False)
    """
    return SUFFIXES.search(path) is not None


class Files:
    """Files below a root, each with its label. `ignored` are files beside them that are no
    images."""

    uniform = False
    ignored: tuple[str, ...] = ()

    def __init__(
        self,
        root: str,
        paths: Sequence[str],
        labels: tuple[str, ...] = (),
        targets: NDArray[Any] | None = None,
    ) -> None:
        self.root, self.paths = root, Packed(paths)
        self.labels, self.targets = labels, targets

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        return image_bytes(self.name(index))

    def name(self, index: int) -> str:
        return join(self.root, self.paths[index])

    def key(self, index: int) -> str:
        return self.paths[index]

    def fingerprint(self) -> str:
        facts = (f"{self.key(i)}\0{stamp(self.name(i))}" for i in range(len(self)))
        return digest(*(fact.encode("utf-8", "surrogatepass") for fact in facts))
