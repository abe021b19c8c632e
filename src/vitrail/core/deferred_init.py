"""Modules whose fresh weights are drawn later, tensor by tensor, to the same bits.

A model that is shared among processes need not exist whole in any of them: it is built without
memory, and what would have filled its tensors is written down with the state of torch's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Functions of torch.nn.init that draw, and those that do not.
DRAWING = ("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_",
           "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_")  # fmt: skip
CONSTANT = ("constant_", "ones_", "zeros_", "eye_", "dirac_")
# Methods of tensors that take the place of all that was there.
OVERWRITING = ("zero_", "fill_", "uniform_", "normal_")


@dataclass(frozen=True)
class Filling:
    """One call that wrote into a tensor: the part of it, and the generator's state before."""

    call: Callable[..., Any]
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: Tensor | None


@dataclass(frozen=True)
class Place:
    """Where a tensor would be, were there any memory: in which storage of how many numbers."""

    storage: int
    words: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        words = tensor.untyped_storage().nbytes() // tensor.element_size()
        offset = int(tensor.storage_offset())
        return cls(number_of(tensor), words, tensor.dtype, tensor.shape, tensor.stride(), offset)


class DeferredInit:
    """What fills the tensors of a module that was built without memory, by their names."""

    def __init__(self) -> None:
        self._calls: dict[int, list[Filling]] = {}
        self._alive: list[Tensor] = []  # or another storage could get the same number
        self._names: dict[str, Place] = {}

    def record(
        self, call: Callable[..., Any], tensor: Tensor, *args: Any, draws: bool, **kwargs: Any
    ) -> Tensor:
        """Note a call that would fill a tensor, and advance the generator as it would."""
        state = torch.get_rng_state() if draws else None
        if draws:
            with torch.device("cpu"):
                call(torch.empty(tensor.shape, dtype=tensor.dtype), *args, **kwargs)
        place = tensor.shape, tensor.stride(), int(tensor.storage_offset())
        calls = self._calls.setdefault(number_of(tensor), [])
        if draws or call.__name__ in (*CONSTANT, *OVERWRITING):  # what was there is gone
            calls[:] = [one for one in calls if (one.size, one.stride, one.offset) != place]
        calls.append(Filling(call, *place, args, kwargs, state))
        self._alive.append(tensor)
        return tensor

    def name_tensors(self, module: nn.Module) -> None:
        """Note which tensor has which name, before the module is shared among processes, or gets
        another precision."""
        tensors = (*module.named_parameters(), *module.named_buffers())
        self._names = {name: Place.of(tensor) for name, tensor in tensors if tensor.is_meta}
        unfilled = [n for n, place in self._names.items() if place.storage not in self._calls]
        assert not unfilled, f"nothing fills {unfilled[0]}: build the module with memory"

    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def fill(self, name: str) -> Tensor:
        """One tensor as it would have been filled, on the CPU; torch's generator stays as it is."""
        place = self._names[name]
        found = torch.zeros(place.words, dtype=place.dtype)
        with torch.random.fork_rng(devices=()), torch.no_grad():
            for one in self._calls[place.storage]:
                if one.state is not None:
                    torch.set_rng_state(one.state)
                part = found.as_strided(one.size, one.stride, one.offset)
                one.call(part, *one.args, **one.kwargs)
        return found.as_strided(place.size, place.stride, place.offset)


@contextmanager
def deferred_init() -> Iterator[DeferredInit]:
    """Modules made here have parameters on the meta device; the record says what fills them."""
    found = DeferredInit()

    def noting(name: str) -> Any:
        real = getattr(nn.init, name)

        def fill(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if not tensor.is_meta:
                return real(tensor, *args, **kwargs)
            return found.record(real, tensor, *args, draws=name in DRAWING, **kwargs)

        return patch.object(nn.init, name, fill)

    patches = [noting(name) for name in (*DRAWING, *CONSTANT)]
    for one in patches:
        one.start()
    try:
        with torch.device("meta"), _Methods(found):
            yield found
    finally:
        for one in patches:
            one.stop()


class _Methods(TorchFunctionMode):
    """Methods that change a tensor in place: `weight.mul_(0.1)`."""

    def __init__(self, found: DeferredInit) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name, named = getattr(func, "__name__", ""), kwargs or {}
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place and name != "requires_grad_" and getattr(Tensor, name, None) is func:
            tensor, *rest = args
            if tensor.is_meta and not any(isinstance(one, Tensor) for one in rest):
                draws = name in ("uniform_", "normal_")
                return self.found.record(func, tensor, *rest, draws=draws, **named)
        return func(*args, **named)


def number_of(tensor: Tensor) -> int:
    """What tensors that share memory have in common, were there any memory."""
    return tensor.untyped_storage()._cdata
