"""A model over many processes, put on from outside: copies (DDP), shares (FSDP2), or shares in
groups (HSDP). Models and the loop are the same for one process."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from vitrail.core.errors import UserError
from vitrail.objectives.objective import Objective
from vitrail.training.world import World

Kind = Literal["ddp", "fsdp", "hsdp"]


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
