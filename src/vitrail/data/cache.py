"""Small data sets decoded once: all pixels in one file, mapped into memory.

The file is what `decode` gave, to the bit, so that training from it and without it is the same. It
is used again as long as names, sizes and times of the images, the size they are decoded at and the
decoder stay what they were, and replaced when they do not.

    magic · pixels of all images · (N, 4) int64: offset, height, width, channels · JSON · its length
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage, decode
from vitrail.data.source import Source
from vitrail.data.sources.origin import Origin, Subset, digest
from vitrail.data.threads import each

MAGIC = b"VITRAILPIXELS1\n\0"
SMALL = 2 * 2**30  # bytes of pixels up to which a data set is small
PROBES = 32  # images that are decoded to guess the size of all
SUFFIX, DRAFT = ".pixels", ".pixels.tmp"

Pixels = NDArray[np.uint8]


class Cached:
    """A source whose images are decoded already; what was broken stays so, for the same reason."""

    def __init__(self, source: Source, path: Path, fingerprint: str) -> None:
        self.source, self.path = source, path
        self.labels, self.targets = source.labels, source.targets
        self._fingerprint = fingerprint
        self._key = source.key if isinstance(source, Origin) else source.name
        said, self._index, self._pixels = _read(path)
        if said["fingerprint"] != fingerprint or len(self._index) != len(source):
            raise UserError(f"{path}: holds other images than it did: start the run again")
        self.broken: dict[int, str] = {int(i): reason for i, reason in said["broken"].items()}
        self.uniform = not self.broken and len(np.unique(self._index[:, 1:], axis=0)) == 1

    def __reduce__(self) -> tuple[Any, ...]:
        return Cached, (self.source, self.path, self._fingerprint)

    def __len__(self) -> int:
        return len(self._index)

    def read(self, index: int) -> Pixels:
        index = range(len(self))[index]
        if index in self.broken:
            raise BadImage(self.name(index), self.broken[index])
        offset, *shape = self._index[index].tolist()
        pixels = self._pixels[offset : offset + shape[0] * shape[1] * shape[2]]
        return np.array(pixels.reshape(shape))  # a copy: nobody writes to the file

    def name(self, index: int) -> str:
        return self.source.name(index)

    def key(self, index: int) -> str:
        return self._key(index)

    def fingerprint(self) -> str:
        return self._fingerprint


def is_worth_caching(
    source: Source,
    *,
    at_least: tuple[int, int] | None = None,
    channels: int = 3,
    limit: int = SMALL,
) -> bool:
    """Whether decoding takes time and its result little room, judged by a few of the images.

    >>> from vitrail.data.sources import open_data
    >>> is_worth_caching(open_data("digits")["train"])  # they are arrays already
    False
    """
    if isinstance(source, Subset):
        return is_worth_caching(source.whole, at_least=at_least, channels=channels, limit=limit)
    if not len(source) or getattr(source, "uniform", False) or isinstance(source, Cached):
        return False
    sizes = []
    for index in np.unique(np.linspace(0, len(source) - 1, PROBES).astype(int)).tolist():
        with suppress(BadImage):
            sizes.append(pixels_of(source, index, at_least, channels).size)
    return 0 < float(np.mean(sizes or [0])) * len(source) <= limit


def decode_once(
    source: Source,
    directory: Path,
    *,
    at_least: tuple[int, int] | None = None,
    channels: int = 3,
    threads: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Origin:
    """The same images, decoded: from the file in `directory` where it fits, or into it.

    A part of a data set is cached with the whole, so that all parts share one file. `watch` is
    called with how many of how many images are done.
    """
    if isinstance(source, Subset):
        whole = decode_once(
            source.whole,
            directory,
            at_least=at_least,
            channels=channels,
            threads=threads,
            watch=watch,
        )
        return Subset(whole, source.indices)
    how = f"{at_least} {channels} {PIL.__version__}".encode()
    key = source.key if isinstance(source, Origin) else source.name
    keys = (key(i).encode("utf-8", "surrogatepass") for i in range(len(source)))
    path = directory / f"{digest(how, *keys)[:16]}{SUFFIX}"
    fingerprint = digest(MAGIC, how, fingerprint_of(source).encode())
    with suppress(OSError, ValueError, UserError):
        return Cached(source, path, fingerprint)

    def image(index: int) -> Pixels | BadImage:
        try:
            return pixels_of(source, index, at_least, channels)
        except BadImage as problem:
            return problem

    def fill(file: BinaryIO) -> None:
        index = np.zeros((len(source), 4), dtype=np.int64)
        broken: dict[int, str] = {}
        file.write(MAGIC)
        for number, pixels in enumerate(each(image, len(source), threads=threads)):
            if isinstance(pixels, BadImage):
                broken[number] = pixels.reason
            else:
                index[number] = (file.tell(), *pixels.shape)
                file.write(pixels.data)
            if watch is not None:
                watch(number + 1, len(source))
        file.write(bytes(-file.tell() % index.itemsize))
        said = {"fingerprint": fingerprint, "index": file.tell(), "broken": broken}
        file.write(index.data)
        footer = json.dumps(said).encode()
        file.write(footer + len(footer).to_bytes(8, "little") + MAGIC)

    _write(path, fill)
    return Cached(source, path, fingerprint)


def pixels_of(
    source: Source, index: int, at_least: tuple[int, int] | None, channels: int
) -> Pixels:
    raw = source.read(index)
    if isinstance(raw, bytes):
        return decode(raw, source.name(index), at_least=at_least, channels=channels)
    return np.ascontiguousarray(raw[..., None] if raw.ndim == 2 else raw)


def fingerprint_of(source: Source) -> str:
    """The source's own, or that of all its bytes."""
    if isinstance(source, Origin):
        return source.fingerprint()
    raws = (source.read(i) for i in range(len(source)))
    return digest(*(raw if isinstance(raw, bytes) else raw.tobytes() for raw in raws))


def _read(path: Path) -> tuple[dict[str, Any], NDArray[np.int64], Pixels]:
    """What a cache file says, its index and its pixels; raises where it is none."""
    file = np.memmap(path, dtype=np.uint8, mode="r")
    tail = len(MAGIC) + 8
    if len(file) < 2 * tail or bytes(file[-len(MAGIC) :]) != MAGIC:
        raise ValueError(f"{path}: is no cache of pixels")
    length = int.from_bytes(bytes(file[-tail : -len(MAGIC)]), "little")
    footer = len(file) - tail - length
    said: dict[str, Any] = json.loads(bytes(file[footer:-tail]))
    index = np.array(file[said["index"] : footer]).view(np.int64).reshape(-1, 4)
    return said, index, np.asarray(file)


def _write(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    """Whole or not at all: another name, flushed to the disk, renamed."""
    draft = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=DRAFT, delete=False) as file:
            draft = file.name
            fill(file.file)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        free = shutil.disk_usage(path.parent).free if path.parent.is_dir() else 0
        raise UserError(
            f"{path}: the decoded images cannot be written: {error.strerror or error} "
            f"({free / 2**20:,.0f} MiB are free there)"
        ) from None
    finally:
        if draft is not None:
            Path(draft).unlink(missing_ok=True)


def _sweep(directory: Path) -> None:
    """Remove what a run that was killed left; a day is longer than decoding a small set takes."""
    for left in directory.glob(f"*{DRAFT}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 86_400:
                left.unlink()
