"""One process of a model, seen from the service: messages both ways, until one of the two ends."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from vitrail.core.errors import UserError
from vitrail.serving.frames import Buffer, pack, read_async
from vitrail.serving.launcher import Kind, Launcher, Process
from vitrail.serving.spec import ModelInfo, WorkerSpec, info_of

BUFFER = 2**20  # bytes that are read ahead from a process

OnMessage: TypeAlias = Callable[[dict[str, Any], list[Buffer]], None]

logger = logging.getLogger(__name__)


class StartFailed(Exception):  # noqa: N818 - an event, not a mistake
    """A process that ended before it was ready."""


class Child:
    """One process of a model, seen from the service."""

    def __init__(self, launcher: Launcher, kind: Kind, spec: WorkerSpec) -> None:
        self.launcher, self.kind, self.spec = launcher, kind, spec
        self.process: Process | None = None
        self.info: ModelInfo | None = None
        self.ended = asyncio.Event()
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self) -> ModelInfo:
        """Until it is ready; `UserError` where its model cannot be loaded."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = await asyncio.to_thread(self.launcher.start, self.kind, theirs)
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
        """Pass on every message until the process ends, or sends what is none."""
        assert self.reader is not None
        try:
            while True:
                header, buffers = await read_async(self.reader)
                on_message(header, buffers)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except Exception:
            logger.exception("a process of %s sent what cannot be read", self.spec.name)
        finally:
            self.ended.set()
            await self.close()

    def send(self, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Without waiting: at most a few batches are ever on their way."""
        assert self.writer is not None
        with contextlib.suppress(ConnectionError, RuntimeError):  # `listen` notices that it is gone
            self.writer.writelines(pack(header, buffers))

    def kill(self) -> None:
        """At once, whatever it does; `listen` notices."""
        if self.process is not None:
            self.process.kill()

    async def close(self) -> None:
        """End it, after it has nothing more to do."""
        if self.writer is not None:
            self.writer.close()
        if self.process is not None:
            self.process.kill()
            self.process.release()
            self.process = None
