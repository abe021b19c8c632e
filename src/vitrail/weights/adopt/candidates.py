"""Candidates: what a file leaves open is tried beside the module, and what computes the same stays.

The choice goes in stages, as the computation does: what enters the first block, its attention, its
MLP, then pooling and the last norm. The first three need one block alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.models.catalogue import build_empty, shapes_of
from vitrail.models.model import Model
from vitrail.weights.adopt.propose import Proposal
from vitrail.weights.adopt.rows_file import RowsFile
from vitrail.weights.adopt.trace import (
    BLOCK_POINTS,
    Arrangement,
    Difference,
    Trace,
    first_difference,
    trace_ours,
)
from vitrail.weights.checkpoint import read_config
from vitrail.weights.dialect import Foreign
from vitrail.weights.families.family import Request
from vitrail.weights.patterns import THEIRS, Pattern, pairs_of
from vitrail.weights.rows import Tensors
from vitrail.weights.translate import check_total

# What is decided by which points; the points of a stage, counted from the first of a block.
STAGES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("pixels", "patch_order", "class_token_place", "positions", "prefix_positions"), ("input",)),
    (
        ("merge", "split", "norm_placement", "transposed", "qkv", "heads", "norm_eps"),
        ("attention", "attention output", "sum"),
    ),
    (("activation", "gated"), ("activation", "mlp output")),
)
LAST = ("pool", "final_norm")
MOST_KEPT = 32  # candidates that go on to the next stage
MOST_TRIED = 1000  # in one stage


def build(
    proposal: Proposal, foreign: Foreign, overrides: Mapping[str, Any], *, depth: int | None = None
) -> Model:
    """Our model of a proposal in float64, or its first blocks alone."""
    tensors = foreign.tensors if depth is None else first_blocks(proposal, foreign.tensors, depth)
    dialect = proposal.rows().dialect()
    request = Request(foreign.source, None, None, dict(overrides), dialect.square)
    some = replace(foreign, tensors=tensors)
    made, config, _ = read_config(some, dialect, request)
    check_total(made, shapes_of(config), tensors, where=foreign.source)
    model = build_empty(config)
    state = {name: tensor.double() for name, tensor in made.state.items()}
    model.load_state_dict(state, assign=True)
    return model.to(torch.float64).eval()


def first_blocks(proposal: Proposal, tensors: Tensors, depth: int) -> Tensors:
    """The tensors without those of later blocks."""
    later = set()
    for layer in proposal.roles.block.values():
        for name in (*layer.weight, *layer.bias):
            pattern = Pattern(name, THEIRS, pairs_of({}))
            later |= {pattern.format({"i": i}) for i in range(depth, proposal.roles.depth)}
    return {name: tensor for name, tensor in tensors.items() if name not in later}


def choose(
    proposal: Proposal,
    foreign: Foreign,
    theirs: Trace,
    images: Tensor,
    overrides: Mapping[str, Any],
) -> tuple[Proposal, Difference | None]:
    """The candidate that computes the same, or the one that does so for longest, and where it
    parts."""

    def compare(candidate: Proposal, depth: int | None) -> tuple[int, Difference | None]:
        try:
            model = build(candidate, foreign, overrides, depth=depth)
            ours = trace_ours(model, images, arrangement_of(candidate.settings))
        except UserError as error:
            return -1, Difference("file", str(error), float("inf"))
        count = proposal.roles.depth if depth is None else depth
        return first_difference(ours, theirs, count, last=depth is None)

    kept = [proposal]
    for stage, (names, own) in enumerate(STAGES):
        known = any(f"blocks.0 {point}" in theirs for point in own)
        wanted = number_of_points(theirs, stage)
        most, kept = best_of(variations(kept, names), lambda one: compare(one, 1), wanted, known)
        if stage and most < wanted:  # no later choice makes up for it
            kept = kept[:1]
    best: tuple[int, Difference | None, Proposal] | None = None
    for one in variations(kept, LAST):
        agreeing, difference = compare(one, None)
        if difference is None:
            return one, None
        if best is None or agreeing > best[0]:
            best = agreeing, difference, one
    assert best is not None
    return best[2], best[1]


def arrangement_of(settings: Mapping[str, Any]) -> Arrangement:
    """How the tokens and heads of a candidate lie."""
    return Arrangement(
        class_last=settings.get("class_token_place") == "last",
        columns_first=settings.get("patch_order") == "columns",
        heads_last=settings.get("merge") == "d h",
    )


def arrangements_in(rows: RowsFile) -> list[Arrangement]:
    """How tokens and heads lie in a model with rows that somebody has written. No row shows the
    order of patches where there is no table of positions."""
    outputs = [one for one in rows.rows if str(one.get("ours")).endswith("attention.out.weight")]
    found = Arrangement(
        class_last=any(one.get("last_first") for one in rows.rows),
        columns_first=any(one.get("columns_first") for one in rows.rows),
        heads_last=any("(d h)" in one.get("op", "").partition("->")[0] for one in outputs),
    )
    if any(one.get("ours") == "positions.table" for one in rows.rows):
        return [found]
    return [found, replace(found, columns_first=True)]


def number_of_points(theirs: Trace, stage: int) -> int:
    """How many points agree at the end of a stage, if all do."""
    upto = [point for _, own in STAGES[: stage + 1] for point in own]
    assert set(upto) <= set(BLOCK_POINTS)
    return sum(f"blocks.0 {point}" in theirs for point in upto)


def variations(kept: list[Proposal], names: tuple[str, ...]) -> Iterator[Proposal]:
    """Every combination of the values that are open, most likely first."""
    for one in kept:
        free = [name for name in names if name in one.open]
        for values in product(*(one.open[name] for name in free)):
            yield one.choose(dict(zip(free, values, strict=True)))


def best_of(
    candidates: Iterator[Proposal],
    compare: Callable[[Proposal], tuple[int, Difference | None]],
    wanted: int,
    known: bool,
) -> tuple[int, list[Proposal]]:
    """How many points the best agree at, and these; the first that agrees to the end of the stage
    is enough where its points are known and no later stage can contradict it."""
    best, kept = -2, list[Proposal]()
    for number, candidate in enumerate(candidates):
        agreeing = min(compare(candidate)[0], wanted)
        if agreeing > best:
            best, kept = agreeing, []
        if agreeing == best and len(kept) < MOST_KEPT:
            kept.append(candidate)
        # eps shows in the attention, unless the first norm comes after it
        post = candidate.settings.get("norm_placement") == "post" and "norm_eps" in candidate.open
        if (known and best == wanted and not post) or number >= MOST_TRIED:
            break
    return best, kept
