"""Small data sets are decoded once, on first use: every image has a slot of its own in one file.

A slot holds what `decode` gave, to the bit, with its shape and a checksum, so that training with
and without the file is the same. Slots are filled as images are first read, by any number of
processes and in any order: nobody waits before the first step, and two that fill the same slot
write the same bytes. A slot that is empty, or that somebody is still writing or never finished,
fails its checksum, and the image is decoded again. What cannot be decoded is never stored.

    magic · fingerprint · slots of one size, each: height, width, channels, CRC-32 · pixels

The file is sparse: it takes room for the images that were read. It belongs to the run that made it,
and goes with `remove_cache`.
"""

import os
import shutil
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from vitrail.core.errors import UserError
from vitrail.data.bands import KINDS
from vitrail.data.images import BadImage
from vitrail.data.reader import Sample, read_pixels
from vitrail.data.source import Source
from vitrail.data.sources.origin import Origin, Subset, digest

MAGIC = b"VITRAILPIXELS2\n\0"
HEADER = len(MAGIC) + 32  # the fingerprint is 32 letters
SLOT = struct.Struct("<4I")  # height, width, channels, CRC-32 of these three and the pixels
SMALL = 2 * 2**30  # bytes of pixels up to which a data set is small
PROBES = 32  # images that are decoded to guess the size of all
NAME = "decoded.pixels"

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Decoding:
    """How images are decoded for a run: no smaller than `at_least`, with this many channels of so
    many bits."""

    at_least: tuple[int, int] | None = None
    channels: int = 3
    bits: int = 8

    def read(self, source: Source, index: int) -> Pixels:
        return read_pixels(
            Sample(source, index), channels=self.channels, at_least=self.at_least, bits=self.bits
        )

    def tag(self) -> bytes:
        """What decides the pixels beside the images themselves."""
        bits = "" if self.bits == 8 else f"{self.bits} "
        return f"{self.at_least} {self.channels} {bits}{PIL.__version__}".encode()


class Cached:
    """A source whose images are decoded once. What is larger than a slot is decoded every time."""

    uniform = False  # known only once every image was read

    def __init__(self, source: Source, path: Path, how: Decoding, slot: int) -> None:
        self.source, self.path, self.how, self.slot = source, path, how, slot
        self.labels, self.targets = source.labels, source.targets
        self._key = source.key if isinstance(source, Origin) else source.name
        self._file = os.open(path, os.O_RDWR)
        self._full = False  # the disk took no more

    def __reduce__(self) -> tuple[Any, ...]:
        return Cached, (self.source, self.path, self.how, self.slot)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):  # AttributeError: the file could not be opened
            os.close(self._file)

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Pixels:
        index = range(len(self))[index]
        kind = KINDS[self.how.bits]  # a slot holds bytes
        found = self._load(index)
        if found is not None:
            return found.view(kind)
        pixels = self.how.read(self.source, index)
        self._store(index, pixels.view(np.uint8))
        return pixels

    def holds(self, index: int) -> bool:
        """Whether an image was decoded before."""
        return self._load(index) is not None

    def _load(self, index: int) -> Pixels | None:
        place = self._place(index)
        head = os.pread(self._file, SLOT.size, place)
        if len(head) < SLOT.size:
            return None  # beyond the end of the file: nothing was written there yet
        height, width, channels, check = SLOT.unpack(head)
        size = height * width * channels
        if not 0 < size <= self.slot:
            return None
        pixels = os.pread(self._file, size, place + SLOT.size)
        if len(pixels) < size or check != _checksum((height, width, channels), pixels):
            return None
        # a copy that may be written to: nobody writes to the file by way of an image
        return np.frombuffer(bytearray(pixels), np.uint8).reshape(height, width, channels)

    def _store(self, index: int, pixels: Pixels) -> None:
        if self._full or pixels.size > self.slot or pixels.ndim != 3:
            return
        shape: tuple[int, int, int] = pixels.shape
        data = np.ascontiguousarray(pixels).data.cast("B")
        slot = SLOT.pack(*shape, _checksum(shape, data)) + data
        try:
            os.pwrite(self._file, slot, self._place(index))
        except OSError:
            self._full = True  # training goes on; images are decoded each time they are read

    def _place(self, index: int) -> int:
        return HEADER + index * (SLOT.size + self.slot)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def key(self, index: int) -> str:
        return self._key(index)

    def fingerprint(self) -> str:
        return digest(self.how.tag(), fingerprint_of(self.source).encode())


def _checksum(shape: tuple[int, int, int], pixels: bytes | memoryview) -> int:
    return zlib.crc32(pixels, zlib.crc32(struct.pack("<3I", *shape)))


@dataclass(frozen=True)
class Room:
    """What a cache takes, in bytes: for one image at most, and for all, as a few suggest."""

    slot: int
    total: int


def room_for(source: Source, how: Decoding, *, limit: int = SMALL) -> Room | None:
    """None where caching is not worth it: decoding takes no time, or its result too much room.

    >>> from vitrail.data.sources import open_data
    >>> room_for(open_data("digits")["train"], Decoding())  # they are arrays already
    """
    if isinstance(source, Subset):
        return room_for(source.whole, how, limit=limit)
    if not len(source) or getattr(source, "uniform", False) or isinstance(source, Cached):
        return None
    sizes = []
    for index in np.unique(np.linspace(0, len(source) - 1, PROBES).astype(int)).tolist():
        with suppress(BadImage):
            sizes.append(how.read(source, index).nbytes)
    total = round(float(np.mean(sizes or [0])) * len(source))
    return Room(max(sizes), total) if 0 < total <= limit else None


def cached(source: Source, directory: Path, how: Decoding, slot: int) -> Origin:
    """The same images through the file in `directory`, which is started again if it was made for
    other images or another size. A part of a data set is cached under the numbers of the whole."""
    if isinstance(source, Subset):
        return Subset(cached(source.whole, directory, how, slot), source.indices)
    path = directory / NAME
    written = digest(how.tag(), str(slot).encode(), fingerprint_of(source).encode()).encode()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), path.open("rb") as file:
            if file.read(HEADER) == MAGIC + written:
                return Cached(source, path, how, slot)
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_bytes(MAGIC + written)
        os.replace(draft, path)
    except OSError as error:
        free = shutil.disk_usage(directory).free if directory.is_dir() else 0
        raise UserError(
            f"{path}: decoded images cannot be written: {error.strerror or error} "
            f"({free / 2**20:,.0f} MiB are free there); set cache to false to train without"
        ) from None
    return Cached(source, path, how, slot)


def remove_cache(directory: Path) -> None:
    """Delete what `cached` wrote into a directory, and nothing else."""
    with suppress(OSError):  # not there, or somebody else has put something into it
        for path in (directory / NAME, *directory.glob(f"{Path(NAME).stem}.*.tmp")):
            path.unlink(missing_ok=True)
        directory.rmdir()


def fingerprint_of(source: Source) -> str:
    """The source's own, or that of all its bytes."""
    if isinstance(source, Origin):
        return source.fingerprint()
    raws = (source.read(i) for i in range(len(source)))
    return digest(*(raw if isinstance(raw, bytes) else raw.tobytes() for raw in raws))
