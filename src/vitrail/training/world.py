"""The processes of a run: what they tell each other, and how they find each other."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitrail.core.devices import choose_device
from vitrail.core.errors import UserError
from vitrail.training.launcher import launched

T = TypeVar("T")

PATIENCE = timedelta(minutes=10)  # for a process that does not answer
NO_LIMIT = timedelta(days=30)  # one that has died is noticed all the same: its connections break


@dataclass(frozen=True)
class World:
    """The processes of a run, seen by one of them. Alone, every question is answered at once."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    patient: dist.ProcessGroup | None = None  # for what may take one process as long as it likes

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def sum(self, value: float) -> float:
        return self.sums((value,))[0]

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum over all processes of each value, in one exchange."""
        if self.size == 1:
            return list(values)
        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(totals)
        found: list[float] = totals.tolist()
        return found

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process; all hear the same answer."""
        return self.sum(float(flag)) > 0

    def gather(self, value: T) -> list[T]:
        """What every process has, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value, group=self.patient)
        return values

    def from_main(self, value: T) -> T:
        """What the main process has, in all of them."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.patient)
        return values[0]

    def stack(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes above each other."""
        if self.size == 1:
            return tensor[None]
        rows = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(rows, tensor)
        return torch.stack(rows)

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all processes."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def wait(self) -> None:
        """Until every process is here, however long one of them writes, reads or decodes."""
        if self.size > 1:
            dist.barrier(self.patient)


@contextmanager
def process_group(device: str | None = "auto") -> Iterator[World]:
    """The world that torchrun set up for this process; a world of one where it did not."""
    if not launched():
        yield World(device=choose_device(device))
        return
    chosen = rank_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=PATIENCE)
    patient = dist.new_group(backend="gloo", timeout=NO_LIMIT)
    world = World(dist.get_rank(), dist.get_world_size(), chosen, patient)
    yield world
    world.wait()  # who leaves first takes the others' connections along
    dist.destroy_process_group()


def rank_device(device: str | None) -> torch.device:
    """The device of one of several processes: a GPU each, or the CPU."""
    chosen = choose_device(device)
    if chosen.type == "mps" and device == "auto":
        chosen = torch.device("cpu")
    if chosen.type not in ("cpu", "cuda"):
        raise UserError(f"device must be cpu or cuda for several processes, got {device}")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if chosen.type == "cuda" else chosen
