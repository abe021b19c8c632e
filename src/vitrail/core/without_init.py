"""Modules without memory for their parameters, made as fast as they can be."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FILLING = frozenset((
    Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.zero_, Tensor.fill_, Tensor.copy_,
    Tensor.add_, Tensor.mul_, Tensor.div_, Tensor.clamp_,
))  # fmt: skip


@contextmanager
def without_init() -> Iterator[None]:
    """Parameters made here are on the meta device, and nothing is drawn for them: torch would load
    its compiler to pretend to, which takes longer than reading the weights."""
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Values that would be written into meta tensors are not even computed."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in _FILLING or getattr(func, "__module__", "") == "torch.nn.init":
            filled = args[0] if args else named["tensor"]
            if filled.is_meta:
                return filled
        return func(*args, **named)
