"""What a model costs, found without its memory: shapes, parameters, multiply-adds, activations."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.layers.attention import Attend
from vitrail.models.catalogue import build_meta
from vitrail.models.config import Config

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Layer:
    """One module: what it gives for a batch, its own and its children's parameters and
    multiply-adds."""

    name: str
    kind: str
    output: tuple[int, ...]
    params: int
    macs: int


@dataclass(frozen=True)
class Measure:
    """The whole model for a batch; memory in bytes at float32."""

    layers: tuple[Layer, ...]
    params: int
    macs: int
    parameter_memory: int
    activation_memory: int  # saved by the forward pass for the backward pass


def measure(config: Config, batch_size: int = 1) -> Measure:
    """Run the model on the meta device and count.

    >>> measure(find("vit_b_16")).macs
    17563828224
    """
    model = build_meta(config)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()  # in training one image whose map is a single cell would be refused
    image = torch.empty(batch_size, config.channels, *config.image_size, device="meta")
    outputs: dict[str, tuple[int, ...]] = {}
    handles = [
        module.register_forward_hook(_shape_recorder(name, outputs))
        for name, module in model.named_modules()
        if name
    ]
    counter = FlopCounterMode(display=False)
    with counter, saved_storages(model) as saved:
        model(image)
    for handle in handles:
        handle.remove()
    macs = {
        path.partition(".")[2]: sum(counts.values()) // 2
        for path, counts in counter.get_flop_counts().items()
    }
    loose = [
        Layer(name, "Parameter", tuple(parameter.shape), parameter.numel(), 0)
        for name, parameter in model.named_parameters(recurse=False)
    ]
    modules = [
        Layer(name, type(module).__name__, outputs[name], count(module), macs.get(name, 0))
        for name, module in model.named_modules()
        if name in outputs
    ]
    params = count(model)
    return Measure(
        (*loose, *modules),
        params,
        counter.get_total_flops() // 2,
        FLOAT * params,
        sum(saved.values()),
    )


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shape_recorder(name: str, outputs: dict[str, tuple[int, ...]]) -> Any:
    def record(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs[name] = tuple(output.shape)

    return record


@contextmanager
def saved_storages(model: nn.Module) -> Iterator[dict[int, int]]:
    """Bytes by storage that autograd keeps. The meta device computes attention unfused and would
    keep its matrices; the fused kernels keep q, k, v and the result, so inside `Attend` these
    alone are counted."""
    held = (*model.parameters(), *model.buffers())
    own = {tensor.untyped_storage()._cdata for tensor in held}
    saved: dict[int, int] = {}
    alive = []  # a freed storage's address would be used again
    inside = [False]

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not inside[0] and storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes()
            alive.append(storage)
        return tensor

    def enter(module: nn.Module, args: Any) -> None:
        inside[0] = True

    def leave(module: nn.Module, args: Any, output: Tensor) -> None:
        inside[0] = False
        for tensor in (*args, output):
            if isinstance(tensor, Tensor):
                keep(tensor)

    handles = []
    for module in model.modules():
        if isinstance(module, Attend):
            handles += [
                module.register_forward_pre_hook(enter),
                module.register_forward_hook(leave),
            ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield saved
    finally:
        for handle in handles:
            handle.remove()
