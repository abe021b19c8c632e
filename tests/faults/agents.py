"""torchrun as a person starts it, and how its processes are found."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
    return port


def start_agent(
    log: Path,
    arguments: list[str],
    *,
    processes: int,
    restarts: int,
    nodes: str = "1",
    port: int,
    hosts_store: bool = True,
) -> "subprocess.Popen[bytes]":
    """torchrun with restarts, in a session of its own. Of several agents one has the store by which
    they find each other; without it no other can go on."""
    conf = f"last_call_timeout=2,join_timeout=300,keep_alive_interval=2,is_host={hosts_store}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node",
        str(processes), "--max-restarts", str(restarts), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "faults", "--monitor-interval", "0.2",
        "--rdzv-conf", conf, "-m", "tests.faults.worker", *arguments,
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        )


def end(agent: "subprocess.Popen[bytes]") -> None:
    """The agent and what it started."""
    if agent.poll() is None:
        for child in descendants(agent.pid):
            _kill(child)
        _kill(agent.pid)
        agent.wait()


def descendants(pid: int) -> list[int]:
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [one for word in words for one in (int(word), *descendants(int(word)))]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_for(condition: object, *, seconds: float, agent: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert agent.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.05)
