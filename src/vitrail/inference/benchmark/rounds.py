"""Contenders measured in turns: one computes at a time, round after round."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.inference.benchmark.contender import Contender
from vitrail.inference.engines.catalogue import EAGER
from vitrail.inference.engines.timing import SPIN_SECONDS
from vitrail.layers.linear import multiply

ROUNDS = 5
STOP_SECONDS = 5.0  # for a process to remove what it is writing
PEAK_SIDE, PEAK_TRIES = 1024, 4  # of square matrices
COMMAND = (sys.executable, "-m", "vitrail.inference.benchmark.contender")

OnProgress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Measured:
    """What was measured of a contender, or the `problem` that prevented it. `speeds` are images per
    second, one a round; `times` seconds of every batch; `int8` what quantisation cost; `new_entry`
    the key of what was built for it in the cache of engines, if something was."""

    contender: Contender
    build_seconds: float = 0.0
    load_seconds: float = 0.0
    peak_memory: int = 0
    macs: int = 0
    int8: Mapping[str, Any] | None = None
    speeds: Sequence[float] = ()
    times: Sequence[float] = field(default=(), repr=False)
    new_entry: str | None = None
    problem: str | None = None

    def percentile(self, share: float) -> float:
        """Of the seconds of a batch."""
        return float(np.percentile(self.times, share))


class Process:
    """A contender's process: a request is a line of JSON, and so is its reply."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.errors = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self.child = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,  # a pipe that nobody reads would stop it once it is full
                text=True,
                encoding="utf-8",
            )
        except BaseException:  # Ctrl-C while it starts
            self.errors.close()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            self.child.stdin.write(json.dumps(request) + "\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.child.stdout.readline()
        if not line:
            return {"problem": f"its process ended: {self.last_line()}"}
        reply: dict[str, Any] = json.loads(line)
        return reply

    def last_line(self) -> str:
        self.child.wait()
        self.errors.seek(0)
        lines = [line for line in self.errors if line.strip()]
        return lines[-1].rstrip("\n") if lines else f"exit code {self.child.returncode}"

    def close(self) -> None:
        """End it, so that it removes what it is writing; one that does not end is killed."""
        with self.errors:
            self.child.terminate()
            try:
                self.child.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.communicate()


@contextmanager
def opened(contender: Contender) -> Iterator[Process]:
    process = Process(contender)
    try:
        yield process
    finally:
        process.close()


def measure_in_turns(
    contenders: Sequence[Contender], *, seconds: float, on_progress: OnProgress
) -> tuple[list[Measured], list[float]]:
    """Every contender, and the multiply-adds per second of matrix products in each round; each
    contender runs for so many seconds in all."""
    with ExitStack() as stack:
        running: dict[Contender, Process] = {}
        found: dict[Contender, dict[str, Any]] = {}
        for number, contender in enumerate(contenders):
            on_progress("opening models", number, len(contenders))
            built = build(contender)
            process = stack.enter_context(opened(contender))
            reply = built if "problem" in built else process.ask(asdict(contender))
            found[contender] = {"speeds": [], "times": [], "built": built, **reply}
            if "problem" not in reply:
                running[contender] = process
        on_progress("opening models", len(contenders), len(contenders))
        peaks = []
        for number in range(ROUNDS):
            time.sleep(SPIN_SECONDS)  # threads of the last contender may spin as long
            peaks.append(multiply_peak())
            for contender in rotated(list(running), number):
                reply = running[contender].ask({"run": seconds / ROUNDS})
                if "problem" in reply:
                    found[contender]["problem"] = reply["problem"]
                    del running[contender]
                    continue
                times = reply["times"]
                found[contender]["times"] += times
                found[contender]["speeds"].append(contender.batch_size * len(times) / sum(times))
            on_progress("measuring", number + 1, ROUNDS)
        for contender, process in running.items():
            found[contender] |= process.ask({"macs": 1})
    return [to_measured(contender, facts) for contender, facts in found.items()], peaks


def rotated(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """So that another one runs first in each round, after the matrix products."""
    first = number % max(len(contenders), 1)
    return [*contenders[first:], *contenders[:first]]


def build(contender: Contender) -> dict[str, Any]:
    """Build what an engine needs in a process of its own, so that the memory of building is none
    of running; what is in the cache is not built again."""
    if contender.engine == EAGER:
        return {}
    with opened(contender) as process:
        return process.ask(asdict(contender))


def to_measured(contender: Contender, facts: dict[str, Any]) -> Measured:
    built = facts.get("built") or {}
    new_entry = facts.get("new_entry") or built.get("new_entry")
    if "problem" in facts:
        return Measured(contender, problem=facts["problem"], new_entry=new_entry)
    load = facts["seconds"]
    return Measured(
        contender,
        build_seconds=max(built.get("seconds", 0.0) - load, 0.0),
        load_seconds=load,
        peak_memory=facts["memory"],
        macs=facts["macs"],
        int8=facts.get("int8"),
        speeds=facts["speeds"],
        times=facts["times"],
        new_entry=new_entry,
    )


@torch.inference_mode()
def multiply_peak() -> float:
    """Multiply-adds per second of a matrix product, the best of a few by PyTorch's libraries."""
    one, other = torch.randn(2, PEAK_SIDE, PEAK_SIDE).unbind()
    products: list[Callable[[], Tensor]] = [lambda: torch.mm(one, other)]
    if torch.backends.mkldnn.is_available():
        products.append(lambda: multiply(one, other, None))
    taken = []
    for product in products * PEAK_TRIES:
        start = time.perf_counter()
        product()
        taken.append(time.perf_counter() - start)
    return PEAK_SIDE**3 / min(taken)


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile.

    >>> middle([1, 2, 3, 4, 5])
    (2.0, 3.0, 4.0)
    """
    low, high = np.percentile(values, [25, 75])
    return float(low), float(median(values)), float(high)
