"""Rows: which foreign tensors are which of ours, read forwards to load and backwards to write.

    same("norm.{p}", "norm.{p}")                                   one tensor, another name
    reshape("head/kernel", "head.classes.weight", axes("D K", "K D"))   another shape
    fuse(["q.{p}", "k.{p}", "v.{p}"], "attention.qkv.{p}")         several of theirs are one of ours
    stack(same("norm/scale", "blocks.{i}.norm1.weight"))           one of theirs holds every block
    drop("pooler.*", why="the classifier does not read it")        theirs alone
    supply("mask_token", zeros, why="only pre-training reads it")  theirs alone, yet required
    fill("head.classes.bias", "head.classes.weight", zeros, why="…")    ours alone
    refuse("attn_pool.*", why="it pools by attention")             a model that we do not compute

Names are patterns. {p} is weight or bias; a placeholder with listed values (`Dialect.values`) runs
over them, theirs and ours; any other is a number, and may stand in a sum: {2*s+1}, {s-1}. No row
needs a config: names alone decide which rows apply, and the first that applies is the one that is
written. What the use of a row implies for the config stands in the row:

    same("fc_norm.{p}", "norm.{p}", final_norm="pooled")

It is read where nothing contradicts that, and written where the config agrees.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from einops import EinopsError, rearrange
from torch import Tensor

Tensors = dict[str, Tensor]
Facts = dict[str, Any]  # config fields by name


class Op(NamedTuple):
    """A change of shape that can be undone. Reading knows the hints that a dialect took from the
    file, writing the config."""

    read: Callable[[Tensor, Mapping[str, Any]], Tensor]
    write: Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True)
class Row:
    """`theirs` and `ours` are patterns; which of them it has decides what a row is for."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    op: Op | None = None
    axis: int | None = None  # along which parts are joined
    facts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    stacked: str | None = None  # the placeholder whose values lie along the first axis of theirs
    like: str | None = None  # tensors of ours for each of which something is made
    make: Callable[[Any], Tensor] | None = None  # of a config (supply) or of a tensor (fill)
    refuses: bool = False
    beside: str | None = None  # another of theirs that must be there
    version: str | None = None  # of a library, where it spells names in several ways
    shares: tuple[int, ...] | None = None  # of the joined axis, where parts are not equal


def same(theirs: str, ours: str, **facts: Any) -> Row:
    return Row((theirs,), (ours,), facts=facts)


def reshape(theirs: str, ours: str, op: Op, **facts: Any) -> Row:
    return Row((theirs,), (ours,), op, facts=facts)


def fuse(
    theirs: Sequence[str], ours: str, op: Op | None = None, axis: int = 0, **facts: Any
) -> Row:
    """Each part through `op`, then joined along `axis` in equal shares."""
    return Row(tuple(theirs), (ours,), op, axis, facts=facts)


def stack(row: Row, along: str = "i") -> Row:
    """The row for one block, where theirs hold all blocks along their first axis; only read."""
    return replace(row, stacked=along)


def drop(theirs: str, why: str) -> Row:
    """Foreign tensors that this shell pattern matches have no part in the model."""
    return Row((theirs,), (), why=why)


def supply(
    theirs: str, make: Callable[[Any], Tensor], why: str, like: str | None = None, **facts: Any
) -> Row:
    """A foreign tensor that has no part in the model, and is made from the config where it is
    written: once, or for each of our tensors that `like` matches."""
    return Row((theirs,), (), make=make, like=like, facts=facts, why=why)


def fill(ours: str, like: str, make: Callable[[Tensor], Tensor], why: str, **facts: Any) -> Row:
    """A tensor of ours that theirs lack because it is always the same there: made from another of
    ours."""
    return Row((), (ours,), make=make, like=like, facts=facts, why=why)


def refuse(theirs: str, why: str) -> Row:
    """A foreign tensor of a model that we do not compute, and the reason to give."""
    return Row((theirs,), (), why=why, refuses=True)


def beside(theirs: str, row: Row) -> Row:
    """The row where another tensor of theirs, which it leaves alone, is there too."""
    return replace(row, beside=theirs)


def within(prefix: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows with a prefix before every name of theirs."""
    return tuple(replace(row, theirs=tuple(prefix + name for name in row.theirs)) for row in rows)


def ours_within(prefix: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows with a prefix before every name of ours."""
    return tuple(replace(row, ours=tuple(prefix + name for name in row.ours)) for row in rows)


def renamed(old: str, new: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows with a part of every name of theirs replaced."""
    return tuple(
        replace(row, theirs=tuple(name.replace(old, new) for name in row.theirs)) for row in rows
    )


def in_version(version: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows as the spelling of one version of a library."""
    return tuple(replace(row, version=version) for row in rows)


def plain_op(read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Op:
    return Op(lambda x, _: read(x), lambda x, _: write(x))


def axes(theirs: str, ours: str, **sizes: str) -> Op:
    """Their axes in our order, and back; `sizes` names the field that holds the size of an axis,
    with ".0" or ".1" for one that may hold two.

    >>> axes("D K", "K D").read(torch.zeros(8, 3), {}).shape
    torch.Size([3, 8])
    """

    located = {axis: name.partition(".") for axis, name in sizes.items()}

    def move(x: Tensor, old: str, new: str, known: Mapping[str, int]) -> Tensor:
        try:
            return rearrange(x, f"{old} -> {new}", **known)
        except EinopsError:
            sizes_given = "".join(f" with {axis}={size}" for axis, size in known.items())
            raise ValueError(f"its axes should be ({old}){sizes_given}") from None

    def read(x: Tensor, hints: Mapping[str, Any]) -> Tensor:
        known = {
            axis: pick_size(hints[field], place)
            for axis, (field, _, place) in located.items()
            if field in hints
        }
        return move(x, theirs, ours, known)

    def write(x: Tensor, config: Any) -> Tensor:
        known = {
            axis: pick_size(getattr(config, field), place)
            for axis, (field, _, place) in located.items()
        }
        return move(x, ours, theirs, known)

    return Op(read, write)


def pick_size(value: Any, place: str) -> Any:
    """
    >>> pick_size((16, 8), "1"), pick_size(16, "1")
    (8, 16)
    """
    return value[int(place)] if isinstance(value, tuple) else value


FLAT_TOKEN = plain_op(lambda x: x[None, None], lambda x: x[0, 0])  # (D) and (1, 1, D)
FLAT_TABLE = plain_op(lambda x: x[None], lambda x: x[0])  # (N, D) and (1, N, D)
TRANSPOSED = plain_op(lambda x: x.mT, lambda x: x.mT)


def zeros_like(x: Tensor) -> Tensor:
    return torch.zeros(x.shape)
