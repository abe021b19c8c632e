"""`vitrail serve` as a command: it says where it listens, answers, and ends on a signal."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # every start imports torch


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    line = [
        sys.executable,
        "-m",
        "vitrail",
        "serve",
        *arguments,
        "--port",
        "0",
        "--engine",
        "eager",
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["address"])


def children_of(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found += [int(path.parent.name), *children_of(int(path.parent.name))]
    return found


def ended(pids: list[int], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_all_its_processes(
    checkpoints: Path, sent: signal.Signals, code: int
) -> None:
    with command(str(checkpoints / "pets"), "--json") as process:
        with urllib.request.urlopen(f"{address_of(process)}/v1/models", timeout=30) as reply:
            assert json.load(reply)["models"][0]["name"] == "pets"
        children = children_of(process.pid)
        assert len(children) == 2  # the one that forks, and the one that computes
        process.send_signal(sent)
        assert process.wait(30) == code
        assert ended(children)


def test_its_processes_end_with_it_when_it_is_killed(checkpoints: Path) -> None:
    with command(str(checkpoints / "pets"), "--json") as process:
        address_of(process)
        children = children_of(process.pid)
        process.kill()
        assert ended(children)


def test_a_model_that_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    with command(str(tmp_path / "nothing")) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "nothing: no such file" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_the_process_that_forks_is_replaced(checkpoints: Path) -> None:
    with command(str(checkpoints / "pets"), "--json") as process:
        address = address_of(process)
        for child in children_of(process.pid):
            os.kill(child, signal.SIGKILL)
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{address}/healthz", timeout=5) as reply:
                    assert reply.status == 200
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.1)
