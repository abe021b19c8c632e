"""`rows.yaml`: how the tensors of one hand-written model become ours, as people read and edit it.

    config:                             what no tensor shows
      heads: 4
    rows:
    - theirs: patch.weight              one of theirs is one of ours
      ours: patches.projection.weight
      op: d (p q c) -> d c p q          their axes, then ours, in the notation of einops
    - theirs: [q.{p}, k.{p}, v.{p}]     several of theirs, one after the other, are one of ours
      ours: blocks.{i}.attention.qkv.{p}
    - theirs: template.*                theirs alone
      drop: the forward pass does not use it
    - ours: blocks.{i}.attention.out.bias
      fill: zeros                       ours alone: zeros, ones or eye
      like: blocks.{i}.attention.out.weight

{i} is the number of a block and may stand in a sum, {p} is weight or bias. In `op`, c is the
channels, p and q the height and width of a patch, h the heads, and qkv, kqv, … three parts in that
order. `last_first: true` moves the last row of a table to its start, and `columns_first: true` is
for a table of patches that come column by column.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from reprlib import Repr
from typing import Any

import torch
import yaml
from einops import EinopsError, rearrange
from torch import Tensor

from vitrail.core.errors import UserError, nearest
from vitrail.core.yaml_text import load_yaml
from vitrail.models.vit import ViTConfig
from vitrail.weights.dialect import ANY, Dialect, Foreign
from vitrail.weights.dialects.preparation import prepared
from vitrail.weights.rows import Facts, Op, Row, drop, fill, fuse, reshape, same

NAME = "rows.yaml"
SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 2**20
FLAGS = ("last_first", "columns_first")
KEYS = ("theirs", "ours", "op", *FLAGS, "shares", "drop", "fill", "like", "why")
ORDERS = ("qkv", "qvk", "kqv", "kvq", "vqk", "vkq")
PATTERN = re.compile(r"[A-Za-z0-9_ ().]+->[A-Za-z0-9_ ().]+")
Entry = dict[str, Any]


@dataclass(frozen=True)
class RowsFile:
    """Config fields that no tensor shows, and the rows."""

    config: Facts
    rows: tuple[Entry, ...]

    def dialect(self, name: str = "adopted", *, mean: Any = (), std: Any = ()) -> Dialect:
        """The rows as a dialect, which reads and writes files with these names."""
        config = self.config
        return Dialect(
            name=name,
            about="a hand-written ViT",
            rows=tuple(map(to_row, self.rows)),
            hints=lambda *_: dict(config),
            preprocessing=lambda _, config: prepared(config).normalised_by(mean, std),
            resize="paper",
            square="image_size" not in config,
            supports={one.name: ANY for one in fields(ViTConfig)},
        )


def read_rows(path: str | Path) -> RowsFile:
    """The rows in a file that somebody may have changed."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: expected a small YAML file of rows, got {MAX_BYTES} bytes +")
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:  # 2020-99-99 is no date
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: cannot be read as YAML: {first}") from None
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise UserError(
            f"{path}: expected a list of rows under 'rows:', as vitrail adopt writes it"
        )
    config = content.get("config") or {}
    known = {one.name for one in fields(ViTConfig)}
    if not isinstance(config, dict):
        raise UserError(f"{path}: 'config:' must be fields of a ViT, got {shorten(config)}")
    for name in config:
        if name not in known:
            raise UserError(f"{path}: a ViT has no field {name!r}, {nearest(str(name), known)}")
    for number, entry in enumerate(content["rows"], start=1):
        check_entry(entry, f"{path}: row {number}")
    lists = {name: tuple(v) if isinstance(v, list) else v for name, v in config.items()}
    return RowsFile(lists, tuple(content["rows"]))


