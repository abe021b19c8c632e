"""Contenders of `vitrail bench`: one computes at a time, and none disturbs another."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.inference.photos import small_model
from vitrail.inference.benchmark import rounds
from vitrail.inference.benchmark.contender import Contender, time_batches
from vitrail.inference.benchmark.rounds import Process, measure_in_turns
from vitrail.inference.engine import Job, plan_of
from vitrail.inference.engines import timing
from vitrail.inference.engines.model_graph import ModelGraph

SHOUTING = """
import sys
sys.stderr.write("x" * 300_000)
sys.stdin.readline()
print('{"seconds": 1}', flush=True)
sys.stdin.readline()
"""
CLEANING = """
import signal, sys, time
def clean(*given):
    open(sys.argv[1], "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, clean)
print('{"ready": 1}', flush=True)
time.sleep(60)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"ready": 1}', flush=True)
time.sleep(60)
"""


def process_of(code: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> Process:
    monkeypatch.setattr(rounds, "COMMAND", (sys.executable, "-c", code, *words))
    return Process(Contender("m", "eager", 1, 1))


def test_a_process_that_prints_much_is_not_stopped_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    process = process_of(SHOUTING, monkeypatch)
    try:
        assert process.ask({}) == {"seconds": 1}
    finally:
        process.close()


def test_a_process_that_ends_has_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    process = process_of("import sys; sys.exit('first\\nno memory\\n')", monkeypatch)
    try:
        assert process.ask({}) == {"problem": "its process ended: no memory"}
    finally:
        process.close()


def test_a_process_removes_what_it_writes_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = process_of(CLEANING, monkeypatch, str(tmp_path / "clean"))
    process.ask({})
    process.close()
    assert (tmp_path / "clean").exists()


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "STOP_SECONDS", 0.1)
    process = process_of(DEAF, monkeypatch)
    process.ask({})
    process.close()
    assert process.child.poll() is not None


def test_a_contender_that_is_terminated_removes_its_draft() -> None:
    """As Ctrl-C does: its handler raises where it builds."""
    code = (
        "from vitrail.inference.benchmark import contender\n"
        "def build(given):\n"
        "    try:\n"
        "        print('building', flush=True)\n"
        "        import time; time.sleep(60)\n"
        "    finally:\n"
        "        print('removed', flush=True)\n"
        "contender.open_contender = build\n"
        "contender.serve()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdin is not None
    assert child.stderr is not None
    child.stdin.write('{"source": "m", "engine": "eager", "batch_size": 1, "threads": 1}\n')
    child.stdin.flush()
    while (line := child.stderr.readline()) != "building\n":
        assert line
    child.terminate()
    _, text = child.communicate(timeout=60)
    assert text.splitlines()[-1] == "removed"


def test_another_contender_is_first_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    slept: list[float] = []

    class Counted:
        def __init__(self, contender: Contender) -> None:
            self.contender = contender

        def ask(self, request: dict[str, Any]) -> dict[str, Any]:
            if "run" in request:
                asked.append(self.contender.source)
                return {"times": [0.1]}
            return {"macs": 1} if "macs" in request else {"seconds": 1.0, "memory": 1}

    @contextmanager
    def opened(contender: Contender) -> Iterator[Counted]:
        yield Counted(contender)

    def multiply_peak() -> float:
        asked.append("peak")
        return 1.0

    monkeypatch.setattr(rounds, "opened", opened)
    monkeypatch.setattr(rounds, "multiply_peak", multiply_peak)
    monkeypatch.setattr(time, "sleep", slept.append)
    contenders = [Contender(name, "eager", 1, 2) for name in "ab"]
    measured, _ = measure_in_turns(contenders, seconds=1.0, on_progress=lambda *given: None)
    assert [one.speeds for one in measured] == [[10.0] * 5] * 2
    assert "".join(asked).split("peak")[1:] == ["ab", "ba", "ab", "ba", "ab"]
    assert slept == [timing.SPIN_SECONDS] * 5  # before each of the matrix products


@pytest.mark.parametrize(("threads", "batch_seconds"), [(2, 0.0), (1, 0.0), (2, 2.0)])
def test_batches_are_timed_once_nobody_else_spins(
    threads: int, batch_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before are not timed; where a batch takes seconds, it only waits."""
    monkeypatch.setattr(timing, "SPIN_SECONDS", 0.2)
    calls: list[float] = []

    def run(images: Tensor) -> Any:
        calls.append(time.perf_counter() - began)
        time.sleep(0.01)

    model = small_model()
    graph = ModelGraph(model, plan_of(model, Job(output="scores"), threads=threads))
    began = time.perf_counter()
    times = time_batches(graph, run, 0.0, batch_seconds=batch_seconds)
    assert len(times) == 1
    assert (calls[-1] >= 0.2) == (threads > 1)
    assert (len(calls) == 1) == (batch_seconds > 1)


def test_a_contender_merges_as_many_tokens_as_each_block_does() -> None:
    assert Contender("m", "eager", 1, 1, merged=(4, 4, 3)).most_merged == 4
    assert Contender("m", "eager", 1, 1).most_merged == 0
