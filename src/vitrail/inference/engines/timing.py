"""Runners timed side by side: in turns, as many threads at once as will call them."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from jaxtyping import Float
from torch import Tensor

from vitrail.inference.engines.runner import Plan, Runner

MIN_ROUNDS, MAX_ROUNDS = 3, 15
SPIN_SECONDS = 0.25  # for which threads of OpenMP and of the engines may spin after their last work
LONG_BATCH = 1.0  # seconds


def time_in_turns(
    runners: Mapping[str, Runner],
    plan: Plan,
    images: Float[Tensor, "B C H W"],
    *,
    seconds: float,
    min_rounds: int = MIN_ROUNDS,
    expected: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    warm: bool = True,
    on_round: Callable[[int], None] = lambda number: None,
) -> dict[str, list[float]]:
    """Seconds for a batch by the `clock`, of each runner in each round; rounds end before the one
    that would exceed the time, but there are `min_rounds`. The first round, which pays for what
    happens once, does not count. With `warm` each turn begins with batches that are not timed (see
    `warm_up`); `expected` are the seconds of a batch with all callers, if known."""
    spin = spin_seconds(plan)
    times: dict[str, list[float]] = {name: [] for name in runners}
    last = dict.fromkeys(runners, expected)
    with ThreadPoolExecutor(plan.callers) as pool:

        def compute(runner: Runner) -> float:
            start = clock()
            list(pool.map(runner, [images] * plan.callers))
            return clock() - start

        began = time.perf_counter()
        for number in range(MAX_ROUNDS + 1):
            round_began = time.perf_counter()
            for name, runner in runners.items():
                if warm:
                    warm_up(partial(compute, runner), batch_seconds=last[name], spin=spin)
                last[name] = compute(runner)
                if number:
                    times[name].append(last[name] / plan.callers)
            on_round(number)
            now = time.perf_counter()
            if number >= min_rounds and (now - began) + (now - round_began) > seconds:
                break
    return times


def warm_up(compute: Callable[[], object], *, batch_seconds: float, spin: float) -> None:
    """Compute batches that are not timed until threads of what ran before do not spin any more: it
    leaves other caches behind, too. Batches of seconds need no warm caches: before these it only
    waits."""
    if batch_seconds > LONG_BATCH:
        time.sleep(spin)
        return
    ready = time.perf_counter() + spin
    while True:
        compute()
        if time.perf_counter() >= ready:
            return


def spin_seconds(plan: Plan) -> float:
    """How long threads of a runner may spin: a single one has none to wait for."""
    return SPIN_SECONDS if plan.threads * plan.callers > 1 else 0.0


def round_seconds(plan: Plan, runners: int, batch_seconds: float) -> float:
    """What a round of so many runners takes, if a batch with all callers takes this long."""
    batches = 1 if batch_seconds > LONG_BATCH else 2
    return runners * (spin_seconds(plan) + batches * batch_seconds)
