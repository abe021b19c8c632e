"""What a training step keeps of one image for its backward pass, block by block, counted without
memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models.catalogue import build_meta
from vitrail.models.config import Config
from vitrail.models.measure import count, saved_storages


@dataclass(frozen=True)
class Parameters:
    """Rows of each parameter, and numbers in a row: how they are shared by processes."""

    rows: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> Parameters:
        shapes = [tensor.shape or torch.Size([1]) for tensor in tensors]
        return cls(tuple((shape[0], shape[1:].numel()) for shape in shapes))

    def share(self, processes: int) -> int:
        """Numbers that one of so many processes keeps: whole rows, as many as any other keeps.

        >>> Parameters(rows=((8, 10), (1, 10))).share(4)  # 2 rows of 8, and the only row
        30
        """
        return sum(-(-rows // processes) * row for rows, row in self.rows)


@dataclass(frozen=True)
class BlockCost:
    """One block: its parameters, bytes kept of one image, and bytes of what goes into it."""

    params: int
    kept: int
    entering: int
    parameters: Parameters


@dataclass(frozen=True)
class ModelCost:
    """The blocks of a model, and what is outside them."""

    blocks: tuple[BlockCost, ...]
    params: int
    kept: int  # bytes of one image, all blocks included
    parameters: Parameters

    @property
    def outside(self) -> int:
        """Bytes kept of one image outside the blocks."""
        return self.kept - sum(block.kept for block in self.blocks)

    @property
    def outside_params(self) -> int:
        return self.params - sum(block.params for block in self.blocks)

    def outside_share(self, processes: int) -> int:
        """Numbers outside the blocks that one of so many processes keeps."""
        inside = sum(block.parameters.share(processes) for block in self.blocks)
        return self.parameters.share(processes) - inside


def count_activations(config: Config, *, half: bool) -> ModelCost:
    """Run the model on the meta device for one image; with `half` under autocast, in which norms
    read float32 and everything else two bytes.

    >>> cost = count_activations(find("vit_ti_16"), half=False)
    >>> len(cost.blocks), cost.params
    (12, 5717416)
    """
    model = build_meta(config)
    model.to(torch.bfloat16 if half else torch.float32).train()
    blocks = model.blocks_by_depth()
    entering: dict[str, int] = {}
    after: dict[str, tuple[int, int]] = {}
    norms, handles = [0], []
    with saved_storages(model) as saved:

        def enter(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
                entering[name] = args[0].numel() * 4  # the residual stream is in float32
                after[name] = (sum(saved.values()) + norms[0], 0)

            return hook

        def leave(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                after[name] = (after[name][0], sum(saved.values()) + norms[0])

            return hook

        def widen(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            norms[0] += args[0].numel() * 2 if half else 0

        for name, block in blocks.items():
            handles.append(block.register_forward_pre_hook(enter(name)))
            handles.append(block.register_forward_hook(leave(name)))
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d):
                handles.append(module.register_forward_pre_hook(widen))
        dtype = torch.bfloat16 if half else torch.float32
        # two images: a batch norm in training refuses one value in each channel
        image = torch.empty(2, config.channels, *config.image_size, device="meta", dtype=dtype)
        model(image)
        total = sum(saved.values()) + norms[0]
    for handle in handles:
        handle.remove()
    costs = tuple(
        BlockCost(
            count(block),
            (after[name][1] - after[name][0]) // 2,
            entering[name] // 2,
            Parameters.of(block.parameters()),
        )
        for name, block in blocks.items()
    )
    return ModelCost(costs, count(model), total // 2, Parameters.of(model.parameters()))
