"""Reading and writing tensors by rows: total in both directions.

Every foreign tensor is used once or dropped for a reason, every tensor of ours is made once;
anything else is an error that lists both sides. There is no `strict=False`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.weights.patterns import Bound, CompiledRow, Table
from vitrail.weights.rows import Facts, Row, Tensors

PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Unbound = Callable[[Any, Mapping[str, int]], Mapping[str, int | str]]


@dataclass
class Coverage:
    """What became of every tensor: (theirs, ours) used, (theirs, why) dropped, (ours, why) filled;
    `unread` are theirs that no row took."""

    used: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    filled: list[tuple[str, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def sources(self, ours: str) -> str:
        """Their names for one of our tensors."""
        return " + ".join(theirs for theirs, name in self.used if ours in name.split(", ")) or ours


@dataclass
class Translation:
    """Our tensors, the facts that the rows in use imply, and what became of every tensor."""

    state: Tensors = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)


def read(table: Table, theirs: Tensors, hints: Facts, *, where: str) -> Translation:
    """Our tensors made from theirs; `where` names the source in an error."""
    reader = _Reader(theirs, hints, where, left=dict.fromkeys(theirs))
    for compiled in table.rows:
        row = compiled.row
        if row.refuses:
            if any(compiled.theirs[0].match(name) is not None for name in reader.left):
                raise UserError(f"{where}: {row.why}")
        elif row.theirs and row.ours and reader.agrees(row):
            for name in list(reader.left):
                bound = compiled.theirs[0].match(name) if name in reader.left else None
                if bound is not None and is_fixed(bound, table, hints):
                    reader.use(compiled, bound)
    for compiled in table.rows:
        row = compiled.row
        if row.theirs and not row.ours and not row.refuses:
            reader.drop(compiled)
        if not row.theirs and reader.agrees(row):
            reader.fill(compiled)
    reader.made.coverage.unread = list(reader.left)
    return reader.made


def agrees(row: Row, facts: Mapping[str, Any]) -> bool:
    """Whether nothing that is known contradicts what the row implies."""
    return all(facts.get(name, value) == value for name, value in row.facts.items())


def is_fixed(bound: Bound, table: Table, hints: Facts) -> bool:
    """Whether placeholders have the values that hints give them: {"{v}": "visual."}."""
    fixed = {name: hints[f"{{{name}}}"] for name in bound if f"{{{name}}}" in hints}
    return all(table.pairs[name][bound[name]][0] == value for name, value in fixed.items())


@dataclass
class _Reader:
    """Their tensors, which of them are left, and what has been made of the others."""

    theirs: Tensors
    hints: Facts
    where: str
    left: dict[str, None]
    made: Translation = field(default_factory=Translation)

    def agrees(self, row: Row) -> bool:
        return agrees(row, self.hints) and agrees(row, self.made.facts)

    def use(self, compiled: CompiledRow, bound: Bound) -> None:
        """Make one of ours, where all of theirs are there and none has been made of them before."""
        row, made = compiled.row, self.made
        sources = [str(pattern.format(bound)) for pattern in compiled.theirs]
        if any(name not in self.left for name in sources):
            return
        if compiled.beside is not None and compiled.beside.format(bound) not in self.theirs:
            return
        places: list[Bound] = [bound]
        if row.stacked:
            first = self.theirs[sources[0]]
            count = first.shape[0] if first.ndim else 0
            places = [bound | {row.stacked: i} for i in range(count)]
        targets = [compiled.ours[0].format(place) for place in places]
        names = [name for name in targets if name is not None]
        if not names or len(names) < len(targets) or any(name in made.state for name in names):
            return
        for name, tensor in zip(names, self.convert(row, sources, names), strict=True):
            if tensor.dtype not in PRECISIONS:
                raise UserError(
                    f"{self.where}: {sources[0]} holds {tensor.dtype}, but weights are "
                    "floating-point numbers of 16 to 64 bits"
                )
            made.state[name] = tensor.contiguous()
        made.facts.update(row.facts)
        for name in sources:
            del self.left[name]
            made.coverage.used.append((name, ", ".join(names)))

    def convert(self, row: Row, sources: list[str], names: list[str]) -> list[Tensor]:
        parts = [self.theirs[name] for name in sources]
        try:
            stacked = [[part[i] for part in parts] for i in range(len(names) if row.stacked else 0)]
            return [_join(row, block, self.hints) for block in stacked or [parts]]
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            problem = str(error).splitlines()[0]
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise UserError(
            f"{self.where}: {' + '.join(sources)} of shape {shapes} does not fit {names[0]}: "
            f"{problem}"
        )

    def drop(self, compiled: CompiledRow) -> None:
        for name in [name for name in self.left if compiled.theirs[0].match(name) is not None]:
            del self.left[name]
            self.made.coverage.dropped.append((name, compiled.row.why))

    def fill(self, compiled: CompiledRow) -> None:
        row, made = compiled.row, self.made
        assert compiled.like is not None
        assert row.make is not None
        found = (t.dtype for t in self.theirs.values() if t.is_floating_point())
        precision = next(found, torch.float32)
        for name, tensor in list(made.state.items()):
            bound = compiled.like.match(name)
            target = None if bound is None else compiled.ours[0].format(bound)
            if target is not None and target not in made.state:
                # in the file's precision, or a float64 file would load as float32
                made.state[target] = row.make(tensor).to(precision)
                made.facts.update(row.facts)
                made.coverage.filled.append((target, row.why))


def _join(row: Row, parts: list[Tensor], hints: Facts) -> Tensor:
    if row.op is not None:
        parts = [row.op.read(part, hints) for part in parts]
    return parts[0] if row.axis is None else torch.cat(parts, dim=row.axis)


def check_total(
    made: Translation, shapes: Mapping[str, torch.Size], theirs: Tensors, *, where: str
) -> None:
    """Insist that the tensors are those of the model, each of its shape, and none is left over."""
    state, coverage = made.state, made.coverage
    for name, tensor in state.items():
        if name in shapes and tensor.shape != shapes[name]:
            raise UserError(
                f"{where}: {coverage.sources(name)} gives {name} the shape {tuple(tensor.shape)}, "
                f"expected {tuple(shapes[name])}: is it another model, or another dialect?"
            )
    stray = [coverage.sources(name) for name in state if name not in shapes]
    missing = [name for name in shapes if name not in state]
    refuse_partial([*coverage.unread, *stray], missing, list(theirs), shapes, where=where)


def refuse_partial(
    extra: list[str],
    missing: list[str],
    theirs: list[str],
    shapes: Mapping[str, torch.Size],
    *,
    where: str,
) -> None:
    """One error with both sides, and the nearest name to the first that is missing."""
    if not extra and not missing:
        return
    sides = []
    if extra:
        sides.append(f"{len(extra)} tensors that no row reads ({some(extra)})")
    if missing:
        first = f"{missing[0]} (expected shape {tuple(shapes[missing[0]])})"
        close = get_close_matches(missing[0], extra or theirs, n=1, cutoff=0.5)
        hint = f", nearest in the file is {close[0]}" if close else ""
        many = f"{len(missing)} tensors of the model missing ({some(missing)}{hint})"
        sides.append(f"tensor {first} is missing{hint}" if len(missing) == 1 else many)
    raise UserError(f"{where}: {' and '.join(sides)}: is it another model, or another dialect?")


def write(
    table: Table, ours: Tensors, config: Any, *, unbound: Unbound | None = None, where: str
) -> Tensors:
    """Their tensors made from ours; every one of ours has to be written."""
    theirs: Tensors = {}
    left = dict.fromkeys(ours)
    precision = next((tensor.dtype for tensor in ours.values()), torch.float32)
    defaults = dict.fromkeys(table.pairs, 0)

    def values(bound: Bound) -> Mapping[str, int | str]:
        return {**defaults, **(unbound(config, bound) if unbound else {}), **bound}

    for compiled in table.rows:
        row = compiled.row
        if row.stacked or row.refuses or not agrees(row, vars(config)):
            continue
        if not row.ours:
            for name, tensor in _supplied(compiled, ours, config, values):
                # a counter stays a counter
                theirs[name] = tensor.to(precision) if tensor.is_floating_point() else tensor
            continue
        for name in list(left):
            bound = compiled.ours[0].match(name)
            if bound is None:
                continue
            if not row.theirs:
                written = _is_implied(compiled, bound, ours, name)
            else:
                written = _write_one(compiled, values(bound), ours[name], config, theirs)
            if written:
                del left[name]
    if left:
        raise UserError(
            f"{where} has no place for {some(list(left))}: choose another dialect, or save in our "
            "own format"
        )
    return theirs


def _supplied(
    compiled: CompiledRow,
    ours: Tensors,
    config: Any,
    values: Callable[[Bound], Mapping[str, int | str]],
) -> list[tuple[str, Tensor]]:
    row = compiled.row
    if row.make is None:
        return []
    found: list[Bound | None] = [{}]
    if compiled.like is not None:
        found = [compiled.like.match(name) for name in ours]
    names = [compiled.theirs[0].format(values(bound)) for bound in found if bound is not None]
    return [(name, row.make(config)) for name in names if name is not None]


def _is_implied(compiled: CompiledRow, bound: Bound, ours: Tensors, name: str) -> bool:
    """Whether a tensor is left out because it is what theirs always have there."""
    row = compiled.row
    assert compiled.like is not None
    assert row.make is not None
    like = compiled.like.format(bound)
    if like not in ours:
        return False
    made = row.make(ours[like])
    if made.shape != ours[name].shape:
        return False
    if not torch.equal(ours[name].cpu().float(), made.float()):
        raise UserError(f"{name} cannot be written: {row.why}")
    return True


def _write_one(
    compiled: CompiledRow,
    values: Mapping[str, int | str],
    tensor: Tensor,
    config: Any,
    theirs: Tensors,
) -> bool:
    row = compiled.row
    names = [pattern.format(values) for pattern in compiled.theirs]
    if any(name is None for name in names):
        return False
    parts = [tensor] if row.axis is None else _split(row, tensor, len(names))
    if row.op is not None:
        parts = [row.op.write(part, config) for part in parts]
    for name, part in zip(names, parts, strict=True):
        theirs[str(name)] = part.contiguous()
    return True


def _split(row: Row, tensor: Tensor, count: int) -> list[Tensor]:
    """The parts that were joined along an axis."""
    assert row.axis is not None
    if row.shares is None:
        return list(tensor.chunk(count, dim=row.axis))
    unit = tensor.shape[row.axis] // sum(row.shares)
    return list(tensor.split([unit * share for share in row.shares], dim=row.axis))


def some(names: list[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
