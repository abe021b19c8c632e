"""Rows: which foreign tensors are which of ours, read forwards to load and backwards to write.

    same("norm.{p}", "norm.{p}")                                   one tensor, another name
    reshape("head/kernel", "head.classes.weight", transposed)      one tensor, another shape
    fuse(["q.{p}", "k.{p}", "v.{p}"], "attention.qkv.{p}")         several of theirs are one of ours
    stack(same("norm/scale", "blocks.{i}.norm1.weight"))           one of theirs holds every block
    drop("pooler.*", why="the classifier does not read it")        theirs alone
    supply("mask_token", zeros, why="only pre-training reads it")  theirs alone, yet asked for
    fill("head.classes.bias", zeros, why="CLIP's has none")        ours alone

A placeholder such as {i} runs over the values given to `expand`; a pair is (their value, our
value). A row applies where all of its names exist, so old and new names are simply two rows; the
first that applies is the one that is written. Reading is total: every foreign tensor is used once
or dropped for a reason, every tensor of ours is made once; anything else is an error that lists
both sides. There is no `strict=False`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.weights.rows import Tensors
from vitrail.weights.translate import PRECISIONS, Coverage

Parts = Sequence[Tensor]


class Op(NamedTuple):
    """A change of shape that can be undone."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    read: Callable[[Parts], Parts] = lambda parts: parts
    write: Callable[[Parts], Parts] = lambda parts: parts
    why: str = ""
    along: str | None = None  # the placeholder that a stack runs over


def same(theirs: str, ours: str) -> Row:
    return Row((theirs,), (ours,))


def reshape(theirs: str, ours: str, op: Op) -> Row:
    return Row(
        (theirs,),
        (ours,),
        read=lambda parts: [op.read(parts[0])],
        write=lambda parts: [op.write(parts[0])],
    )


def fuse(theirs: Sequence[str], ours: str, op: Op | None = None, axis: int = 0) -> Row:
    """Each part through `op`, then joined along `axis` in equal shares."""
    op = op or Op(lambda x: x, lambda x: x)
    return Row(
        tuple(theirs),
        (ours,),
        read=lambda parts: [torch.cat([op.read(part) for part in parts], dim=axis)],
        write=lambda parts: [op.write(part) for part in parts[0].chunk(len(theirs), dim=axis)],
    )


def stack(row: Row, along: str = "i") -> Row:
    """The row for one block, where theirs hold all blocks at once along their first axis."""

    def read(parts: Parts) -> Parts:
        return [row.read([part[i] for part in parts])[0] for i in range(len(parts[0]))]

    def write(parts: Parts) -> Parts:
        blocks = [row.write([part]) for part in parts]
        return [torch.stack(list(same_part)) for same_part in zip(*blocks, strict=True)]

    return Row(row.theirs, row.ours, read, write, along=along)


def drop(theirs: str, why: str) -> Row:
    """Foreign tensors that this shell pattern matches have no part in the model."""
    return Row((theirs,), (), why=why)


def supply(theirs: str, make: Callable[[], Tensor], why: str) -> Row:
    """A foreign tensor that has no part in the model, and is made anew where it is written."""
    return Row((theirs,), (), write=lambda _: [make()], why=why)


def fill(ours: str, make: Callable[[torch.Size], Tensor], why: str) -> Row:
    """A tensor of ours that theirs lack because it is always the same there."""

    def read(parts: Parts) -> Parts:
        return [make(parts[0].shape)]

    def write(parts: Parts) -> Parts:
        if not torch.equal(parts[0].cpu().float(), make(parts[0].shape)):
            raise UserError(f"{ours} cannot be written: {why}")
        return []

    return Row((), (ours,), read, write, why=why)


def expand(rows: Iterable[Row], **axes: Iterable[Any]) -> list[Row]:
    """Every row for every value of its placeholders."""
    pairs = {
        name: [value if isinstance(value, tuple) else (value, value) for value in values]
        for name, values in axes.items()
    }
    return [one for row in rows for one in _expand(row, pairs)]


def _expand(row: Row, axes: Mapping[str, list[tuple[Any, Any]]]) -> Iterable[Row]:
    named = set(re.findall(r"{(\w+)}", " ".join(row.theirs + row.ours)))
    outer = [name for name in axes if name in named and name != row.along]
    for values in product(*(axes[name] for name in outer)):
        theirs = {name: value[0] for name, value in zip(outer, values, strict=True)}
        ours = {name: value[1] for name, value in zip(outer, values, strict=True)}
        inner = (
            [{row.along: ours_value} for _, ours_value in axes[row.along]] if row.along else [{}]
        )
        yield replace(
            row,
            theirs=tuple(name.format(**theirs) for name in row.theirs),
            ours=tuple(name.format(**ours, **each) for each in inner for name in row.ours),
        )


