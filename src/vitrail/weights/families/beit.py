"""BEiT: its sizes by our names, its grid, and its relative bias on another grid."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.passport import ResizeMethod
from vitrail.core.records import validate
from vitrail.models.beit import CLASS_RELATIONS, VARIANTS, BeitConfig, count_relations
from vitrail.weights.families.family import (
    KERNEL,
    FamilyWeights,
    NamedTensors,
    Request,
    note_cut_off,
    pair,
    refuse_contradiction,
    resize_kernels,
)
from vitrail.weights.offsets import Along, Grid, far_lines, far_spline, linear, resize_offsets
from vitrail.weights.rows import Facts, Tensors

# No tensor shows them, but how many relations a grid has, and whether there is a LayerScale.
NOT_IN_TENSORS = (
    "image_size",
    "pool",
    "layer_scale",
    "activation",
    "norm_eps",
    "dropout",
    "drop_path",
)
# What makes one model; whether a bias is shared and what is pooled belongs to a stage of training.
SHAPE = ("dim", "depth", "heads", "mlp_dim", "patch_size")
METHODS: dict[ResizeMethod, Along] = {"paper": far_spline, "timm": far_lines, "hf": linear}


def config_of(tensors: NamedTensors) -> Facts:
    """The fields that the tensors of a BEiT show."""
    dim, channels, patch_size, _ = tensors.shape(KERNEL, 4)
    facts: Facts = {
        "dim": dim,
        "depth": tensors.count("blocks.{}.norm1.weight"),
        "heads": tensors.shape(_table(tensors), 2)[1],
        "mlp_dim": tensors.shape("blocks.0.mlp.fc1.weight", 2)[0],
        "patch_size": patch_size,
        "channels": channels,
        "num_classes": tensors.classes(),
        "relative_bias": "shared" if _table(tensors) == "relative.table" else "block",
    }
    if "blocks.0.scale1.factor" not in tensors.tensors:
        facts["layer_scale"] = None
    return facts


def _table(tensors: NamedTensors) -> str:
    own = "blocks.0.relative.table"
    return own if own in tensors.tensors else "relative.table"


def resolve_config(
    facts: Facts, tensors: NamedTensors, request: Request
) -> tuple[BeitConfig, list[str]]:
    """The config of a BEiT's file as it is, and a sentence for each thing that was looked up: 729
    distances are 27x27, those of 14x14 patches, but 9x81 too."""
    facts, where = dict(facts), request.source
    notes: list[str] = []
    if facts["dim"] % facts["heads"] or not facts["depth"]:
        raise UserError(
            f"{where}: {facts['depth']} blocks of {facts['dim']} channels and "
            f"{facts['heads']} heads are no BEiT: is the file whole?"
        )
    if request.named is not None:
        refuse_contradiction({name: facts[name] for name in SHAPE}, request.named, where)
    published = (variant.config for variant in VARIANTS.values())
    like = request.named or next(
        (c for c in published if all(getattr(c, name) == facts[name] for name in SHAPE)), None
    )
    if isinstance(like, BeitConfig):
        facts.setdefault("layer_scale", like.layer_scale)
    given = facts.pop("image_size", None)
    relations = tensors.shape(_table(tensors), 2)[0]
    (rows, columns), note = find_grid(facts["patch_size"], relations, given, request)
    notes += [note] if note and not request.square else []
    facts["image_size"] = (rows * facts["patch_size"], columns * facts["patch_size"])
    notes += note_cut_off(given if request.grid is None else None, facts["image_size"])
    return validate(BeitConfig, facts, where=where), notes


def find_grid(patch_size: int, relations: int, given: Any, request: Request) -> tuple[Grid, str]:
    """The grid whose relations these are, the surest first; a sentence where neither the file nor
    the person specifies it."""

    def cells(size: Any) -> Grid:
        height, width = pair(size, "image_size")
        return height // patch_size, width // patch_size

    def fits(grid: Grid) -> bool:
        return min(grid) > 0 and count_relations(grid) == relations

    named, where = request.named, request.source
    if request.grid is not None or given is not None:
        sure = pair(request.grid, "grid") if request.grid is not None else cells(given)
        if not fits(sure):
            raise UserError(
                f"{where}: its {relations} relations are not those of a grid of "
                f"{sure[0]}x{sure[1]}: correct image_size in its config, or grid=(rows, columns)"
            )
        return sure, ""
    side = (math.isqrt(max(relations - CLASS_RELATIONS, 0)) + 1) // 2
    square, size = (side, side), request.overrides.get("image_size")
    requested = cells(size) if size is not None else square
    if requested != square and fits(requested) and fits(square):
        raise UserError(
            f"{relations} relations may be those of a grid of {requested[0]}x{requested[1]} or of "
            f"{side}x{side}: give the one that the file has by grid=(rows, columns)"
        )
    if requested != square and fits(requested):
        return requested, ""
    if isinstance(named, BeitConfig) and fits(named.grid):
        return named.grid, ""
    if fits(square):
        return (
            square,
            f"{side}x{side}: assumed to be a square grid: the file has none",
        )
    raise UserError(
        f"{where}: it holds {relations} relations, and nothing known so far specifies its grid: "
        "give grid=(rows, columns), or image_size"
    )


def fine_tuned(config: BeitConfig) -> dict[str, Any]:
    """New classes for an encoder as pre-training leaves it mean the paper's fine-tuning."""
    pre_trained = config.relative_bias == "shared" and not config.num_classes
    return {"relative_bias": "block", "pool": "mean"} if pre_trained else {}


