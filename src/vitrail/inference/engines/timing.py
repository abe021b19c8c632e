"""Runners timed side by side: in turns, as many threads at once as will call them."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

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
    clock: Callable[[], float] = time.perf_counter,
    warm: bool = True,
    on_round: Callable[[int], None] = lambda number: None,
) -> dict[str, list[float]]:
    """Seconds for a batch by the `clock`, of each runner in each round; rounds end when the time is
    used up. The first round, which pays for what happens once, does not count. With `warm` each
    turn begins with batches that are not timed: what ran before leaves other caches behind, and
    where there are several threads, some that still spin. Batches of seconds need no warm caches:
    before these it only waits."""
    spin = SPIN_SECONDS if plan.threads * plan.callers > 1 else 0.0
    times: dict[str, list[float]] = {name: [] for name in runners}
    last = dict.fromkeys(runners, 0.0)
    with ThreadPoolExecutor(plan.callers) as pool:

        def compute(runner: Runner) -> float:
            start = clock()
            list(pool.map(runner, [images] * plan.callers))
            return clock() - start

        began = time.perf_counter()
        for number in range(MAX_ROUNDS + 1):
            for name, runner in runners.items():
                ready = time.perf_counter() + spin
                if warm and last[name] > LONG_BATCH:
                    time.sleep(spin)
                else:
                    while warm:
                        compute(runner)
                        if time.perf_counter() >= ready:
                            break
                last[name] = compute(runner)
                if number:
                    times[name].append(last[name] / plan.callers)
            on_round(number)
            if number >= min_rounds and time.perf_counter() - began > seconds:
                break
    return times
