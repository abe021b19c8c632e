"""The service and its peers as processes: started, watched and ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.error import URLError
from urllib.request import urlopen

START_SECONDS = 900.0  # an engine may be built first
END_SECONDS = 60.0


class Running:
    """A server with all processes that it has started."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, log: IO[bytes]) -> None:
        self.process, self.url, self._log = process, url, log

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def tree(self) -> list[int]:
        """This process and everything below it."""
        return [self.pid, *descendants(self.pid)]

    def workers(self) -> list[int]:
        """Processes that compute batches: of those that the process which forks has started, the
        ones with threads; another one that forks has none."""
        forkers = [one for one in children(self.pid) if "fork" in command_of(one)]
        started = [worker for one in forkers for worker in children(one)]
        return [one for one in started if count_threads(one) > 1]

    def memory(self) -> int:
        """Bytes of all processes; what they share counts once."""
        return sum(memory_of(one) for one in self.tree())

    def cpu_seconds(self) -> float:
        """Time that all processes have computed, however busy the machine is with others."""
        return sum(cpu_seconds_of(one) for one in self.tree())

    def ready_workers(self) -> int:
        """Processes that can compute, as the service counts them."""
        try:
            with urlopen(f"{self.url}/metrics", timeout=5) as response:
                lines = response.read().decode().splitlines()
        except OSError:
            return 0
        rows = [line for line in lines if line.startswith("vitrail_workers{")]
        return round(sum(float(row.rpartition(" ")[2]) for row in rows))

    def is_ready(self) -> bool:
        return status_of(f"{self.url}/v2/health/ready") == 200

    def end(self, seconds: float = END_SECONDS) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


@contextmanager
def service(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Running]:
    """`vitrail serve` on a free port of this machine, ready."""
    command = [sys.executable, "-m", "vitrail", "serve", *arguments, "--port", "0", "--json"]
    with starting(command, env) as (process, log):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait(END_SECONDS)
            log.seek(0)
            raise RuntimeError(f"the service did not start: {log.read().decode()[-2000:]}")
        yield Running(process, json.loads(line)["address"], log)


@contextmanager
def peer(module: str, port: int, path: str, *arguments: str) -> Iterator[Running]:
    """A server of another library, when it responds at a path."""
    command = [sys.executable, "-m", module, "--port", str(port), *arguments]
    with starting(command, None) as (process, log):
        running = Running(process, f"http://127.0.0.1:{port}", log)
        deadline = time.monotonic() + START_SECONDS
        while status_of(running.url + path) != 200:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{module} did not start: {running.log()[-2000:]}")
            time.sleep(0.2)
        yield running


@contextmanager
def starting(
    command: Sequence[str], env: dict[str, str] | None
) -> Iterator[tuple["subprocess.Popen[str]", IO[bytes]]]:
    """A process with a group of its own, all of which ends with the block. It stays in this
    session: Linux shares processors out among sessions, so that it has the priority of this one."""
    with TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,  # Ctrl-C is this process's to pass on
            env={**os.environ, **(env or {})},
        )
        try:
            yield process, log
        finally:
            end_session(process)


def end_session(process: "subprocess.Popen[str]") -> None:
    """Politely, then not."""
    below = descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for one in below:  # of this server alone: they were its children a moment ago
        if parent_of(one) in (1, process.pid) or parent_of(one) in below:
            with_ignored(one)
    if process.stdout is not None:
        process.stdout.close()


def with_ignored(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def status_of(url: str) -> int:
    """The status of a response, 0 where there is none."""
    try:
        with urlopen(url, timeout=5) as response:
            return int(response.status)
    except URLError as error:
        return int(getattr(error, "code", 0) or 0)
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    """Processes that a process has started, whichever of its threads did so."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(below for one in found for below in descendants(one))]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def count_threads(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0


def cpu_seconds_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> int:
    """Proportional set size in bytes, where the kernel says so, else resident."""
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as one:
        port: Any = one.getsockname()[1]
    return int(port)
