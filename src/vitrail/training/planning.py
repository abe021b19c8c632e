"""Memory and communication of a training step on many GPUs, from first principles.

All of it is modelled: bytes are counted from shapes, nothing is run. What is counted for each GPU:

- weights, gradients, optimiser and average in float32: whole (ddp), or the share of one of the
  processes that have a copy together (fsdp, hsdp), which is cut into rows of each parameter;
- with ddp and bfloat16 the copies of weights that autocast keeps for the backward pass;
- with fsdp the blocks that are gathered at a time, and the gradients of one block before they are
  summed; ddp exchanges gradients where they are computed;
- the matrices that Muon orthogonalises at a time; of what it does not train AdamW's numbers;
- activations: what autograd keeps of the images of a part, by `models/activations.py`, in the GPU
  that has most of them;
- RESERVED for the CUDA context, NCCL and what the allocator loses.

Communication is what one GPU sends in a step, and what leaves a machine: ring all-reduce
2 (n - 1) / n, all-gather and reduce-scatter (n - 1) / n times the bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from math import isqrt
from typing import Any, Literal

import numpy as np

from vitrail.data.sampler import ranks_of
from vitrail.models.activations import ModelCost, Parameters
from vitrail.models.catalogue import build_meta
from vitrail.models.config import Config
from vitrail.training.muon import MAX_NUMBERS
from vitrail.training.optimiser import muon_matrices
from vitrail.training.parallel import Kind

GB = 10**9
RESERVED = 2 * GB
USABLE = 0.92  # of the memory: fragments of the allocator, and what a plan does not know
RECOMPUTE = ("none", "selective", "every block")
FEW_IMAGES = 8  # fewer at a time leave a GPU waiting for memory
# What "selective" keeps of a block: matrix products and attention, not norms and activations.
SELECTIVE_SHARE = 0.6


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is planned for: GPUs and how many of them a machine has, and what a step keeps; with
    Muon the matrices that it trains."""

    gpus: int
    gpus_per_machine: int
    batch_size: int
    half: bool  # bfloat16 autocast
    optimiser: Literal["adamw", "sgd", "muon"] = "adamw"
    matrices: Parameters | None = None
    ema: bool = True
    prefetch: int = 1

    def __post_init__(self) -> None:
        assert (self.optimiser == "muon") == (self.matrices is not None), self.optimiser


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one GPU."""

    weights: int
    copies: int  # of weights in bfloat16, by autocast
    gradients: int
    optimiser: int
    average: int
    communication: int  # gathered blocks and their gradients, or Muon's matrices if they are more
    activations: int
    reserved: int = RESERVED

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to train, and what it needs: memory of a GPU, bytes that a GPU sends in a step, and
    bytes that leave a machine."""

    parallel: Kind
    share: int  # GPUs that have one copy of the model together
    recompute: str
    accumulate: int
    images: int  # of the GPU that has most, at a time
    memory: Memory
    sent_within: int
    sent_between: int

    def fits(self, memory: int) -> bool:
        return self.memory.total <= USABLE * memory

    def facts(self) -> dict[str, Any]:
        return asdict(self) | {"memory": asdict(self.memory) | {"total": self.memory.total}}


def list_strategies(cost: ModelCost, setting: Setting, memory: int) -> list[Strategy]:
    """For each kind of parallelism the least that fits: recomputing nothing if it can, and as few
    parts as it can; of a kind that never fits, its smallest."""
    found = []
    for kind, share in kinds(setting):
        tried = [
            make_strategy(cost, setting, kind, share, recompute, parts)
            for recompute in RECOMPUTE
            for parts in part_counts(setting)
        ]
        fitting = [one for one in tried if one.fits(memory)]
        found.append(fitting[0] if fitting else min(tried, key=lambda one: one.memory.total))
    return found


def kinds(setting: Setting) -> list[tuple[Kind, int]]:
    """Kinds of parallelism, and how many GPUs share a copy of the model."""
    gpus, machine = setting.gpus, setting.gpus_per_machine
    found: list[tuple[Kind, int]] = [("ddp", 1)]
    if 1 < machine < gpus and gpus % machine == 0:
        found.append(("hsdp", machine))
    if gpus > 1:
        found.append(("fsdp", gpus))
    return found