def read(
    rows: Iterable[Row], theirs: Tensors, shapes: Mapping[str, torch.Size], *, where: str
) -> tuple[Tensors, Coverage]:
    """Our tensors, of the given shapes, made from theirs; `where` names the source in an error."""
    rows = list(rows)
    ours: Tensors = {}
    coverage = Coverage()
    left = dict.fromkeys(theirs)
    precision = next((t.dtype for t in theirs.values() if t.is_floating_point()), torch.float32)
    for row in rows:
        fits = row.theirs and row.ours and all(name in left for name in row.theirs)
        if not fits or any(name not in shapes or name in ours for name in row.ours):
            continue
        made = _apply(row, [theirs[name] for name in row.theirs], where)
        for name, tensor in zip(row.ours, made, strict=True):
            if tensor.shape != shapes[name]:
                raise UserError(
                    f"{where}: {' + '.join(row.theirs)} gives {name} the shape "
                    f"{tuple(tensor.shape)}, "
                    f"but this model has {tuple(shapes[name])} there: is it another model, "
                    "or another dialect?"
                )
            if tensor.dtype not in PRECISIONS:
                raise UserError(
                    f"{where}: {row.theirs[0]} holds {tensor.dtype}, but weights are "
                    "floating-point numbers of 16 to 64 bits"
                )
            ours[name] = tensor.contiguous()
        for name in row.theirs:
            del left[name]
            coverage.used.append((name, ", ".join(row.ours)))
    for row in rows:
        if row.theirs and not row.ours:
            for name in [name for name in left if fnmatchcase(name, row.theirs[0])]:
                del left[name]
                coverage.dropped.append((name, row.why))
        for name in row.ours if not row.theirs else ():
            if name in shapes and name not in ours:
                made = row.read([torch.empty(shapes[name], device="meta")])
                ours[name] = made[0].to(precision)  # or a float64 file would load as float32
                coverage.filled.append((name, row.why))
    _insist(list(left), [name for name in shapes if name not in ours], list(theirs), where)
    return ours, coverage


def write(rows: Iterable[Row], ours: Tensors, *, where: str) -> Tensors:
    """Their tensors made from ours; every one of ours has to be told."""
    theirs: Tensors = {}
    left = dict.fromkeys(ours)
    precision = next((tensor.dtype for tensor in ours.values()), torch.float32)
    for row in rows:
        if any(name not in left for name in row.ours):
            continue
        made = row.write([ours[name] for name in row.ours])
        # without ours a row makes nothing (drop), or one tensor out of nothing (supply)
        for name, tensor in zip(row.theirs, made, strict=bool(row.ours)):
            made_anew = not row.ours and tensor.is_floating_point()  # a counter stays a counter
            theirs[name] = tensor.to(precision) if made_anew else tensor.contiguous()
        for name in row.ours:
            del left[name]
    if left:
        raise UserError(
            f"{where} has no place for {_some(list(left))}: choose another dialect, or save "
            "in our own format"
        )
    return theirs


def _apply(row: Row, parts: Parts, where: str) -> Parts:
    try:
        made = row.read(parts)
        if len(made) == len(row.ours):
            return made
        problem = f"{len(made)} blocks where {len(row.ours)} belong"
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        problem = str(error).splitlines()[0]
    shapes = ", ".join(str(tuple(part.shape)) for part in parts)
    raise UserError(
        f"{where}: {' + '.join(row.theirs)} of shape {shapes} does not fit {row.ours[0]}: {problem}"
    )


def _insist(extra: list[str], missing: list[str], theirs: list[str], where: str) -> None:
    if not extra and not missing:
        return
    sides = []
    if extra:
        sides.append(f"{len(extra)} tensors that no row reads ({_some(extra)})")
    if missing:
        close = get_close_matches(missing[0], extra or theirs, n=1, cutoff=0.5)
        hint = f", nearest in the file is {close[0]}" if close else ""
        sides.append(f"{len(missing)} tensors of the model missing ({_some(missing)}{hint})")
    raise UserError(f"{where}: {' and '.join(sides)}: is it another model, or another dialect?")


def _some(names: list[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
