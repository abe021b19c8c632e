"""ViT: the config in its tensors, what else is looked up, and how positions are resized."""

import math
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from typing import Any

import torch

from vitrail.core.errors import UserError
from vitrail.core.layout import format_sides, height_and_width, simplify_sides
from vitrail.core.passport import ResizeMethod
from vitrail.core.records import validate
from vitrail.models.catalogue import FAMILIES
from vitrail.models.position_resize import resize_positions
from vitrail.models.resnet import ResNetConfig
from vitrail.models.vit import ViTConfig
from vitrail.weights.families.family import (
    KERNEL,
    FamilyWeights,
    Grid,
    NamedTensors,
    Request,
    note_cut_off,
    pair,
    resize_kernels,
)
from vitrail.weights.rows import Facts, Tensors

TABLE = "positions.table"
ROOT = "stem.root.conv.weight"
# Sides of square images at which ViTs were published.
PUBLISHED = (224, 384, 512, 518, 240, 256, 336, 378, 392, 448, 192, 196, 280)


def config_of(tensors: NamedTensors) -> Facts:
    """Every field that the tensors show; "square" means that the grid of positions is square."""
    known, shape = tensors.tensors, tensors.shape
    dim, channels, height, width = shape(KERNEL, 4)
    hidden = shape("blocks.0.mlp.fc2.weight", 2)[1]
    gated = shape("blocks.0.mlp.fc1.weight", 2)[0] == 2 * hidden
    stem = stem_of(tensors)
    classes = "head.classes.weight"
    biases = {"blocks.0.attention.qkv.bias": "qkv", "blocks.0.attention.qv_bias": "qv"}
    facts: Facts = {
        "dim": dim,
        "depth": tensors.count("blocks.{}.norm1.weight"),
        "mlp_dim": hidden,
        "patch_size": simplify_sides((height, width)),
        "channels": shape(ROOT, 4)[1] if stem else channels,
        "stem": stem,
        "class_token": "cls" in known,
        "distilled": "distillation" in known,
        "registers": shape("registers", 3)[1] if "registers" in known else 0,
        "positions": positions_of(tensors),
        "patch_bias": "patches.projection.bias" in known,
        "patch_norm": "patches.pixel_norm.weight" in known,
        "embed_norm": "embed_norm.weight" in known,
        "final_norm": "tokens" if "norm.weight" in known else "none",
        "pool": "cls" if "cls" in known else "mean",
        "qkv_bias": next((kind for name, kind in biases.items() if name in known), "none"),
        "layer_scale": 1e-5 if "blocks.0.scale1.factor" in known else None,
        "head": "pretrain" if "head.hidden.weight" in known else "linear",
        "num_classes": tensors.classes(),
        "head_bias": classes not in known or "head.classes.bias" in known,
    }
    return facts | ({"activation": "swiglu"} if gated else {})


def positions_of(tensors: NamedTensors) -> str:
    tables = {
        TABLE: "learned",
        "positions.rows": "learned2d",
        "blocks.0.attention.distances.table": "relative",
    }
    return next((kind for name, kind in tables.items() if name in tensors.tensors), "none")


def stem_of(tensors: NamedTensors) -> ResNetConfig | None:
    """The ResNet of a hybrid."""
    if ROOT not in tensors.tensors:
        return None
    stages = tensors.count("stem.stages.{}.0.conv1.weight")
    blocks = [tensors.count(f"stem.stages.{stage}.{{}}.conv1.weight") for stage in range(stages)]
    return ResNetConfig(blocks=tuple(blocks), width=tensors.shape(ROOT, 4)[0])


def resolve_config(
    facts: Facts, tensors: NamedTensors, request: Request
) -> tuple[ViTConfig, list[str]]:
    """The config of a ViT's file as it is, and a sentence for each thing that was looked up rather
    than read."""
    facts, notes = dict(facts), list[str]()
    where, named = request.source, request.named
    table = tensors.shape(TABLE, 3)[1] if facts["positions"] == "learned" else None
    inner = tensors.shape("blocks.0.attention.qkv.weight", 2)[0] // 3
    square = facts.pop("square", request.square)
    if named is not None:
        refuse_contradiction(facts, named, where)
    heads = find_heads(facts, inner, request, notes)
    if inner % heads:
        raise UserError(f"{where}: {inner} attention channels do not make {heads} heads")
    down, across = strides = strides_of(facts)
    usual = published_heads(facts, inner) is not None
    candidates = candidate_grids(facts, table, request, strides, usual=usual, square=square)
    (rows, columns), slots = first_fitting(facts, table, candidates, request, notes)
    image_size = rows * down, columns * across
    notes += note_cut_off(facts.get("image_size"), image_size)
    with_class = facts["class_token"] + facts["distilled"]
    facts |= {
        "heads": heads,
        "dim_head": None if inner == facts["dim"] else inner // heads,
        "image_size": image_size,
        "prefix_positions": None if slots in (None, with_class) else slots,
    }
    plain = {name: asdict(value) if is_dataclass(value) else value for name, value in facts.items()}  # type: ignore[arg-type]
    return validate(ViTConfig, plain, where=where), notes


