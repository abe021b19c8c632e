"""How many tokens to merge for a wanted speed-up, found by measuring the model at hand."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.inference.engines.catalogue import EAGER
from vitrail.inference.merging import check_mergeable, merge_plan
from vitrail.inference.rewrites.optimise import OutputKind, optimise_for_eager
from vitrail.models.model import Model

ROUNDS = 5  # of turns that the model and its merged version take for one ratio
SECONDS = 30.0  # after which no further r is tried
GUESSES = 3  # before the largest r is tried
MARGIN = 1.02  # above what is wanted, for a guess that was too low

Runner = Callable[[Tensor], object]


@dataclass(frozen=True)
class SpeedUp:
    """Tokens merged in every block, how many times as fast that was measured to be, and by which
    engine."""

    r: int
    ratio: float
    engine: str = EAGER

    def facts(self) -> dict[str, Any]:
        ratio = round(self.ratio, 3)
        return {"merged_tokens": self.r, "speed_up": ratio, "measured_on": self.engine}


def choose_merging(
    model: Model,
    speed_up: float,
    *,
    batch_size: int,
    output: OutputKind = "scores",
    make: Callable[[int], Runner] | None = None,
    engine: str = EAGER,
    seconds: float = SECONDS,
) -> SpeedUp:
    """The smallest r with which the model is `speed_up` times as fast on batches of this size, by
    the clock: the model and its merged version take turns.

    `make` gives what runs with r tokens merged, by an `engine` of the caller's choice; without it
    that is `optimise_for_eager(model, output=output, r=r)`. At most `seconds` are spent, give or
    take one r.

    >>> choose_merging(model, 1.0, batch_size=1).r
    0
    """
    if not 1 <= speed_up < float("inf"):
        raise UserError(f"speed_up must be 1 or more, got {speed_up:g}")
    check_mergeable(model)
    if speed_up == 1:
        return SpeedUp(0, 1.0, engine)

    def run(r: int) -> Runner:
        return optimise_for_eager(model, output=output, r=r)

    make = make or run
    unmerged = make(0)
    like = next(model.parameters())
    size = (batch_size, model.config.channels, *model.config.image_size)
    images = torch.rand(size, dtype=like.dtype, device=like.device)
    most = model.config.grid[0] * model.config.grid[1] // 2

    def measure(r: int) -> float:
        return time_ratio(unmerged, make(r), images)

    def guess(ratio: float) -> int:
        return next((r for r in range(most) if tokens_ratio(model, r) >= ratio), most)

    found = smallest_reaching(measure, speed_up, most=most, guess=guess, seconds=seconds)
    if not found.r:
        raise UserError(
            f"merging tokens does not speed this model up at batch size {batch_size}: leave out "
            f"speed_up={speed_up:g}, or use larger batches"
        )
    if found.ratio < speed_up:
        raise UserError(
            f"speed_up must be at most {found.ratio:.2f} for this model and batch size, got "
            f"{speed_up:g}: merging r={found.r} tokens in every block was the fastest"
        )
    return replace(found, engine=engine)


def tokens_ratio(model: Model, r: int) -> float:
    """By how much fewer tokens the MLPs of all blocks have: a first guess of the speed-up."""
    count = model.config.layout.tokens
    left, total = count, 0
    for merged in merge_plan(model, r):
        left -= merged
        total += left
    return model.config.depth * count / total


@torch.inference_mode()
def time_ratio(unmerged: Runner, merged: Runner, images: Tensor) -> float:
    """How many times as fast `merged` is: the shortest of some runs in turns, which other work on
    the machine disturbed least, after one run of each to warm up."""
    times: dict[Runner, list[float]] = {unmerged: [], merged: []}
    for turn in range(ROUNDS + 1):
        for runner, taken in times.items():
            began = time.perf_counter()
            runner(images)
            if images.device.type != "cpu":  # an accelerator computes after the call has returned
                torch.accelerator.synchronize(images.device)
            if turn:
                taken.append(time.perf_counter() - began)
    return min(times[unmerged]) / min(times[merged])


def smallest_reaching(
    measure: Callable[[int], float],
    wanted: float,
    *,
    most: int,
    guess: Callable[[float], int],
    seconds: float,
) -> SpeedUp:
    """The smallest r from 1 to `most` whose ratio reaches what is wanted: a first guess, then as
    much above it as it was short, `most` after three of these, then what lies between. When time is
    up it is the smallest that was measured to be enough; if `most` is not, the fastest."""
    deadline = time.monotonic() + seconds
    asked, short = wanted, 0  # of a guess, and how many were too low
    low, high, probe = 0, most + 1, max(1, min(guess(asked), most))
    fastest, enough = SpeedUp(0, 1.0), None
    while high - low > 1 and (enough is None or time.monotonic() < deadline):
        found = SpeedUp(probe, measure(probe))
        fastest = max(fastest, found, key=lambda one: one.ratio)
        if found.ratio >= wanted:
            enough, high = found, probe
            probe = high - max(1, (high - low) // 4)  # the guess is near
        else:
            low = probe
            asked, short = asked * MARGIN * wanted / found.ratio, short + 1
            probe = guess(asked) if short < GUESSES else most
            probe = probe if enough is None else (low + high) // 2
        probe = min(max(probe, low + 1), high - 1)
    return enough or fastest
