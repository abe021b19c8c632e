"""What a walk through a model is made of: steps with their numbers, from recorded calls."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.hooks import named_blocks
from vitrail.explanation.propagation import attention_groups, count_tokens
from vitrail.explanation.source_lines import SourceLine


@dataclass(frozen=True)
class Value:
    """Numbers of one step; of a row over keys, `tokens` are their places in the sequence."""

    numbers: Float[Tensor, "..."]
    tokens: Int[Tensor, " n"] | None = None


@dataclass(frozen=True)
class Step:
    """One step: its equation, the shape of what all tokens together are after it, the line of code,
    and the numbers of the chosen token; `facts` are plain values for sentences about it."""

    id: str
    equation: str
    shape: tuple[int, ...]
    code: SourceLine | None
    values: dict[str, Value] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Query:
    """The token that a walk follows through one attention: its place in the sequence, and in the
    group (window, or place of a fold) that it attends in; `cell` is None for a prefix token."""

    attention: str
    layout: TokenLayout
    head: int
    token: int
    group: int
    place: int

    @property
    def cell(self) -> tuple[int, int] | None:
        number = self.token - self.layout.prefix
        return None if number < 0 else divmod(number, self.layout.grid[1])

    def cell_on(self, grid: tuple[int, int]) -> tuple[int, int]:
        """The cell of another grid that lies where the query does; of a prefix token, the middle.

        >>> layout = TokenLayout(grid=(2, 2), stride=16)
        >>> Query("a", layout, head=0, token=3, group=0, place=3).cell_on((8, 8))
        (6, 6)
        """
        row, column = self.cell or (self.layout.grid[0] // 2, self.layout.grid[1] // 2)
        down, across = (
            min(int((place + 0.5) * there / here), there - 1)
            for place, here, there in zip((row, column), self.layout.grid, grid, strict=True)
        )
        return down, across

    def in_group(self, x: Float[Tensor, "1 ..."]) -> Float[Tensor, " D"]:
        """The query's vector in a tensor of groups: (1, G, n, D), or (1, D, G, n) where attention
        is separable; a sequence (1, N, D) is one group."""
        if x.ndim == 3:
            return x[0, self.place]
        groups = x[0].movedim(0, -1) if self.layout.separable else x[0]
        return groups[self.group, self.place]

    def in_block(self, x: Float[Tensor, "1 ..."], width: int) -> Float[Tensor, " D"]:
        """The query's vector between the layers of a block: in groups where the map is folded."""
        return self.in_map(x, width) if self.layout.fold is None else self.in_group(x)

    def in_map(self, x: Float[Tensor, "1 ..."], width: int) -> Float[Tensor, " D"]:
        """The query's vector in a sequence, or in a map of this width on any grid, its channels
        first or last."""
        if x.ndim == 3:
            return x[0, self.token]
        is_last = x.shape[-1] == width and (x.shape[1] != width or x.shape[1:3] == self.layout.grid)
        maps = x[0].movedim(-1, 0) if is_last else x[0]
        row, column = self.cell_on((maps.shape[1], maps.shape[2]))
        return maps[:, row, column]

    @property
    def keys(self) -> Int[Tensor, " n"]:
        """Where in the sequence each key of the query's group is; -1 for padding."""
        return attention_groups(self.layout)[self.group]


def find_query(
    attention: str,
    layout: TokenLayout,
    head: int,
    *,
    patch: tuple[int, int] | None = None,
    token: int | None = None,
) -> Query:
    """From a patch's row and column, or a token; else the first prefix token, or the middle."""
    rows, columns = layout.grid
    if patch is not None:
        row, column = patch
        if not (0 <= row < rows and 0 <= column < columns):
            raise UserError(
                f"patch must be from [0, 0] to [{rows - 1}, {columns - 1}], got {list(patch)}"
            )
        token = layout.prefix + row * columns + column
    if token is None:
        token = 0 if layout.prefix else rows // 2 * columns + columns // 2
    if not 0 <= token < count_tokens(layout):
        raise UserError(f"token must be from 0 to {count_tokens(layout) - 1}, got {token}")
    group, place = (attention_groups(layout) == token).nonzero()[0].tolist()
    return Query(attention, layout, head, token, group, place)


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    output: Any

    @property
    def input(self) -> Any:
        return self.args[0]


Calls = dict[str, list[Call]]


@contextmanager
def record_calls(model: nn.Module, names: Iterable[str]) -> Iterator[Calls]:
    """Every call of the modules of these names that this thread makes inside, in order."""
    thread, found = threading.get_ident(), Calls()

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, named: dict[str, Any], output: Any) -> None:
            if threading.get_ident() == thread:
                found.setdefault(name, []).append(Call(args, named, output))

        return hook

    handles = [
        model.get_submodule(name).register_forward_hook(keep(name), with_kwargs=True)
        for name in dict.fromkeys(names)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def last_block(model: nn.Module) -> str:
    """The name of the last block; a last convolution of single cells is a step of its own."""
    return [name for name in named_blocks(model) if name != "last"][-1]


def shape_of(x: Tensor) -> tuple[int, ...]:
    """Without the axis of images."""
    return tuple(x.shape[1:])


def vector(numbers: Tensor, tokens: Int[Tensor, " n"] | None = None) -> Value:
    return Value(numbers.detach(), tokens)


def scalar(number: float) -> Value:
    return Value(torch.tensor(float(number)))