def strides_of(facts: Facts) -> tuple[int, int]:
    """Height and width of a patch in pixels."""
    height, width = height_and_width(facts["patch_size"])
    stem = facts["stem"].stride if facts.get("stem") else 1
    return height * stem, width * stem


def refuse_contradiction(facts: Facts, named: ViTConfig, where: str) -> None:
    """Refuse a name that the tensors contradict."""
    for name in ("dim", "depth", "mlp_dim", "patch_size", "distilled", "registers", "stem"):
        ours, theirs = getattr(named, name), facts.get(name)
        if name == "stem":
            ours, theirs = (stem and list(stem.blocks) for stem in (ours, theirs))
        if theirs != ours:
            raise UserError(f"{where}: its {name} is {theirs}, the model you named has {ours}")


def find_heads(facts: Facts, inner: int, request: Request, notes: list[str]) -> int:
    where, named = request.source, request.named
    heads = facts.get("heads") or request.overrides.get("heads") or (named and named.heads)
    if heads is None:
        heads = published_heads(facts, inner)
        if heads is None:
            raise UserError(
                f"{where}: the file does not specify how many heads its attention has: "
                "give heads=N, or the model's name"
            )
        notes.append(f"{heads} heads, as every published ViT of width {facts['dim']} has")
    if not isinstance(heads, int) or heads < 1:
        raise UserError(f"{where}: heads must be a whole number above 0, got {heads!r}")
    return heads


def published_heads(facts: Facts, inner: int) -> int | None:
    """The heads of the published models of this shape, where they all agree."""
    if facts["dim"] == 768 and not facts.get("class_token", True):
        return None  # SigLIP's B has 12, I-JEPA's 16
    if inner != facts["dim"]:
        return None
    shape = (facts["dim"], facts["depth"], facts["mlp_dim"])
    configs = [variant.config for variant in FAMILIES["vit"].variants.values()]
    found = {c.heads for c in configs if (c.dim, c.depth, c.mlp_dim) == shape}
    return found.pop() if len(found) == 1 else None


def candidate_grids(
    facts: Facts, table: int | None, request: Request, strides: Grid, *, usual: bool, square: bool
) -> Iterator[tuple[Grid, str]]:
    """Grids the file may have, the surest first; a sentence where neither the file nor the person
    specifies one. `usual`: its shape is a published one."""

    def cells(size: Any) -> Grid:
        height, width = pair(size, "image_size")
        return height // strides[0], width // strides[1]

    if request.grid is not None:
        yield pair(request.grid, "grid"), ""
        return
    if facts.get("image_size") is not None:
        yield cells(facts["image_size"]), ""
        return
    fits = math.lcm(*strides)
    known = [cells(side) for side in PUBLISHED if side % fits == 0] if usual else []
    requested = request.overrides.get("image_size")
    if requested is not None:
        others = [*known, cells(request.named.image_size)] if request.named else known
        yield from requested_grid(facts, table, cells(requested), others)
    if request.named is not None:
        yield cells(request.named.image_size), ""
    for grid in known:
        yield grid, f"grid of a published size, {grid[0] * strides[0]} pixels a side"
    if square and table is not None:
        for slots in range(3):
            side = math.isqrt(max(table - slots, 0))
            yield (side, side), "assumed to be a square grid: the file has none"


def requested_grid(
    facts: Facts, table: int | None, requested: Grid, known: list[Grid]
) -> Iterator[tuple[Grid, str]]:
    """The grid of the requested size may be the file's own, unless a published one fits as well:
    then it is unknown whether positions are to be kept or resized."""
    if table is None:
        yield requested, ""
        return
    slots = range(facts["class_token"] + facts["distilled"] + facts["registers"] + 1)
    fitting = {grid for grid in (requested, *known) if table - grid[0] * grid[1] in slots}
    if requested in fitting and len(fitting) > 1:
        other = next(grid for grid in fitting if grid != requested)
        raise UserError(
            f"{table} positions may be a grid of {requested[0]}x{requested[1]} or of "
            f"{other[0]}x{other[1]}: "
            "give the one that the file has by grid=(rows, columns)"
        )
    if requested in fitting:
        yield requested, ""


