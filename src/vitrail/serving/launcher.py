"""How processes of a service are started: by forking one that has imported what they need.

On Linux one process imports torch once, and forks whenever a process for batches is wanted, so that
one that died is replaced in the time that its model takes to load. A fork of it, made when somebody
first looks inside a model, imports the operations too, and forks in its turn. Both are
single-threaded and have computed nothing, which is what makes forking safe. Elsewhere each process
is started anew.

    python -m vitrail.serving.launcher fork FD      the process that forks
    python -m vitrail.serving.launcher run FD       one process
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
from importlib import import_module
from threading import Lock
from typing import Literal, TypeAlias

from vitrail.serving.frames import read_blocking
from vitrail.serving.spec import WorkerSpec

Kind: TypeAlias = Literal["batches", "operations"]

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PROCESS, FORKER = b"p", b"f"  # what the process that forks is asked for
PID = 8  # bytes of a process id
LATE_IMPORTS = ("torch._dynamo", "matplotlib.colors")  # of operations, when they first run
SECONDS_TO_END = 5.0  # for a process whose connection was closed, before it is killed


class Process:
    """One that can be killed, from any thread, and never another that has got its number since."""

    def __init__(self, started: "int | subprocess.Popen[bytes]") -> None:
        self.lock = Lock()  # a descriptor that was closed may be another file by now
        self.popen = None if isinstance(started, int) else started
        self.pid = started if isinstance(started, int) else started.pid
        self.descriptor: int | None = None
        if isinstance(started, int):  # it may have ended already: then there is nothing to kill
            with contextlib.suppress(OSError):
                self.descriptor = os.pidfd_open(started)

    def kill(self) -> None:
        with self.lock, contextlib.suppress(ProcessLookupError):
            if self.popen is not None:
                self.popen.kill()
            elif self.descriptor is not None:
                signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def release(self) -> None:
        """What the system keeps for it."""
        if self.popen is not None:
            self.popen.wait()
        with self.lock:
            if self.descriptor is not None:
                os.close(self.descriptor)
                self.descriptor = None


class Launcher:
    """Starts processes. Several threads may call it; those for batches do not wait for others."""

    def __init__(self) -> None:
        self.locks: dict[Kind, Lock] = {"batches": Lock(), "operations": Lock()}
        self.controls: dict[Kind, socket.socket] = {}
        self.forker: subprocess.Popen[bytes] | None = None
        self.forks = sys.platform == "linux"

    def start(self, kind: Kind, channel: socket.socket) -> Process:
        """A process at the other end of a connection, which tells it what to do."""
        if not self.forks:
            return Process(start_python("run", channel))
        return Process(self.ask(kind, PROCESS, channel))

    def warm_up(self) -> None:
        """Import what operations need before somebody waits for one."""
        if self.forks:
            with self.locks["operations"]:
                self.control("operations")

    def ask(self, kind: Kind, what: bytes, channel: socket.socket) -> int:
        """The number of a fork; where the process that forks has died, of another one."""
        with self.locks[kind]:
            for attempt in range(2):
                try:
                    control = self.control(kind)
                    socket.send_fds(control, [what], [channel.fileno()])
                    answer = control.recv(PID)
                    if len(answer) < PID:
                        raise EOFError("the process that forks has ended")
                    return int.from_bytes(answer, "little")
                except (OSError, EOFError):
                    self.end(kind)
                    if attempt:
                        raise
        raise AssertionError("either returned or raised")

    def control(self, kind: Kind) -> socket.socket:
        """The connection to the process that forks; its lock is held."""
        if kind not in self.controls:
            ours, theirs = socket.socketpair()
            with theirs:
                if kind == "batches":
                    self.forker = start_python("fork", theirs)
                else:
                    self.ask("batches", FORKER, theirs)
            self.controls[kind] = ours
        return self.controls[kind]

    def end(self, kind: Kind) -> None:
        """Forget a process that forks, which ends with its connection."""
        if (control := self.controls.pop(kind, None)) is not None:
            control.close()
        if kind == "batches" and self.forker is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.forker.wait(SECONDS_TO_END)
            self.forker.kill()
            self.forker.wait()
            self.forker = None

    def close(self) -> None:
        """End the processes that fork; those that they started end with their connections."""
        for kind in ("operations", "batches"):
            self.end(kind)


def start_python(role: str, channel: socket.socket) -> subprocess.Popen[bytes]:
    """This module as a program; standard output and error are those of the service."""
    command = [sys.executable, "-m", "vitrail.serving.launcher", role, str(channel.fileno())]
    return subprocess.Popen(command, pass_fds=[channel.fileno()], stdin=subprocess.DEVNULL)


# In the processes


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


def fork_on_demand(control: socket.socket, *, operations: bool) -> None:
    """Fork for every connection that comes, until the service is gone."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for exit codes: no zombies
    import vitrail.serving.worker  # noqa: F401 - so that no fork has to

    if operations:
        import_operations()
    gc.freeze()  # what is there is shared, and stays so
    while True:
        what, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not what:
            return
        child = os.fork()
        if child == 0:
            control.close()
            run_and_exit(what, socket.socket(fileno=descriptors[0]))
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


def run_and_exit(what: bytes, channel: socket.socket) -> None:
    """Whatever happens, a fork never returns to the loop of its parent."""
    code = 1
    try:
        if what == FORKER:
            fork_on_demand(channel, operations=True)
        else:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run_process(channel)
        code = 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    logging.basicConfig(format=LOG_FORMAT, level=logging.WARNING)
    role, descriptor = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor))
    if role == "fork":
        fork_on_demand(channel, operations=False)
    else:
        run_process(channel)


if __name__ == "__main__":
    main()
