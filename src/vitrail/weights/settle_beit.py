"""From what a BEiT's file tells and what the person says to one config.

Its tables of relative bias tell the heads, and the grid as far as it is square: 729 distances are
27x27, those of 14x14 patches, but 9x81 too.
"""

import math
from typing import Any

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.models.beit import CLASS_RELATIONS, VARIANTS, BeitConfig, count_relations
from vitrail.weights.families.family import note_cut_off, pair
from vitrail.weights.old_dialect import Dialect, Facts, Foreign

Grid = tuple[int, int]

# What makes one model; whether a bias is shared and what is pooled belongs to a stage of training.
SHAPE = ("dim", "depth", "heads", "mlp_dim", "patch_size")


def settle_beit(
    foreign: Foreign,
    dialect: Dialect,
    *,
    named: BeitConfig | None,
    grid: Grid | None,
    said: dict[str, Any],
) -> tuple[BeitConfig, list[str]]:
    """The config of a BEiT's file as it is, and a sentence for each thing that was looked up."""
    facts = dict(dialect.infer(foreign))
    notes = [*foreign.notes, *facts.pop("notes", ())]
    table = facts.pop("table")
    if facts["dim"] % facts["heads"] or not facts["depth"]:
        raise UserError(
            f"{foreign.source}: {facts['depth']} blocks of {facts['dim']} channels and "
            f"{facts['heads']} heads are no BEiT: is the file whole?"
        )
    if named is not None:
        _agree(facts, named, foreign.source)
    like = named or _published(facts)
    if like is not None:
        facts.setdefault("layer_scale", like.layer_scale)
    told = facts.pop("image_size", None)
    (rows, columns), note = _grid(facts, table, told, named, grid, said, foreign.source)
    notes += [note] if note and not dialect.square else []
    facts["image_size"] = (rows * facts["patch_size"], columns * facts["patch_size"])
    notes += note_cut_off(told if grid is None else None, facts["image_size"])
    return validate(BeitConfig, facts, where=foreign.source), notes


def _agree(facts: Facts, named: BeitConfig, where: str) -> None:
    """Refuse a name that the tensors contradict."""
    for name in SHAPE:
        if facts[name] != getattr(named, name):
            ours = getattr(named, name)
            raise UserError(f"{where}: its {name} is {facts[name]}, the model you named has {ours}")


def _published(facts: Facts) -> BeitConfig | None:
    configs = [variant.config for variant in VARIANTS.values()]
    return next((c for c in configs if all(getattr(c, n) == facts[n] for n in SHAPE)), None)


def _grid(
    facts: Facts,
    table: int,
    told: Any,
    named: BeitConfig | None,
    grid: Grid | None,
    said: dict[str, Any],
    where: str,
) -> tuple[Grid, str]:
    """The grid whose relations these are, the surest first; a sentence where it is not the file or
    the person who tells."""

    def cells(size: Any) -> Grid:
        height, width = pair(size, "image_size")
        return height // facts["patch_size"], width // facts["patch_size"]

    if grid is not None or told is not None:
        sure = pair(grid, "grid") if grid is not None else cells(told)
        if not _fits(sure, table):
            raise UserError(
                f"{where}: its {table} relations are not those of a grid of {sure[0]}x{sure[1]}"
            )
        return sure, ""
    side = (math.isqrt(max(table - CLASS_RELATIONS, 0)) + 1) // 2
    square = (side, side)
    asked = cells(said["image_size"]) if said.get("image_size") is not None else square
    if asked != square and _fits(asked, table) and _fits(square, table):
        raise UserError(
            f"{table} relations may be those of a grid of {asked[0]}x{asked[1]} or of "
            f"{side}x{side}: say which the file has, by grid=(rows, columns) (--grid ROWSxCOLUMNS)"
        )
    if asked != square and _fits(asked, table):
        return asked, ""
    if named is not None and _fits(named.grid, table):
        return named.grid, ""
    if _fits(square, table):
        return square, f"{side}x{side}: square grid, as nothing says otherwise"
    raise UserError(
        f"{where}: it holds {table} relations, and nothing known so far tells its grid: "
        "give grid=(rows, columns) (--grid ROWSxCOLUMNS), or image_size"
    )


def _fits(grid: Grid, table: int) -> bool:
    return min(grid) > 0 and count_relations(grid) == table
