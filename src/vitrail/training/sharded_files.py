"""torch.distributed.checkpoint over our own files: every process writes what it has, none twice,
and reads what it needs, however many wrote. safetensors and JSON: DCP's own files are pickles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future as Done
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from vitrail.training.shards import (
    Chunk,
    Entry,
    Shards,
    chunk_key,
    shard_name,
    write_index,
    write_shard,
)
from vitrail.weights.stream import DTYPES, Planned

Start = Callable[[], None]
Finish = Callable[[dict[str, str]], None]


class Writer(StorageWriter):
    """Files in the directory `draft`. The main process makes it by `start` before any process
    writes, and makes a checkpoint of it by `finish`, which gets the SHA-256 of all files, when all
    have written."""

    def __init__(self, draft: Path, start: Start, finish: Finish) -> None:
        self.draft, self.start, self.finish_checkpoint, self.rank = draft, start, finish, 0

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.rank = kwargs.get("rank") or 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self.start()  # in the main process alone, before the others get their plans
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        chunks = {key_of(item): plan_item(item, planner) for item in plan.items}
        results = []
        if chunks:
            file, total = write_shard(self.draft / shard_name(self.rank), chunks)
            for item in plan.items:
                size = item.tensor_storage_size() or 0
                results.append(WriteResult(item.index, size, (file, key_of(item), total)))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = {one.index: one.storage_data for results in results for one in results}
        entries = {
            name: entry_of(name, tensor, written)
            for name, tensor in metadata.state_dict_metadata.items()
            if isinstance(tensor, TensorStorageMetadata)
        }
        write_index(self.draft, entries)
        self.finish_checkpoint({file: total for file, _, total in written.values()})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return True


def key_of(item: WriteItem) -> str:
    assert item.tensor_data is not None, "a run checkpoint holds tensors"
    return chunk_key(item.index.fqn, item.tensor_data.chunk.offsets)


def plan_item(item: WriteItem, planner: SavePlanner) -> Planned:
    assert item.tensor_data is not None
    data = item.tensor_data

    def resolve() -> Tensor:
        found = planner.resolve_data(item)
        assert isinstance(found, Tensor)
        return found.reshape(data.chunk.sizes)

    return Planned(data.properties.dtype, tuple(data.chunk.sizes), resolve)


def entry_of(
    name: str, tensor: TensorStorageMetadata, written: Mapping[MetadataIndex, tuple[str, str, str]]
) -> Entry:
    chunks = []
    for chunk in tensor.chunks:
        found = written.get(MetadataIndex(name, chunk.offsets)) or written.get(MetadataIndex(name))
        if found is not None:
            chunks.append(Chunk(found[0], found[1], tuple(chunk.offsets), tuple(chunk.sizes)))
    return Entry(DTYPES[tensor.properties.dtype], tuple(tensor.size), tuple(chunks))


class Reader(StorageReader):
    """What `Writer` or a single process wrote."""

    def __init__(self, directory: Path) -> None:
        self.shards = Shards(directory)

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found: dict[str, Any] = {}
        for name, entry in self.shards.entries.items():
            chunks = [
                ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                for chunk in entry.chunks
            ]
            properties = TensorProperties(dtype=self.shards.dtype(name))
            found[name] = TensorStorageMetadata(properties, torch.Size(entry.shape), chunks)
        return Metadata(state_dict_metadata=found)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            entry = self.shards.entries[item.storage_index.fqn]
            offsets = tuple(item.storage_index.offset or (0,) * len(entry.shape))
            chunk = next(chunk for chunk in entry.chunks if chunk.offsets == offsets)
            part = tuple(
                slice(start, start + length)
                for start, length in zip(item.storage_offsets, item.lengths, strict=True)
            )
            values = self.shards.read_chunk(chunk, part or None)
            target = planner.resolve_tensor(item).detach()
            target.copy_(values)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return True


def make_stager(device: torch.device) -> DefaultStager:
    """Copies tensors to the CPU in a thread; from a GPU through pinned memory that is kept between
    saves, in a stream of its own."""
    cuda = device.type == "cuda"
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=cuda,
            use_shared_memory=False,
            use_async_staging=True,
            use_non_blocking_copy=cuda,
        )
    )


def save_async(
    tensors: Mapping[str, Tensor], writer: Writer, group: dist.ProcessGroup, stager: DefaultStager
) -> tuple[Callable[[], object], Done[Any]]:
    """Copy the tensors, and write the copies, while training goes on; all processes call this
    together. Gives what waits for the copies, and the future of the files."""
    found = async_save(
        dict(tensors), storage_writer=writer, process_group=group, async_stager=stager
    )
    assert isinstance(found, AsyncSaveResponse)
    return found.staging_completion.result, found.upload_completion


def load_sharded(directory: Path, targets: dict[str, Tensor], group: dist.ProcessGroup) -> None:
    """Fill tensors, of which each process has a share, in place."""
    load(dict(targets), storage_reader=Reader(directory), process_group=group)


def why_failed(error: BaseException) -> BaseException:
    """What went wrong in one of the processes that save together."""
    failures = getattr(error, "failures", None)
    if failures:
        first = failures[min(failures)]
        found: BaseException = first[0] if isinstance(first, tuple) else first
        return found
    return error