def check_entry(entry: object, where: str) -> None:
    """Refuse a row that is none, in one sentence."""
    if not isinstance(entry, dict) or not all(isinstance(key, str) for key in entry):
        raise UserError(f"{where}: expected theirs: and ours:, got {shorten(entry)}")
    for key in entry:
        if key not in KEYS:
            raise UserError(f"{where}: unknown key {key!r}, {nearest(key, KEYS)}")
    if not any(key in entry for key in ("drop", "fill")) and not {"theirs", "ours"} <= set(entry):
        raise UserError(f"{where}: a row needs theirs: and ours:, or drop:, or fill:")
    if "drop" in entry and "theirs" not in entry:
        raise UserError(f"{where}: drop: needs theirs:, the tensors that are left out")
    fills = [*FILLS]  # a list, as what is written there may be unhashable
    if "fill" in entry and not ({"ours", "like"} <= set(entry) and entry["fill"] in fills):
        raise UserError(f"{where}: fill: must be {' or '.join(FILLS)}, with ours: and like:")
    theirs = entry.get("theirs", "")
    names = theirs if isinstance(theirs, list) else [theirs]
    texts = [*names, *(entry.get(key, "") for key in ("ours", "op", "drop", "like", "why"))]
    if not names or not all(isinstance(one, str) for one in texts):
        raise UserError(f"{where}: names and operations must be text, got {shorten(entry)}")
    shares = entry.get("shares")
    if shares is not None and not is_shares(shares):
        raise UserError(
            f"{where}: shares: must be whole numbers such as [1, 2], got {shorten(shares)}"
        )
    for key in FLAGS:
        if not isinstance(entry.get(key, False), bool):
            raise UserError(f"{where}: {key}: must be true or false, got {shorten(entry[key])}")
    if "op" in entry and PATTERN.fullmatch(entry["op"]) is None:
        raise UserError(
            f"{where}: op: must be axes like 'd (p q c) -> d c p q', got {entry['op']!r}"
        )


def shorten(value: object) -> str:
    """A value as a message shows it: a small YAML can say one of many megabytes."""
    short = Repr()
    short.maxlevel = short.maxlist = short.maxdict = 3
    return short.repr(value)


def is_shares(value: object) -> bool:
    """Whether it may be how much of ours each of theirs is."""
    return isinstance(value, list) and all(type(one) is int and one > 0 for one in value)


def to_row(entry: Entry) -> Row:
    """The row of an entry."""
    theirs, ours = entry.get("theirs", ""), entry.get("ours", "")
    if "drop" in entry:
        return drop(theirs, why=entry["drop"])
    if "fill" in entry:
        why = entry.get("why", "theirs have none")
        return fill(ours, entry["like"], FILLS[entry["fill"]], why=why)
    op = axes_op(entry["op"]) if "op" in entry else None
    if entry.get("last_first"):
        op = rolled(op)
    if entry.get("columns_first"):
        op = turned(op)
    if isinstance(theirs, list):
        shares = entry.get("shares")
        return replace(fuse(theirs, ours, op), shares=tuple(shares) if shares else None)
    return same(theirs, ours) if op is None else reshape(theirs, ours, op)


FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda like: torch.zeros(like.shape[0]),
    "ones": lambda like: torch.ones(like.shape[0]),
    "eye": lambda like: torch.eye(like.shape[0]),
}


def axes_op(text: str) -> Op:
    """Their axes in our order, and back.

    >>> axes_op("(h qkv d) ... -> (qkv h d) ...").read(torch.zeros(24, 8), {"heads": 2}).shape
    torch.Size([24, 8])
    """
    theirs, _, ours = (part.strip() for part in text.partition("->"))
    found = [order for order in ORDERS if re.search(rf"\b{order}\b", theirs)]
    order = found[0] if found else None

    def read(x: Tensor, hints: Mapping[str, Any]) -> Tensor:
        moved = move(x, theirs, ours, sizes_of(hints))
        if order in (None, "qkv"):
            return moved
        return moved.unflatten(0, (3, -1))[[order.index(one) for one in "qkv"]].flatten(0, 1)

    def write(x: Tensor, config: Any) -> Tensor:
        if order not in (None, "qkv"):
            x = x.unflatten(0, (3, -1))[["qkv".index(one) for one in order]].flatten(0, 1)
        return move(x, ours, theirs, sizes_of(vars(config)))

    return Op(read, write)


