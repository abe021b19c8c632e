"""Many processes: how they are started, what they tell each other, and how a model is spread over
them. The one file that knows torch.distributed; models and the loop are the same for one process.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, get_error_handler
from torch.nn.parallel import DistributedDataParallel

from vitrail.core.devices import choose_device
from vitrail.core.errors import UserError
from vitrail.objectives.objective import Objective

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Kind = Literal["ddp", "fsdp", "hsdp"]
T = TypeVar("T")

SECONDS_TO_BE_ENDED = 20
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


def exit_now(code: int) -> NoReturn:
    """End a process that torchrun started, at once. All is saved by now; but where a model
    was shared, torch's own threads may abort while the interpreter takes itself down, and a run
    that has succeeded would be called a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def launched() -> bool:
    """Whether torchrun started this process."""
    return "LOCAL_RANK" in os.environ and "MASTER_ADDR" in os.environ


def launch(module: str, arguments: Sequence[str], processes: int) -> None:
    """Run `python -m module arguments` in several processes of this machine, under torchrun's own
    agent. The first mistake of any of them is the mistake of all."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    threads = max(torch.get_num_threads() // processes, 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    config = LaunchConfig(
        run_id="vitrail",
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"is_host": True},
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=int(PATIENCE.total_seconds()),  # to end a step and save it after Ctrl-C
    )
    try:
        with kept_signal_handlers():
            elastic_launch(config, sys.executable)("-m", module, *arguments)
    except SignalException:
        raise KeyboardInterrupt from None  # the processes have saved
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == 2:
            raise UserError(recorded_sentence(failure.error_file_data)) from None
        if failure.exitcode < 0:
            raise UserError(why_killed(rank, -failure.exitcode)) from None
        raise


@contextmanager
def kept_signal_handlers() -> Iterator[None]:
    """torchrun's agent installs handlers of its own and leaves them behind."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def why_killed(rank: int, number: int) -> str:
    """
    >>> why_killed(1, 15)
    'process 1 was ended by SIGTERM: resume it from its last checkpoint'
    """
    name = signal.Signals(number).name
    memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"process {rank} was ended by {name}{memory}: resume it from its last checkpoint"


def recorded_sentence(written: Any) -> str:
    """What `report_errors` left, as torch wrapped it."""
    while isinstance(written, dict):
        written = written["message"]
    return str(written).removeprefix("UserError: ")


@contextmanager
def report_errors() -> Iterator[None]:
    """A person's mistake in one of many processes reaches them once, through who launched it. The
    others, whose connection to it breaks, have nothing to add."""
    try:
        yield
    except UserError as error:
        if not launched():
            raise
        get_error_handler().record_exception(error)
        sys.exit(2)
    except RuntimeError as error:
        if not (launched() and is_lost_connection(error)):
            raise
        time.sleep(SECONDS_TO_BE_ENDED)  # the launcher ends this process first, if there is one
        raise


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether a collective failed because another process is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def parallelise(objective: Objective, kind: Kind, world: World) -> nn.Module:
    """The same computation over all processes: each with a copy of the weights (ddp), with a share
    of them (fsdp), or with a share in each of several groups of processes (hsdp)."""
    if world.size == 1:
        return objective
    # imported where they are used: with torch's compiler and FSDP they take two seconds
    from vitrail.training.batch_norm import synchronise_batch_norms

    synchronise_batch_norms(objective, world)
    if kind == "ddp":
        where = [world.device] if world.device.type == "cuda" else None
        # statistics need no broadcast: batch norms make them equal
        return DistributedDataParallel(objective, device_ids=where, forward_sync_buffers=False)
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = make_mesh(kind, world)
    for block in objective.model.blocks_by_depth().values():
        fully_shard(block, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    for name in ("outputs", "illustrate"):
        register_fsdp_forward_method(objective, name)
    return objective


def make_mesh(kind: Kind, world: World) -> DeviceMesh:
    """One row of processes; for hsdp a row for each machine, or two rows on a single one."""
    if kind == "fsdp":
        return init_device_mesh(world.device.type, (world.size,))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    groups = world.size // here if here < world.size else 2
    if world.size % groups or world.size // groups < 2:
        raise UserError(
            f"hsdp with {world.size} processes: expected several groups of two or more, such as "
            "processes=4; use ddp or fsdp"
        )
    shape = (groups, world.size // groups)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("copies", "shares"))


@contextmanager
def sync_gradients(compute: nn.Module, *, now: bool, empty: bool = False) -> Iterator[None]:
    """Gradients are brought together after the last part of a batch, not after each. A part that
    is `empty` has an image that counts nothing, in batch statistics neither."""
    if hasattr(compute, "set_requires_gradient_sync"):  # an FSDPModule
        compute.set_requires_gradient_sync(now)  # type: ignore[operator]
    waiting = isinstance(compute, DistributedDataParallel) and not now
    with (
        compute.no_sync() if waiting else nullcontext(),  # type: ignore[operator]
        uncounted(compute) if empty else nullcontext(),
    ):
        yield


def uncounted(compute: nn.Module) -> AbstractContextManager[None]:
    from vitrail.training.batch_norm import not_counted

    return not_counted(compute)


def gather_full(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as if there were one process, on the CPU; all processes must ask together."""
    return {name: full_tensor(tensor).detach().cpu() for name, tensor in tensors.items()}


def full_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is a DTensor, whose module is there once one has been made."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's share of a whole tensor, where `like` is shared."""
    tensor = tensor.to(device=like.device, dtype=like.dtype)
    if is_sharded(like):
        from torch.distributed.tensor import distribute_tensor

        # every process has the whole: each takes its own share, and none is sent
        return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return tensor
