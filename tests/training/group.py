"""Groups of processes as torchrun would start them, without its agent: forked from one process that
has imported everything, because that takes longer than what each of them computes."""

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from vitrail.training.launcher import exit_now


def run_groups(module: str, folder: Path, *arguments: str, seconds: float = 600) -> None:
    """`python -m module folder arguments`, which forks groups. Its failure, or the time limit, ends
    all of its processes."""
    command = [sys.executable, "-m", module, str(folder), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / "main.log").open("w") as log:
        run = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        code: int | None = run.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    if code != 0:
        # who only lost its connection has nothing to tell
        texts = (log.read_text() for log in folder.glob("*.log"))
        found = sorted(texts, key=lambda text: "closed by peer" in text)
        raise AssertionError("\n".join([f"exit code {code}", *(text[-4000:] for text in found)]))


def fork_group(folder: Path, processes: int, work: Callable[[], None]) -> None:
    """`work` in so many processes; the first that fails ends all, and this one."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
    }
    logs = [folder / f"process-{rank}-of-{processes}.log" for rank in range(processes)]
    running = {start(shared, rank, log, work) for rank, log in enumerate(logs)}
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status:
            time.sleep(0.2)  # for the others to tell why
            for other in running:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


def start(shared: dict[str, str], rank: int, log: Path, work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.environ |= shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
        work()
    except BaseException:
        traceback.print_exc()
        exit_now(1)
    exit_now(0)