def move(x: Tensor, old: str, new: str, sizes: Mapping[str, int]) -> Tensor:
    old, new = (re.sub("|".join(ORDERS), "qkv", side) for side in (old, new))
    known = {axis: size for axis, size in sizes.items() if re.search(rf"\b{axis}\b", old)}
    try:
        return rearrange(x, f"{old} -> {new}", **known)
    except EinopsError:
        given = "".join(f" with {axis}={size}" for axis, size in known.items())
        raise ValueError(f"its axes should be ({old}){given}") from None


def sizes_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the axes that a config names."""
    height, width = pair_of(config.get("patch_size"))
    sizes = {"c": config.get("channels"), "p": height, "q": width, "h": config.get("heads")}
    down, across = pair_of(config.get("image_size"))
    if height and width and down and across:
        sizes |= {"rows": down // height, "columns": across // width}
    return {"qkv": 3} | {axis: size for axis, size in sizes.items() if type(size) is int}


def pair_of(value: Any) -> tuple[int | None, int | None]:
    """A height and a width; None where they are none, which the config refuses later."""
    sides = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        return None, None
    return sides[0], sides[1]


def rolled(op: Op | None) -> Op:
    """After `op`, the last row of a table (1, N, D) comes first."""

    def read(x: Tensor, hints: Mapping[str, Any]) -> Tensor:
        return (op.read(x, hints) if op else x).roll(1, dims=1)

    def write(x: Tensor, config: Any) -> Tensor:
        x = x.roll(-1, dims=1)
        return op.write(x, config) if op else x

    return Op(read, write)


def turned(op: Op | None) -> Op:
    """After `op`, the patches of a table (1, N, D) come row by row, not column by column."""

    def read(x: Tensor, hints: Mapping[str, Any]) -> Tensor:
        x = op.read(x, hints) if op else x
        rows, columns = grid_of(x, hints)
        return swap(x, columns, rows)

    def write(x: Tensor, config: Any) -> Tensor:
        x = swap(x, *grid_of(x, vars(config)))
        return op.write(x, config) if op else x

    return Op(read, write)


def grid_of(table: Tensor, config: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of patches in a table: a square where the config does not name them."""
    sizes, side = sizes_of(config), math.isqrt(table.shape[1])
    return sizes.get("rows", side), sizes.get("columns", side)


def swap(table: Tensor, outer: int, inner: int) -> Tensor:
    """The places behind the prefix the other way round.

    >>> swap(torch.arange(5).view(1, 5, 1), 2, 2).flatten().tolist()
    [0, 1, 3, 2, 4]
    """
    first = table.shape[1] - outer * inner
    if first < 0:
        raise ValueError(f"its rows should be those of {outer}x{inner} patches")
    places = rearrange(table[:, first:], "b (o i) d -> b (i o) d", o=outer)
    return torch.cat([table[:, :first], places], dim=1)


def to_yaml(rows: RowsFile, source: str, how: Mapping[str, str]) -> str:
    """The rows as text, each config field with where it is from.

    >>> print(to_yaml(RowsFile({"heads": 4}, ()), "my.pth", {"heads": "given"}).splitlines()[5])
      heads: 4  # given
    """
    lines = [
        f"# How the tensors of {source} become those of Vitrail's ViT.",
        "# Edit it, and give it to vitrail adopt as its rows, or to load and convert as a dialect.",
        "# {i} is the number of a block, {p} is weight or bias; op has their axes, then ours:",
        "# c channels, p q height and width of a patch, h heads, d any other.",
        "config:",
    ]
    for name, value in rows.config.items():
        plain = list(value) if isinstance(value, tuple) else value
        text = yaml.safe_dump(plain, default_flow_style=True).removesuffix("...\n").strip()
        lines.append(f"  {name}: {text}" + (f"  # {how[name]}" if name in how else ""))
    if not rows.config:
        lines[-1] = "config: {}"
    text = yaml.safe_dump({"rows": list(rows.rows)}, sort_keys=False, allow_unicode=True, width=110)
    return "\n".join(lines) + "\n" + text


def foreign_of(source: str, tensors: Mapping[str, Tensor], notes: tuple[str, ...] = ()) -> Foreign:
    return Foreign(source, dict(tensors), {}, notes)
