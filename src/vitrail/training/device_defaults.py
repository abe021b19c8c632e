"""What a run does differently on a device, where nobody has chosen: each choice with its reason,
which recipe.yaml keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vitrail.models.catalogue import build_meta, change, find
from vitrail.training.recipe import DEFAULT_MODEL, Recipe

MAX_WORKERS = 16  # of one training process


@dataclass(frozen=True)
class Machine:
    """What choices depend on. `processes` are the training processes that share the `cores`."""

    device: str
    bfloat16: bool = False
    tf32: bool = False
    cores: int = 1
    processes: int = 1


def describe_machine(device: torch.device, *, cores: int, processes: int) -> Machine:
    if device.type != "cuda":
        return Machine(device.type, cores=cores, processes=processes)
    ampere = torch.cuda.get_device_capability(device) >= (8, 0)
    return Machine("cuda", torch.cuda.is_bf16_supported(), ampere, cores, processes)


def with_device_defaults(recipe: Recipe, machine: Machine, given: Collection[str]) -> Recipe:
    """The recipe for a machine; fields that are `given` stay. On a CPU nothing changes.

    >>> recipe = Recipe(data="photos", model="vit_ti_16")
    >>> gpu = Machine("cuda", bfloat16=True, tf32=True, cores=64, processes=8)
    >>> chosen = with_device_defaults(recipe, gpu, given=())
    >>> chosen.precision, chosen.compile, chosen.tf32, chosen.workers, chosen.channels_last
    ('bfloat16', True, True, 8, False)
    """
    if machine.device != "cuda":
        return recipe
    chosen: dict[str, tuple[Any, str]] = {}
    if machine.bfloat16:
        chosen["precision"] = ("bfloat16", "precision bfloat16: the GPU computes it at full speed")
    if machine.tf32:
        chosen["tf32"] = (True, "tf32: what stays in float32 is multiplied in TensorFloat-32")
    augmentation = recipe.augmentation
    if not (recipe.native_resolution or augmentation.sides or augmentation.progressive):
        # a block is compiled anew for every size of images
        chosen["compile"] = (True, "compile: each block is compiled by itself")
    workers = max(min(machine.cores // machine.processes, MAX_WORKERS), 1)
    chosen["workers"] = (
        workers,
        f"workers {workers}: {machine.cores} cores for {machine.processes} training "
        f"{'process' if machine.processes == 1 else 'processes'}",
    )
    if has_convolutions(recipe):
        chosen["channels_last"] = (True, "channels_last: the blocks of the model are convolutions")
    free = {name: both for name, both in chosen.items() if name not in given}
    values = {name: value for name, (value, _) in free.items()}
    reasons = tuple(reason for _, reason in free.values())
    return replace(recipe, **values, reasons=(*recipe.reasons, *reasons))


def has_convolutions(recipe: Recipe) -> bool:
    """Whether blocks of the model convolve; one that comes from a file is taken as it is."""
    if recipe.start is not None:
        return False
    model = build_meta(change(find(recipe.model or DEFAULT_MODEL), dict(recipe.fields)))
    inside = (part for block in model.blocks_by_depth().values() for part in block.modules())
    return any(isinstance(part, nn.Conv2d) for part in inside)


@contextmanager
def matmul_precision(recipe: Recipe) -> Iterator[None]:
    """TensorFloat-32 for the products that a recipe leaves in float32, meanwhile."""
    before = torch.get_float32_matmul_precision()
    if recipe.tf32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if recipe.tf32:
            torch.set_float32_matmul_precision(before)
