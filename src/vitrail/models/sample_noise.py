"""What a forward pass draws (dropout, stochastic depth, dropped patches) as a function of the
sample: the same whoever computes it, beside whichever others.

Put on a module from outside. A draw is SplitMix64, as in `core.randomness`, of the sample's key, of
the layer's number and of how often the layer was called; computed on the device, and the same in
every batch, in every process and when a block is computed again for its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vitrail.layers.drop import DropPath, PatchDropout
from vitrail.layers.relative import ComputedBias

_STEP, _FIRST, _SECOND = (
    value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
BITS = 24  # of a draw
MOST_CALLS = 1 << 12  # of one layer in a forward pass


class SampleNoise:
    """The keys of the samples that are computed now; without keys layers draw from torch's
    generator as ever. They are on the CPU, where stochastic depth draws, and on the device, where
    all others do: to bring them from a GPU would wait for all its work."""

    def __init__(self, module: nn.Module, blocks: Sequence[nn.Module] = ()) -> None:
        self.keys: Int64[Tensor, " B"] | None = None
        self.device_keys: Int64[Tensor, " B"] | None = None
        self.device = torch.device("cpu")
        self.shared = 0  # the key of what all samples have in common
        self.calls: dict[int, int] = {}
        tables = {id(p.dropout) for p in module.modules() if isinstance(p, ComputedBias)}
        numbers = {part: number for number, part in enumerate(module.modules(), start=1)}
        for part, number in numbers.items():
            replace_draws(part, Draw(self, number, shared=id(part) in tables))
        for block in blocks:
            inside = [numbers[part] for part in block.modules()]
            block.forward = Restarting(self, inside, block.forward)

    def start(
        self, keys: Int64[Tensor, " B"], shared: int, device: torch.device | None = None
    ) -> None:
        """The samples, by keys on the CPU, of a forward pass on a device, which begins."""
        self.device, self.shared = device or torch.device("cpu"), shared
        self.set_keys(keys)
        self.calls.clear()

    def stop(self) -> None:
        self.keys = self.device_keys = None

    def set_keys(self, keys: Int64[Tensor, " B"]) -> None:
        self.keys, self.device_keys = keys, keys.to(self.device, non_blocking=True)

    @contextmanager
    def among(self, chosen: Int64[Tensor, " b"]) -> Iterator[None]:
        """Some of the samples alone, by their places on the CPU, are computed meanwhile."""
        before = self.keys, self.device_keys
        if self.keys is not None:
            self.set_keys(self.keys[chosen])
        try:
            yield
        finally:
            self.keys, self.device_keys = before


class Restarting:
    """The forward pass of a block that may be computed twice: its layers count their calls from
    its beginning."""

    def __init__(
        self, noise: SampleNoise, numbers: Sequence[int], forward: Callable[..., Any]
    ) -> None:
        self.noise, self.numbers, self.forward = noise, numbers, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for number in self.numbers:
            self.noise.calls.pop(number, None)
        return self.forward(*args, **kwargs)


class Draw:
    """The draws of one layer."""

    def __init__(self, noise: SampleNoise, number: int, *, shared: bool) -> None:
        self.noise, self.number, self.shared = noise, number, shared

    @property
    def is_on(self) -> bool:
        return self.noise.keys is not None

    def bits(self, rows: int, count: int, device: torch.device) -> Int64[Tensor, "B N"]:
        """Random numbers below 2**24: `count` for each sample, or for each of `rows` of a table."""
        call = self.noise.calls.get(self.number, 0)
        self.noise.calls[self.number] = call + 1
        keys = self.noise.keys if device.type == "cpu" else self.noise.device_keys
        assert keys is not None
        if self.shared:
            keys = torch.arange(rows, device=device) * _FIRST + self.noise.shared
        assert len(keys) == rows, f"draws for {rows} samples of {len(keys)}"
        layer = wrap(_STEP * (self.number * MOST_CALLS + call + 1))
        start = mix(keys[:, None] + layer)
        return (mix(start + torch.arange(count, device=device) * _STEP) >> 40) & (2**BITS - 1)

    def kept(self, rows: int, count: int, keep: float, device: torch.device) -> Bool[Tensor, "B N"]:
        return self.bits(rows, count, device) < round(keep * 2**BITS)


def replace_draws(part: nn.Module, draw: Draw) -> None:
    """Let a layer that draws do so by sample."""
    if isinstance(part, DropPath):
        part.draw_kept = KeptSamples(part, draw)  # type: ignore[method-assign]
        part.among = draw.noise.among  # type: ignore[method-assign]
    elif isinstance(part, PatchDropout):
        part.draw = PatchDraws(draw, part.draw)  # type: ignore[method-assign]
    elif isinstance(part, nn.Dropout):
        part.forward = Dropping(part, draw, part.forward)  # type: ignore[method-assign, assignment]


class KeptSamples:
    """`DropPath.draw_kept` by sample."""

    def __init__(self, drop: DropPath, draw: Draw) -> None:
        self.drop, self.draw, self.otherwise = drop, draw, drop.draw_kept

    def __call__(self, count: int, device: torch.device) -> Bool[Tensor, " B"]:
        if not self.draw.is_on:
            return self.otherwise(count, device)
        return self.draw.kept(count, 1, 1 - self.drop.rate, device)[:, 0]


class PatchDraws:
    """`PatchDropout.draw` by sample."""

    def __init__(self, draw: Draw, otherwise: Callable[[Tensor], Tensor]) -> None:
        self.draw, self.otherwise = draw, otherwise

    def __call__(self, patches: Float[Tensor, "B N D"]) -> Float[Tensor, "B N"]:
        if not self.draw.is_on:
            return self.otherwise(patches)
        rows, count = patches.shape[:2]
        return self.draw.bits(rows, count, patches.device).float()


class Dropping:
    """The forward pass of a dropout by sample. Where images are packed, rows are tokens, and
    torch's generator draws."""

    def __init__(
        self, dropout: nn.Dropout, draw: Draw, forward: Callable[[Tensor], Tensor]
    ) -> None:
        self.dropout, self.draw, self.forward = dropout, draw, forward

    def __call__(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        rate, keys = self.dropout.p, self.draw.noise.keys
        if not self.dropout.training or rate == 0 or keys is None:
            return self.forward(x)
        if not self.draw.shared and len(keys) != len(x):
            return self.forward(x)
        kept = self.draw.kept(len(x), x.shape[1:].numel(), 1 - rate, x.device)
        return x * (kept.view(x.shape).to(x.dtype) / (1 - rate))


def mix(value: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """SplitMix64's hash of each number; shifts bring in zeros, whatever the sign."""
    value = (value ^ ((value >> 30) & (2**34 - 1))) * _FIRST
    value = (value ^ ((value >> 27) & (2**37 - 1))) * _SECOND
    return value ^ ((value >> 31) & (2**33 - 1))


def wrap(value: int) -> int:
    """The same 64 bits as a number with a sign.

    >>> wrap(2**63), wrap(5)
    (-9223372036854775808, 5)
    """
    return (value + 2**63) % 2**64 - 2**63