def part_counts(setting: Setting) -> list[int]:
    """In how many equal parts a batch may be computed: until a GPU has one image at a time."""
    batch = setting.batch_size
    small = [count for count in range(1, isqrt(batch) + 1) if batch % count == 0]
    most = max(batch // setting.gpus, 1)
    return [n for n in sorted({*small, *(batch // count for count in small)}) if n <= most]


@cache
def most_images(batch_size: int, gpus: int, parts: int) -> int:
    """Images of one part that the GPU with most of them has, as a run shares them.

    >>> most_images(4096, 64, 2), most_images(4096, 3, 1)
    (32, 1366)
    """
    part = np.arange(batch_size) * parts // batch_size
    return int(np.bincount(part * gpus + ranks_of(batch_size, world=gpus)).max())


def images_of_gpus(batch_size: int, gpus: int) -> tuple[int, int]:
    """The fewest and the most images of a batch that a GPU has.

    >>> images_of_gpus(4096, 3)
    (1364, 1366)
    """
    counts = np.bincount(ranks_of(batch_size, world=gpus), minlength=gpus)
    return int(counts.min()), int(counts.max())


def matrices_of_muon(config: Config) -> Parameters:
    """The parameters of a model that Muon trains."""
    model = build_meta(config)
    names = muon_matrices(model)
    return Parameters.of(p for name, p in model.named_parameters() if name in names)


def recommend(strategies: list[Strategy], memory: int) -> Strategy | None:
    """The one that fits, computes no fewer than `FEW_IMAGES` at a time if any does, and recomputes
    least, then sends least between machines, then sends least; None if nothing fits."""
    fitting = [one for one in strategies if one.fits(memory)]
    enough = min(FEW_IMAGES, max((one.images for one in fitting), default=1))
    return min(
        fitting,
        key=lambda one: (
            one.images < enough,
            RECOMPUTE.index(one.recompute),
            one.sent_between,
            one.sent_within,
        ),
        default=None,
    )


def make_strategy(
    cost: ModelCost, setting: Setting, kind: Kind, share: int, recompute: str, parts: int
) -> Strategy:
    images = most_images(setting.batch_size, setting.gpus, parts)
    within, between = sent(cost, setting, kind, share, parts)
    return Strategy(
        parallel=kind,
        share=share,
        recompute=recompute,
        accumulate=parts,
        images=images,
        memory=memory_of(cost, setting, kind, share, activations(cost, recompute) * images),
        sent_within=within,
        sent_between=between,
    )


def memory_of(cost: ModelCost, setting: Setting, kind: Kind, share: int, kept: int) -> Memory:
    own = cost.parameters.share(share)  # numbers of the model in this GPU
    numbers = {"adamw": 2, "sgd": 1, "muon": 2}[setting.optimiser] * own
    if setting.matrices is not None:
        numbers -= setting.matrices.share(share)  # a momentum alone
    width = 2 if setting.half else 4
    exchanged, copies = 0, 0
    if kind == "ddp":
        # gradients are computed in the buckets that are exchanged; autocast casts every weight
        copies = width * cost.params if setting.half else 0
    else:
        # all shares are as large as the largest, so what is gathered has rows of padding
        largest = share * max(block.parameters.share(share) for block in cost.blocks)
        outside = share * cost.outside_share(share)
        # gathered blocks and the rest of the model, gradients of one block as they are computed
        # and in float32 as they are summed
        gathered = width * ((1 + setting.prefetch) * largest + outside)
        exchanged = gathered + (width + 4) * largest
    return Memory(
        weights=4 * own,
        copies=copies,
        gradients=4 * own,
        optimiser=4 * numbers,
        average=4 * own if setting.ema else 0,
        # Muon has matrices whole after the backward pass, when no block is gathered: stacked, and
        # once more while they are computed
        communication=max(exchanged, 2 * 4 * min(gathered_by_muon(setting), MAX_NUMBERS)),
        activations=kept,
    )


def gathered_by_muon(setting: Setting) -> int:
    """Numbers of the matrices that Muon needs whole."""
    return 0 if setting.matrices is None else setting.matrices.share(1)


def activations(cost: ModelCost, recompute: str) -> int:
    """Bytes kept of one image at the moment when most is kept."""
    if recompute == "none":
        return cost.kept
    entering = sum(block.entering for block in cost.blocks)
    largest = max(block.kept for block in cost.blocks)
    if recompute == "selective":
        kept = sum(round(SELECTIVE_SHARE * block.kept) for block in cost.blocks)
        return cost.outside + kept + round((1 - SELECTIVE_SHARE) * largest)
    return cost.outside + entering + largest


def sent(cost: ModelCost, setting: Setting, kind: Kind, share: int, parts: int) -> tuple[int, int]:
    """Bytes that one GPU sends in a step, and bytes that leave a machine. A ring over machines
    leaves each of them once, so that its link carries what one GPU sends. Where GPUs add up their
    shares with those of other machines, each has a ring of its own, and all use that link."""
    gpus, machine = setting.gpus, min(setting.gpus_per_machine, setting.gpus)
    width = 2 if setting.half else 4
    if gpus == 1:
        return 0, 0
    if kind == "ddp":
        whole = round(2 * 4 * cost.params * (gpus - 1) / gpus)
        return (whole, 0) if machine == gpus else (whole, whole)
    # for every part: weights forward and backward, and their gradients, or each GPU would keep
    # whole gradients from part to part; Muon's matrices once
    gathered = 2 * width * cost.params * parts + 4 * gathered_by_muon(setting)
    scattered = 4 * cost.params * parts
    inside = round((gathered + scattered) * (share - 1) / share)
    copies = gpus // share
    summed = machine * round(2 * 4 * parts * (cost.params / share) * (copies - 1) / copies)
    return inside, summed if share <= machine else inside + summed
