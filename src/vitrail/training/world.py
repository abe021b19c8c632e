"""The processes of a run: what they tell each other, and how they find each other."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _get_default_store

from vitrail.core.devices import choose_device
from vitrail.core.errors import UserError
from vitrail.training.heartbeat import Heartbeat
from vitrail.training.launcher import give_up, launched

T = TypeVar("T")

PATIENCE = timedelta(minutes=10)  # for a process that does not answer
STORE = "vitrail/store"  # where the main process of an attempt leaves its address
NO_LIMIT = timedelta(days=30)  # one that has died is noticed all the same: its connections break


@dataclass(frozen=True)
class World:
    """The processes of a run, seen by one of them. Alone, every question is answered at once."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    patient: dist.ProcessGroup | None = None  # for what may take one process as long as it likes
    saving: dist.ProcessGroup | None = None  # for what is written while the others train
    local: tuple[int, int] = (0, 1)  # rank and size among the processes of this machine
    store: Store | None = None  # where each says how far it is

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def sum(self, value: float) -> float:
        return self.sums((value,))[0]

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum over all processes of each value, in one exchange between CPUs: a GPU goes on
        with its work meanwhile."""
        if self.size == 1:
            return list(values)
        totals = torch.tensor(values, dtype=torch.float64)
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

    def to_main(self, value: T) -> list[T] | None:
        """What every process has, in the order of ranks, in the main one; None in the others."""
        if self.size == 1:
            return [value]
        values: list[T] | None = [value] * self.size if self.is_main else None
        dist.gather_object(value, values, dst=0, group=self.patient)
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
    cuda = chosen.type == "cuda"
    if cuda:
        torch.cuda.set_device(chosen)
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if has_stale_store():
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = fresh_store(rank)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    else:
        dist.init_process_group(backend, timeout=PATIENCE)
    patient, saving = (dist.new_group(backend="gloo", timeout=NO_LIMIT) for _ in range(2))
    here = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    beats = PrefixStore("vitrail", _get_default_store())
    world = World(dist.get_rank(), dist.get_world_size(), chosen, patient, saving, here, beats)
    yield world
    world.wait()  # who leaves first takes the others' connections along
    dist.destroy_process_group()


def has_stale_store() -> bool:
    """Whether torchrun's store may hold what an earlier attempt has left: always among several
    machines, whose agents do not count attempts alike."""
    given = os.environ.get
    again = given("TORCHELASTIC_RESTART_COUNT", "0") != "0" or given("GROUP_WORLD_SIZE", "1") != "1"
    return given("TORCHELASTIC_USE_AGENT_STORE") == "True" and again


def fresh_store(rank: int) -> TCPStore:
    """A store that knows nothing of earlier attempts. torchrun's agent keeps one for as long as it
    lives, so processes that it starts again would find the addresses of those that died, and gloo
    would try to reach them. The main process opens another, and leaves its port in that one."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agent = TCPStore(host, port, is_master=False, timeout=PATIENCE)
    if rank == 0:
        own = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
        agent.set(STORE, f"{host} {own.port}")
        return own
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while True:
        address, number = agent.get(STORE).decode().split()
        try:
            found = TCPStore(address, int(number), is_master=False, timeout=timedelta(seconds=2))
        except dist.DistError:  # of a main process that is gone: the next one is not there yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
            continue
        found.set_timeout(PATIENCE)
        return found


def rank_device(device: str | None) -> torch.device:
    """The device of one of several processes: a GPU each, or the CPU."""
    chosen = choose_device(device)
    if chosen.type == "mps" and device == "auto":
        chosen = torch.device("cpu")
    if chosen.type not in ("cpu", "cuda"):
        raise UserError(f"device must be cpu or cuda for several processes, got {device}")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if chosen.type == "cuda" else chosen


def start_heartbeat(world: World) -> Heartbeat | None:
    """Tell the others how far this process is, and end a run in which one of them hangs."""
    if world.store is None:
        return None
    patience = 0.9 * PATIENCE.total_seconds()  # before a collective gives up without a name
    return Heartbeat(
        world.store,
        world.rank,
        world.size,
        patience=patience,
        on_hang=give_up,
    )