def resize_state(
    state: Tensors, old: BeitConfig, new: BeitConfig, method: ResizeMethod
) -> tuple[Tensors, list[str]]:
    """Patch kernels, relative bias and the norm of a BEiT."""
    state, done = resize_kernels(dict(state), old, new, method)
    if new.grid != old.grid:
        for name in (name for name in state if name.endswith("relative.table")):
            state[name] = resize_relations(state[name], old.grid, new.grid, method=method)
        sizes = f"from {old.grid[0]}x{old.grid[1]} to {new.grid[0]}x{new.grid[1]}"
        done.append(f"relative bias resized {sizes} ({method})")
    if new.relative_bias != old.relative_bias:
        if new.relative_bias == "shared":
            raise UserError(
                "each block of this BEiT has a relative bias of its own, and none is shared: leave "
                'relative_bias="block"'
            )
        table = state.pop("relative.table")
        state |= {f"blocks.{i}.relative.table": table.clone() for i in range(new.depth)}
        done.append(f"the relative bias that all blocks shared copied to each of the {new.depth}")
    if new.pool != old.pool:
        # what norms single tokens is no start for what norms their mean; the authors' code agrees
        state["norm.weight"] = torch.ones_like(state["norm.weight"])
        state["norm.bias"] = torch.zeros_like(state["norm.bias"])
        done.append("the norm starts anew, because it norms something else")
    return state, done


def resize_relations(
    table: Float[Tensor, "M h"], old: Grid, new: Grid, *, method: ResizeMethod
) -> Float[Tensor, "m h"]:
    """A table of relative bias for another grid; the relations of the class token stay.

    >>> resize_relations(torch.zeros(732, 12), (14, 14), (24, 24), method="paper").shape
    torch.Size([2212, 12])
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise UserError(f"method must be one of {known} for a relative bias, got {method!r}")
    if table.shape[0] != count_relations(old):
        raise UserError(f"{table.shape[0]} relations are not those of a grid of {old[0]}x{old[1]}")
    return table if old == new else _resize_distances(table, old, new, METHODS[method])


def transpose_table(table: Float[Tensor, "M h"], grid: Grid) -> Float[Tensor, "M h"]:
    """What transformers reads a table of this grid as: it takes the distances down for those
    across, and stretches the two into each other. On a square grid that changes nothing."""
    return _resize_distances(table, grid[::-1], grid, linear)


def _resize_distances(table: Tensor, old: Grid, new: Grid, along: Along) -> Tensor:
    distances, relations = table[:-CLASS_RELATIONS], table[-CLASS_RELATIONS:]
    return torch.cat([resize_offsets(distances, old, new, along), relations])


FAMILY = FamilyWeights(
    config_of=config_of,
    resolve_config=resolve_config,
    resize_state=resize_state,
    kernel=lambda _: KERNEL,
    resized=frozenset({"patch_size", "relative_bias"}),
    fine_tuned=fine_tuned,
)
