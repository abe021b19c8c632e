"""The tensors of a run checkpoint: in one file a process that wrote it, each tensor whole or in
chunks; `tensors.json` says where which chunk is. Any number of processes can read them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.weights.files import read_json
from vitrail.weights.stream import DTYPES, NAMES, Planned, planned, write_planned

INDEX = "tensors.json"
BEST = "best."  # how tensors are called that a run keeps to write OUT/best, and not to go on from


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor in a file: where it begins in the tensor, and its size."""

    file: str
    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A tensor, and the chunks that are all of it."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def shard_name(rank: int) -> str:
    return f"shard-{rank:05d}.safetensors"


def chunk_key(name: str, offsets: Iterable[int]) -> str:
    """
    >>> chunk_key("now.head.weight", (0, 0)), chunk_key("now.head.weight", (8, 0))
    ('now.head.weight', 'now.head.weight@8,0')
    """
    place = ",".join(map(str, offsets))
    return f"{name}@{place}" if place.strip("0,") else name


def write_shard(path: Path, tensors: Mapping[str, Planned]) -> tuple[str, str]:
    """A file of chunks by key: its name and its SHA-256."""
    return path.name, write_planned(tensors, path)


def write_index(directory: Path, entries: Mapping[str, Entry]) -> None:
    values = {name: asdict(entry) for name, entry in entries.items()}
    write_text(directory / INDEX, json.dumps(values))


def write_text(path: Path, text: str) -> None:
    """A small file that is on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        left = memoryview((text + "\n").encode())
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(directory: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """All tensors in the file of one process, and the index; gives the SHA-256 of the file."""
    name, total = write_shard(directory / shard_name(0), planned(tensors))
    entries = {
        key: Entry(
            DTYPES[t.dtype], tuple(t.shape), (Chunk(name, key, (0,) * t.ndim, tuple(t.shape)),)
        )
        for key, t in tensors.items()
    }
    write_index(directory, entries)
    return {name: total}


class Shards:
    """Reads tensors by name from the files of any number of processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        found = read_json(directory / INDEX)
        self.entries = {name: entry_of(values) for name, values in found.items()}
        self._files: dict[str, Any] = {}

    def dtype(self, name: str) -> torch.dtype:
        return NAMES[self.entries[name].dtype]

    def read(self, name: str) -> Tensor:
        """One tensor, whole."""
        entry = self.entries[name]
        if len(entry.chunks) == 1:
            return self.read_chunk(entry.chunks[0])
        found = torch.empty(entry.shape, dtype=self.dtype(name))
        for chunk in entry.chunks:
            place = tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
            found[place] = self.read_chunk(chunk)
        return found

    def read_chunk(self, chunk: Chunk, part: tuple[slice, ...] | None = None) -> Tensor:
        try:
            file = self._files.get(chunk.file)
            if file is None:
                file = self._files[chunk.file] = safe_open(self.directory / chunk.file, "pt")
            found: Tensor = (
                file.get_tensor(chunk.key) if part is None else file.get_slice(chunk.key)[part]
            )
        except SafetensorError as error:
            raise OSError(str(error)) from None
        return found

    def read_all(self) -> dict[str, Tensor]:
        """All tensors that a run goes on from, whole."""
        return dict(RunTensors(self))


class RunTensors(Mapping[str, Tensor]):
    """The tensors that a run goes on from, by name, each read whole when it is asked for: no
    process needs memory for all of them beside its own."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.names = [name for name in shards.entries if not name.startswith(BEST)]

    def __getitem__(self, name: str) -> Tensor:
        return self.shards.read(name).clone()  # not the file's memory, which may go

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:  # without reading, unlike that of Mapping
        return name in self.shards.entries and not str(name).startswith(BEST)


def entry_of(values: dict[str, Any]) -> Entry:
    chunks = tuple(
        Chunk(one["file"], one["key"], tuple(one["offsets"]), tuple(one["sizes"]))
        for one in values["chunks"]
    )
    return Entry(values["dtype"], tuple(values["shape"]), chunks)
