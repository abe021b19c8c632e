"""Tensors of which every process has a share: whole again, or shared like another."""

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

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
