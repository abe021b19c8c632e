"""Which choices of attention give what a module's output projection reads."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor

from vitrail.explanation.check.layers import BlockLayers
from vitrail.explanation.check.reference import (
    AttentionChoices,
    Layout,
    Merge,
    Scale,
    SoftmaxAxis,
    attention_steps,
)
from vitrail.explanation.check.values import Rows, match_rows

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
Found: TypeAlias = tuple[AttentionChoices, Rows] | None


def find_attention(
    block: BlockLayers, outputs: tuple[Tensor, ...], heads: int, last: AttentionChoices
) -> Found:
    """The first choices that give what the output projection reads, and the order of its rows;
    `last`: those of the block before."""
    candidates = (
        found
        for choices in attention_candidates(last, len(outputs))
        if (found := try_attention(block, outputs, heads, choices)) is not None
    )
    return next(candidates, None) or measure_scale(block, outputs, heads)


def try_attention(
    block: BlockLayers, outputs: tuple[Tensor, ...], heads: int, choices: AttentionChoices
) -> Found:
    assert block.out is not None
    try:
        merged = attention_steps(outputs, heads, choices)["merged heads"]
    except RuntimeError:  # shapes that do not fit
        return None
    rows = match_rows(block.out.data[0], merged)
    return None if rows is None else (choices, rows)


def measure_scale(block: BlockLayers, outputs: tuple[Tensor, ...], heads: int) -> Found:
    """Scores that are multiplied by a number that nobody would guess: it is measured."""
    visible = [event for event in block.attention if event.kind == "softmax"]
    if len(visible) != block.products:
        return None
    for layout in layouts_of(len(outputs)):
        ours = attention_steps(outputs, heads, replace(layout, scale="none"))["scores"]
        theirs = as_maps([event.data[0] for event in visible], ours)
        if theirs.shape != ours.shape:
            continue
        factor = float((theirs * ours).sum() / ours.square().sum())
        choices = replace(layout, scale="factor", factor=factor)
        if (found := try_attention(block, outputs, heads, choices)) is not None:
            return found
    return None


def as_maps(values: Sequence[Tensor], ours: Tensor) -> Tensor:
    """Scores as (B, h, N, N): those of heads that ran one by one, side by side."""
    if len(values) > 1:
        values = [torch.stack(tuple(values), dim=1)]
    whole = values[0]
    return whole.reshape(ours.shape) if whole.numel() == ours.numel() else whole


def layouts_of(projections: int) -> list[AttentionChoices]:
    """Every order of q, k and v, and of the axes of a projection that holds all three."""
    return [
        AttentionChoices(roles=(q, k, v), layout=layout)
        for layout in LAYOUTS[: None if projections == 1 else 2]
        for q, k, v in itertools.permutations(range(3))
    ]


def attention_candidates(last: AttentionChoices, projections: int) -> Iterator[AttentionChoices]:
    """Choices in the order in which they are likely: those of the last block, the paper's, another
    layout of q, k and v, one mistake, one mistake in another layout, two mistakes."""
    paper = AttentionChoices()
    mistakes: dict[str, tuple[Any, ...]] = {
        "scale": get_args(Scale)[1:-1],  # not "factor", which is measured
        "softmax": get_args(SoftmaxAxis)[1:],
        "split": ("unswapped",),
        "merge": get_args(Merge)[1:],
        "over": ("images",),
    }
    layouts = layouts_of(projections)
    single = [{name: value} for name, values in mistakes.items() for value in values]
    double = [a | b for a, b in itertools.combinations(single, 2) if a.keys() != b.keys()]
    yield last
    yield from layouts
    for change in single:
        yield replace(paper, **change)
    for layout in layouts[1:]:
        for change in single:
            yield replace(layout, **change)
    for change in double:
        yield replace(paper, **change)
