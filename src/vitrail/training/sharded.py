"""Tensors of which every process has a share: whole again, or shared like another."""

import sys
from typing import TYPE_CHECKING, TypeGuard
from zlib import crc32

from torch import Tensor

from vitrail.training.world import World

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


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


def is_written_here(name: str, tensor: Tensor, world: World) -> bool:
    """Whether this process saves a tensor: its share of one that is shared; of those that all have,
    about as many as each other process, so that none copies and keeps all of them."""
    return is_sharded(tensor) or crc32(name.encode()) % world.size == world.rank
