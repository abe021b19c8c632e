"""Start a group of processes as torchrun would, without its agent."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def run_group(folder: Path, processes: int, *arguments: str, seconds: float = 600) -> None:
    """`python -m tests.train.many folder arguments` in so many processes. The first that fails, or
    the time limit, ends all."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.train.many", str(folder), *arguments]
    logs = [folder / f"process-{rank}.log" for rank in range(processes)]
    running = [start(command, shared, rank, log) for rank, log in enumerate(logs)]
    deadline = time.monotonic() + seconds
    try:
        while any(process.poll() is None for process in running):
            if any(process.returncode for process in running) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        time.sleep(0.2 if any(process.returncode for process in running) else 0)
    finally:
        codes = [process.poll() for process in running]
        for process in running:
            process.kill()
            process.wait()
    if any(code != 0 for code in codes):
        texts = sorted((log.read_text() for log in logs), key=lambda text: "closed by peer" in text)
        raise AssertionError("\n".join([f"exit codes {codes}", *(text[-4000:] for text in texts)]))


def start(
    command: list[str], shared: dict[str, str], rank: int, log: Path
) -> subprocess.Popen[bytes]:
    mine = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    with log.open("w") as file:
        return subprocess.Popen(
            command, env=os.environ | shared | mine, stdout=subprocess.DEVNULL, stderr=file
        )