def first_fitting(
    facts: Facts,
    table: int | None,
    candidates: Iterator[tuple[Grid, str]],
    request: Request,
    notes: list[str],
) -> tuple[Grid, int | None]:
    """The first grid that makes a table of so many rows, and the prefix tokens with a position."""
    prefix = facts["class_token"] + facts["distilled"] + facts["registers"]
    expected = facts.get("prefix_positions")
    for (rows, columns), note in candidates:
        slots = None if table is None else table - rows * columns
        if rows < 1 or columns < 1:
            continue
        if slots is None or (0 <= slots <= prefix and expected in (None, slots)):
            if note:
                notes.append(f"{rows}x{columns}: {note}")
            return (rows, columns), slots
    raise UserError(f"{request.source}: {why_no_grid(facts, table, prefix, request)}")


def why_no_grid(facts: Facts, table: int | None, prefix: int, request: Request) -> str:
    """Why no grid fits, and what to do about it."""
    size = facts.get("image_size")
    if table is None:
        return "it holds no position table: give grid=(rows, columns)"
    holds = f"it holds {table} positions, of which {prefix} may be of prefix tokens"
    if request.grid is not None:
        rows, columns = pair(request.grid, "grid")
        return f"{holds}, but grid is {rows}x{columns}, which makes {rows * columns}: correct grid"
    if size is None:
        return (
            f"{holds}, and nothing specifies its grid: give grid=(rows, columns), or image_size "
            "and the model's name"
        )
    height, width = pair(size, "image_size")
    down, across = strides_of(facts)
    rows, columns = height // down, width // across
    sides = {math.isqrt(table - slots) for slots in range(prefix + 1) if table > slots}
    fitting = [side * down for side in sides if table - side**2 in range(prefix + 1)]
    other = f" to {fitting[0]}" if len(fitting) == 1 and down == across else ""
    patch = format_sides(simplify_sides((down, across)))
    return (
        f"{holds}, but its config has image_size {height}x{width}, which makes "
        f"{rows * columns} in patches of {patch}: correct image_size in config.json{other}, or "
        "give grid=(rows, columns)"
    )


def resize_state(
    state: Tensors, old: ViTConfig, new: ViTConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels, prefix slots and positions of a ViT."""
    state, done = resize_kernels(state, old, new, method)
    if (new.channels, new.patch_size) != (old.channels, old.patch_size) and old.patch_norm:
        raise UserError("a model that norms its pixels cannot take other patches or channels")
    if new.slots != old.slots and new.positions == "sincos1d":
        raise UserError(
            'prefix_positions cannot change with positions="sincos1d": every patch would move'
        )
    if new.slots != old.slots:
        state, sentence = fold_slots(state, old, new)
        done.append(sentence)
        old = replace(old, prefix_positions=new.prefix_positions)
    if new.grid != old.grid:
        state, sentence = resize_grid(state, old, new, method)
        done.append(sentence)
    return state, done


def fold_slots(state: Tensors, old: ViTConfig, new: ViTConfig) -> tuple[Tensors, str]:
    """A prefix token and its position are only ever added, so the sum may as well be the token."""
    table, kept = state[TABLE], min(old.slots, new.slots)
    before = old.slots
    for name in ("registers", "distillation", "cls"):
        if name in state:
            first = tokens_before(name, old)
            folded = range(max(first, kept), min(first + state[name].shape[1], before))
            for slot in folded:
                token = state[name].clone()
                token[:, slot - first] += table[:, slot]
                state = state | {name: token}
    zeros = table.new_zeros(1, new.slots - kept, table.shape[2])
    table = torch.cat([table[:, :kept], zeros, table[:, before:]], dim=1)
    sentence = f"prefix tokens with a position of their own: {old.slots} before, {new.slots} now"
    return state | {TABLE: table}, sentence


def tokens_before(name: str, config: ViTConfig) -> int:
    """How many tokens stand before a kind of prefix token."""
    return {"cls": 0, "distillation": 1, "registers": config.class_token + config.distilled}[name]


def resize_grid(
    state: Tensors, old: ViTConfig, new: ViTConfig, method: ResizeMethod
) -> tuple[Tensors, str]:
    """Positions for another grid, of every kind that can have one."""
    sizes = f"from {old.grid[0]}x{old.grid[1]} to {new.grid[0]}x{new.grid[1]}"
    match old.positions:
        case "learned":
            table = resize_positions(
                state[TABLE], old.grid, new.grid, prefix=old.slots, method=method
            )
            return state | {TABLE: table}, f"positions resized {sizes} ({method})"
        case "learned2d":
            for along, name in enumerate(("positions.rows", "positions.columns")):
                line = state[name][None]
                resized = resize_positions(
                    line, (line.shape[1], 1), (new.grid[along], 1), prefix=0, method=method
                )
                state = state | {name: resized[0]}
            return state, f"row and column positions resized {sizes} ({method})"
        case "relative":
            raise UserError(
                f"1-D relative positions belong to one grid and cannot go {sizes}: keep the "
                "image_size"
            )
        case _:
            return state, ""


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_config,
    resize_state=resize_state,
    kernel=lambda config: ROOT if config.stem else KERNEL,
    resized=frozenset({"patch_size", "prefix_positions"}),
)
