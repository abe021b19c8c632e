"""From what a ViT's file tells and what the person says to one config; nothing is guessed in
silence."""

import math
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.models.catalogue import FAMILIES
from vitrail.models.vit import ViTConfig
from vitrail.weights.old_dialect import Dialect, Facts, Foreign

Grid = tuple[int, int]

# Sides of square images at which ViTs were published.
PUBLISHED = (224, 384, 512, 518, 240, 256, 336, 378, 392, 448, 192, 196, 280)


def settle_vit(
    foreign: Foreign,
    dialect: Dialect,
    *,
    named: ViTConfig | None,
    grid: Grid | None,
    said: dict[str, Any],
) -> tuple[ViTConfig, list[str]]:
    """The config of a ViT's file as it is, and a sentence for each thing that was looked up rather
    than read.

    `named` is the model the person named, `grid` the rows and columns of the file's positions,
    `said` the fields they asked for, which also answer what the file leaves open.
    """
    facts = dict(dialect.infer(foreign))
    notes = [*foreign.notes, *facts.pop("notes", ())]
    table, inner = facts.pop("table", None), facts.get("inner", facts["dim"])
    square = facts.pop("square", dialect.square)
    if "pixels" in facts:
        facts |= _patch(facts.pop("pixels"), named, said, foreign.source, notes)
    if named is not None:
        _agree(facts, named, foreign.source)
    heads = _heads(facts, named, said, foreign.source, notes)
    if inner % heads:
        raise UserError(f"{foreign.source}: {inner} attention channels do not make {heads} heads")
    stride = facts["patch_size"] * (facts["stem"].stride if facts.get("stem") else 1)
    candidates = _grids(facts, table, named, grid, said, stride, square)
    (rows, columns), slots = _fitting(facts, table, candidates, foreign.source, notes)
    facts.pop("inner", None)
    notes += note_cut_off(facts.get("image_size"), (rows * stride, columns * stride))
    with_class = facts.get("class_token", True) + facts.get("distilled", False)
    facts |= {
        "heads": heads,
        "dim_head": None if inner == facts["dim"] and inner % heads == 0 else inner // heads,
        "image_size": (rows * stride, columns * stride),
        "prefix_positions": None if slots in (None, with_class) else slots,
    }
    plain = {name: asdict(value) if is_dataclass(value) else value for name, value in facts.items()}  # type: ignore[arg-type]
    return validate(ViTConfig, plain, where=foreign.source), notes


def note_cut_off(given: Any, used: Grid) -> list[str]:
    """Some published models have images of a size that their patches do not divide."""
    given = pair(given, "image_size") if given is not None else used
    if given == used:
        return []
    sides = "{}x{} pixels instead of {}x{}".format(*used, *given)
    return [f"images of {sides}: patches leave the rest out"]


def _agree(facts: Facts, named: ViTConfig, where: str) -> None:
    """Refuse a name that the tensors contradict."""
    plain = {"distilled": False, "registers": 0, "stem": None}
    for name in ("dim", "depth", "mlp_dim", "patch_size", *plain):
        ours, theirs = getattr(named, name), facts.get(name, plain.get(name))
        if name == "stem":
            ours, theirs = (stem and list(stem.blocks) for stem in (ours, theirs))
        if theirs != ours:
            raise UserError(f"{where}: its {name} is {theirs}, the model you named has {ours}")


