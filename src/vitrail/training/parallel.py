"""A model over many processes, put on from outside: copies (DDP), shares (FSDP2), or shares in
groups (HSDP). Models and the loop are the same for one process."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from vitrail.core.deferred_init import DeferredInit
from vitrail.core.errors import UserError
from vitrail.core.memory import return_freed_memory
from vitrail.objectives.objective import Objective
from vitrail.training.recipe import Recipe
from vitrail.training.recompute import checkpoint_blocks
from vitrail.training.sharded import shard_like
from vitrail.training.world import World

Kind = Literal["ddp", "fsdp", "hsdp"]


def is_shared(recipe: Recipe, world: World) -> bool:
    """Whether each process has a share of the model, and none ever all of it."""
    return recipe.parallel != "ddp" and world.size > 1


def parallelise(
    objective: Objective, recipe: Recipe, world: World, deferred: DeferredInit | None = None
) -> nn.Module:
    """The same computation over all processes, each with a copy of the weights (ddp), with a share
    of them (fsdp), or with a share in each of several groups of processes (hsdp). From the inside:
    blocks that are computed again, compiled blocks, shares. What `deferred` fills gets its memory
    last, so that no process ever has more than its share."""
    if world.size > 1:
        # imported where it is used: with torch's compiler and FSDP it takes two seconds
        from vitrail.training.batch_norm import synchronise_batch_norms

        synchronise_batch_norms(objective, world)
    checkpoint_blocks(objective.model, recipe.checkpointing)
    if recipe.compile:
        for block in objective.model.blocks_by_depth().values():
            block.compile()  # by itself, so that DDP and FSDP communicate between blocks
    if is_shared(recipe, world):
        shard(objective, recipe, world)
    give_memory(objective, world.device, deferred)
    if recipe.channels_last:
        objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if world.size == 1 or recipe.parallel != "ddp":
        return objective
    where = [world.device] if world.device.type == "cuda" else None
    # statistics need no broadcast: batch norms make them equal; gradients live in the buffers that
    # are exchanged, which saves a copy of the model's size
    return DistributedDataParallel(
        objective, device_ids=where, forward_sync_buffers=False, gradient_as_bucket_view=True
    )


def shard(objective: Objective, recipe: Recipe, world: World) -> None:
    """FSDP2 over the blocks, and over the rest as one."""
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    half = torch.bfloat16 if recipe.precision == "bfloat16" else None
    # shares stay in float32; autocast decides what is computed in half precision
    policy = MixedPrecisionPolicy(half, torch.float32 if half else None, cast_forward_inputs=False)
    mesh = make_mesh(recipe.parallel, world, recipe.sharding.group)
    blocks: list[FSDPModule] = []
    for part in objective.model.blocks_by_depth().values():
        fully_shard(
            part, mesh=mesh, reshard_after_forward=recipe.sharding.reshard, mp_policy=policy
        )
        assert isinstance(part, FSDPModule)
        blocks.append(part)
    fully_shard(objective, mesh=mesh, mp_policy=policy)
    assert isinstance(objective, FSDPModule)
    # on a CPU gloo gathers while nothing else happens: ahead of time costs memory and saves no time
    ahead = 0 if world.device.type == "cpu" else recipe.sharding.prefetch
    for number, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
        before = blocks[max(number - ahead, 0) : number][::-1]
        # an empty list would mean torch's own choice; a block itself is there by then
        block.set_modules_to_backward_prefetch(before or [block])
    if not ahead:
        objective.set_modules_to_backward_prefetch([objective])
    if world.device.type == "cpu":
        return_freed_memory()
    for name in ("outputs", "illustrate"):
        register_fsdp_forward_method(objective, name)


@torch.no_grad()
def give_memory(objective: Objective, device: torch.device, deferred: DeferredInit | None) -> None:
    """Bring a module to its device, and fill what has no memory yet, one tensor after another."""
    if deferred is None:
        objective.to(device)
        return
    objective._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))  # type: ignore[no-untyped-call]
    tensors = dict(objective.named_parameters()) | dict(objective.named_buffers())
    for name in deferred.names():
        tensors[name].copy_(shard_like(deferred.fill(name), tensors[name]))


def make_mesh(kind: Kind, world: World, group: int | None = None) -> DeviceMesh:
    """One row of processes; for hsdp a row for each `group`, by default each machine, or two rows
    on a single one."""
    if kind == "fsdp":
        return init_device_mesh(world.device.type, (world.size,))
    here = group or int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    groups = world.size // here if here < world.size else 2
    if world.size % groups or world.size // groups < 2 or (group and world.size % group):
        of = f" in groups of {group}" if group else ""
        raise UserError(
            f"hsdp with {world.size} processes{of}: expected several groups of two or more, such "
            "as processes=4; use ddp or fsdp"
        )
    shape = (groups, world.size // groups)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("copies", "shares"))


@contextmanager
def sync_gradients(compute: nn.Module, *, now: bool, empty: bool = False) -> Iterator[None]:
    """Copies bring their gradients together after the last part of a batch, not after each; shares
    after each part, or every process would keep the gradients of all weights until then. A part
    that is `empty` has an image that counts nothing, in batch statistics neither."""
    waiting = isinstance(compute, DistributedDataParallel) and not now
    with (
        compute.no_sync() if waiting else nullcontext(),  # type: ignore[operator]
        uncounted(compute) if empty else nullcontext(),
    ):
        yield


def uncounted(compute: nn.Module) -> AbstractContextManager[None]:
    from vitrail.training.batch_norm import not_counted

    return not_counted(compute)
