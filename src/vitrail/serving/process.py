"""The processes of a service: how they are started, and a connection to each.

On Linux one process imports torch and everything else once, and forks whenever one is wanted, so
that a process that died is replaced in the time that its model takes to load. It is single-threaded
and has computed nothing, which is what makes forking safe. Elsewhere each process is started anew.

    python -m vitrail.serving.process fork FD      the process that forks
    python -m vitrail.serving.process run FD       one process
"""

import asyncio
import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from threading import Lock
from typing import Any, Literal, TypeAlias

from vitrail.core.errors import UserError
from vitrail.serving.frames import (
    Buffer,
    pack,
    read_async,
    read_blocking,
)
from vitrail.serving.spec import ModelInfo, WorkerSpec, info_of

Kind: TypeAlias = Literal["batches", "operations"]

BUFFER = 2**20  # bytes that are read ahead from a process
PID = 8  # bytes of a process id
LATE_IMPORTS = ("torch._dynamo", "matplotlib.colors")  # of operations, when they first run
SECONDS_TO_REST = 0.5  # without a request, after which the process that forks imports the rest
SECONDS_TO_END = 5.0  # for a process whose connection was closed, before it is killed


class StartFailed(Exception):  # noqa: N818 - an event, not a mistake
    """A process that ended before it was ready."""


class Launcher:
    """Starts processes. Several threads may call it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.forker: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.forks = sys.platform == "linux"

    def start(self, channel: socket.socket) -> "int | subprocess.Popen[bytes]":
        """A process at the other end of a connection: its id, or itself where it is our child."""
        if not self.forks:
            return start_python("run", channel)
        with self.lock:
            for last in (False, True):
                try:
                    return self.fork(channel)
                except (OSError, EOFError):  # it has died: once more with a new one
                    self.close()
                    if last:
                        raise
        raise AssertionError("unreachable")

    def fork(self, channel: socket.socket) -> int:
        if self.control is None:
            self.control, theirs = socket.socketpair()
            with theirs:
                self.forker = start_python("fork", theirs)
        socket.send_fds(self.control, [b"f"], [channel.fileno()])
        answer = self.control.recv(PID)
        if len(answer) < PID:
            raise EOFError("the process that forks has ended")
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """End the process that forks; those that it started end with their connections."""
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.forker is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.forker.wait(SECONDS_TO_END)
            self.forker.kill()
            self.forker.wait()
            self.forker = None


def start_python(role: str, channel: socket.socket) -> subprocess.Popen[bytes]:
    """This module as a program; standard output and error are those of the service."""
    command = [sys.executable, "-m", "vitrail.serving.process", role, str(channel.fileno())]
    return subprocess.Popen(
        command, pass_fds=[channel.fileno()], stdin=subprocess.DEVNULL, close_fds=True
    )


OnMessage: TypeAlias = Callable[[dict[str, Any], list[Buffer]], None]


class Child:
    """One process of a model, seen from the service."""

    def __init__(self, launcher: Launcher, kind: Kind, spec: WorkerSpec) -> None:
        self.launcher, self.kind, self.spec = launcher, kind, spec
        self.process: int | subprocess.Popen[bytes] | None = None
        self.info: ModelInfo | None = None
        self.ended = asyncio.Event()
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process if isinstance(self.process, int) else self.process.pid

    async def start(self) -> ModelInfo:
        """Until it is ready; `UserError` where its model cannot be loaded."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = await asyncio.to_thread(self.launcher.start, theirs)
            self.reader, self.writer = await asyncio.open_connection(sock=ours, limit=BUFFER)
        except BaseException:
            ours.close()
            raise
        self.send({"kind": self.kind, "spec": asdict(self.spec)})
        try:
            header, _ = await read_async(self.reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.close()
            raise StartFailed(f"a process of {self.spec.name} ended while it loaded") from error
        except asyncio.CancelledError:
            self.kill()
            raise
        if "failed" in header:
            await self.close()
            raise UserError(header["failed"])
        self.info = info_of(header["ready"])
        return self.info

    async def listen(self, on_message: OnMessage) -> None:
        """Pass on every message until the process ends."""
        assert self.reader is not None
        try:
            while True:
                header, buffers = await read_async(self.reader)
                on_message(header, buffers)
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass
        finally:
            self.ended.set()
            self.kill()  # it may have sent nonsense, or only closed its connection
            if self.writer is not None:
                self.writer.close()

    def send(self, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Without waiting: at most a few batches are ever on their way."""
        assert self.writer is not None
        with contextlib.suppress(ConnectionError, RuntimeError):  # `listen` notices that it is gone
            self.writer.writelines(pack(header, buffers))

    def kill(self) -> None:
        """At once."""
        if isinstance(self.process, subprocess.Popen):
            self.process.kill()
            self.process.wait()
        elif self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
        self.process = None

    async def close(self) -> None:
        """End it, after it has nothing more to do."""
        if self.writer is not None:
            self.writer.close()
        self.kill()


def run_process(channel: socket.socket) -> None:
    """What the first message says."""
    try:
        header, _ = read_blocking(channel)
    except (EOFError, OSError):
        return
    spec = WorkerSpec(**{**header["spec"], "data": tuple(header["spec"]["data"])})
    if header["kind"] == "batches":
        from vitrail.serving.worker import run_worker

        run_worker(channel, spec)
    else:
        from vitrail.serving.inspector import run_inspector

        run_inspector(channel, spec)


def fork_on_demand(control: socket.socket) -> None:
    """Fork for every connection that comes, until the service is gone."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for exit codes: no zombies
    import vitrail.serving.worker  # noqa: F401 - so that no fork has to

    gc.freeze()  # what is there is shared, and stays so
    has_operations = False
    while True:
        if not has_operations and not select.select([control], [], [], SECONDS_TO_REST)[0]:
            import_operations()  # while nobody waits
            has_operations = True
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            run_and_exit(socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])
        control.sendall(child.to_bytes(PID, "little"))


def import_operations() -> None:
    """What a process for inspection needs, which takes longer to import than to fork."""
    import vitrail.serving.inspector  # noqa: F401 - so that no fork has to
    from vitrail.serving.operations import OPERATIONS

    for operation in OPERATIONS.values():
        operation.function()
    for name in LATE_IMPORTS:
        import_module(name)
    gc.freeze()


def run_and_exit(channel: socket.socket) -> None:
    """Whatever happens, a fork never returns to the loop of its parent."""
    code = 1
    try:
        run_process(channel)
        code = 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    role, descriptor = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor))
    if role == "fork":
        fork_on_demand(channel)
    else:
        run_process(channel)


if __name__ == "__main__":
    main()