def _patch(
    pixels: int, named: ViTConfig | None, said: dict[str, Any], where: str, notes: list[str]
) -> Facts:
    """Channels and side of a patch, where a file holds flattened patches: values, no shape."""
    told = (pixels // named.patch_size**2 if named else None, said.get("channels"))
    for channels in (*told, 3, 1):
        if not isinstance(channels, int) or channels < 1 or pixels % channels:
            continue
        side = math.isqrt(pixels // channels)
        if side * side * channels == pixels:
            if channels not in told:
                notes.append(f"patches of {side}x{side} pixels and {channels} channels")
            return {"channels": channels, "patch_size": side}
    raise UserError(
        f"{where}: {pixels} values do not make a square patch of 3 channels or 1, "
        "and other patches than square ones are not read: give channels=N"
    )


def _heads(
    facts: Facts, named: ViTConfig | None, said: dict[str, Any], where: str, notes: list[str]
) -> int:
    heads = facts.get("heads") or said.get("heads") or (named.heads if named else None)
    if heads is None:
        heads = published_heads(facts)
        if heads is None:
            raise UserError(
                f"{where}: the file does not tell how many heads its attention has: "
                "give heads=N (--set heads=N, or fields.heads=N of a run), or the model's name"
            )
        notes.append(f"{heads} heads, as every published ViT of width {facts['dim']} has")
    if not isinstance(heads, int) or heads < 1:
        raise UserError(f"{where}: heads must be a whole number above 0, got {heads!r}")
    return heads


def published_heads(facts: Facts) -> int | None:
    """The heads of the published models of this shape, where they all agree."""
    if facts["dim"] == 768 and not facts.get("class_token", True):
        return None  # SigLIP's B has 12, I-JEPA's 16
    if facts.get("inner", facts["dim"]) != facts["dim"]:
        return None
    shape = (facts["dim"], facts["depth"], facts["mlp_dim"])
    configs = [variant.config for variant in FAMILIES["vit"].variants.values()]
    found = {c.heads for c in configs if (c.dim, c.depth, c.mlp_dim) == shape}
    return found.pop() if len(found) == 1 else None


def _grids(
    facts: Facts,
    table: int | None,
    named: ViTConfig | None,
    grid: Grid | None,
    said: dict[str, Any],
    stride: int,
    square: bool,
) -> Iterator[tuple[Grid, str]]:
    """Grids the file may have, the surest first; a sentence where it is not the file or the person
    who tells."""

    def cells(size: Any) -> Grid:
        height, width = pair(size, "image_size")
        return height // stride, width // stride

    if grid is not None:
        yield pair(grid, "grid"), ""
        return
    if facts.get("image_size") is not None:
        yield cells(facts["image_size"]), ""
        return
    if said.get("image_size") is not None:
        yield from _asked(facts, table, cells(said["image_size"]), named, stride)
    if named is not None:
        yield cells(named.image_size), ""
    if published_heads(facts) is not None:
        for side in PUBLISHED:
            if side % stride == 0:
                yield cells(side), f"grid of a published size, {side} pixels a side"
    if square and table is not None:
        for slots in range(3):
            side = math.isqrt(max(table - slots, 0))
            yield (side, side), "square grid, as nothing says otherwise"


def _asked(
    facts: Facts, table: int | None, asked: Grid, named: ViTConfig | None, stride: int
) -> Iterator[tuple[Grid, str]]:
    """The grid that was asked for may be the file's own, unless a published one fits as well: then
    it is not for us to say whether positions are to be kept or resized."""
    if table is None:
        yield asked, ""
        return
    sides = [side // stride for side in PUBLISHED if side % stride == 0]
    known = [(side, side) for side in sides] if published_heads(facts) is not None else []
    if named is not None:
        known.append((named.image_size[0] // stride, named.image_size[1] // stride))
    prefix = facts.get("class_token", True) + facts.get("distilled", False)
    slots = range(prefix + facts.get("registers", 0) + 1)
    fitting = {grid for grid in (asked, *known) if table - grid[0] * grid[1] in slots}
    if asked in fitting and len(fitting) > 1:
        other = next(grid for grid in fitting if grid != asked)
        raise UserError(
            f"{table} positions may be a grid of {asked[0]}x{asked[1]} or of "
            f"{other[0]}x{other[1]}: "
            "say which the file has, by grid=(rows, columns) (--grid ROWSxCOLUMNS)"
        )
    if asked in fitting:
        yield asked, ""


def pair(value: Any, name: str) -> tuple[int, int]:
    """A side, or two of them, from a person or a stranger's file."""
    sides = [value, value] if isinstance(value, int) else value
    if not isinstance(sides, list | tuple) or [type(side) for side in sides] != [int, int]:
        raise UserError(f"{name} must be a whole number, or two of them, got {value!r}")
    return sides[0], sides[1]


def _fitting(
    facts: Facts,
    table: int | None,
    candidates: Iterator[tuple[Grid, str]],
    where: str,
    notes: list[str],
) -> tuple[Grid, int | None]:
    prefix = facts.get("class_token", True) + facts.get("distilled", False)
    prefix += facts.get("registers", 0)
    expected = facts.get("prefix_positions")
    for (rows, columns), note in candidates:
        slots = None if table is None else table - rows * columns
        if rows < 1 or columns < 1:
            continue
        if slots is None or (0 <= slots <= prefix and expected in (None, slots)):
            if note:
                notes.append(f"{rows}x{columns}: {note}")
            return (rows, columns), slots
    holds = f"it holds {table} positions" if table is not None else "it holds no position table"
    raise UserError(
        f"{where}: {holds}, of which {prefix} may be of prefix tokens, and nothing tells its grid: "
        "give grid=(rows, columns) (--grid ROWSxCOLUMNS), or image_size and the model's name"
    )
