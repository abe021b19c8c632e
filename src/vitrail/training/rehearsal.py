"""The memory of one of many GPUs, measured without any: torch's own FSDP2 runs a step on tensors
without values, in a process group that pretends to be large, and a tracker adds up its bytes.

What is measured is what torch allocates, not what kernels and the allocator need beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from vitrail.models.catalogue import build_meta
from vitrail.models.config import Config


@dataclass(frozen=True)
class Measured:
    """Bytes of one process at its peak, by kind."""

    weights: int
    gradients: int
    optimiser: int
    gathered: int  # blocks that are whole for a while, and their gradients
    activations: int
    total: int


@contextmanager
def pretended_group(size: int) -> Iterator[None]:
    """A process group whose other members do not exist: collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def rehearse(config: Config, *, gpus: int, share: int, images: int) -> Measured:
    """Two steps of AdamW in float32 with FSDP2 over `gpus` processes, of which `share` have a copy
    of the model together; `images` of this process."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType
    from torch.distributed.fsdp import fully_shard

    with pretended_group(gpus):
        shape = (gpus,) if share == gpus else (gpus // share, share)
        names = None if share == gpus else ("copies", "shares")
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        model = build_meta(config)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            for block in model.blocks_by_depth().values():
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            optimiser = torch.optim.AdamW(model.parameters())
            image = torch.zeros(images, config.channels, *config.image_size)
            tracker = FSDPMemTracker(model, optimiser)
            tracker.track_inputs((image,))
            with tracker:
                for number in range(2):
                    model(image).sum().backward()
                    optimiser.step()
                    optimiser.zero_grad()
                    if number == 0:  # the second has the optimiser's state from its beginning
                        tracker.reset_mod_stats()
            found: dict[Any, int] = dict(tracker.get_tracker_snapshot("peak")[torch.device("cpu")])
    kinds = _FSDPRefType

    def total(*names: object) -> int:
        return sum(int(found[name]) for name in names)

    return Measured(
        weights=total(kinds.SHARDED_PARAM),
        gradients=total(kinds.SHARDED_GRAD),
        optimiser=total(kinds.OPT),
        gathered=total(
            kinds.UNSHARDED_PARAM, kinds.UNSHARDED_GRAD, kinds.ALL_GATHER, kinds.REDUCE_SCATTER
        ),
        activations=total(kinds.ACT, kinds.TEMP),
        total=int(found["Total"]),
    )
