"""Activation checkpointing: blocks that are computed again in the backward pass, to save memory.

Put on from outside: the model does not know. `every` k-th block is computed again whole, or of
each block all but its matrix products and attention ("selective"), which cost the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from vitrail.models.model import Model

Recompute = bool | int | Literal["selective"]

# What "selective" keeps. The names of attention's kernels differ between devices.
KEPT = ("mm", "addmm", "bmm", "baddbmm", "convolution")
ATTENTION = "_scaled_dot_product"


def checkpoint_blocks(model: Model, how: Recompute = True) -> None:
    """Keep what goes into blocks, and not, or not all of, what happens inside: True and 1 in every
    block, k in every k-th one."""
    if how is False or how == 0:
        return
    every = 1 if how in (True, "selective") else int(how)
    for number, block in enumerate(model.blocks_by_depth().values()):
        if number % every == every - 1:
            block.forward = partial(_checkpointed, block, block.forward, how == "selective")


def _checkpointed(
    block: nn.Module, forward: Callable[..., Any], selective: bool, *args: Any
) -> Any:
    if torch.compiler.is_compiling():  # a compiled graph writes statistics once in any case
        if not selective:
            return checkpoint(forward, *args, use_reentrant=False)
        contexts = partial(create_selective_checkpoint_contexts, _policy)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts)
    return checkpoint(
        forward, *args, use_reentrant=False, context_fn=partial(_contexts, block, selective)
    )


def _contexts(
    block: nn.Module, selective: bool
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """What holds the first time a block is computed, and the second time."""
    if not selective:
        return nullcontext(), _uncounted(block)
    first, second = create_selective_checkpoint_contexts(_policy)
    return first, _both(second, _uncounted(block))


def _policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = getattr(getattr(operator, "overloadpacket", operator), "__name__", "")
    if name in KEPT or name.startswith(ATTENTION):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _both(*contexts: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextmanager
def _uncounted(block: nn.Module) -> Iterator[None]:
    """Computed a second time, a batch must not count twice in the statistics of batch norms."""
    norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
