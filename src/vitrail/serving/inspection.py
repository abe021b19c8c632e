"""Operations of the page on one model: one process, started at the first request, one at a time."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vitrail.core.errors import UserError
from vitrail.serving.frames import Buffer
from vitrail.serving.launcher import Launcher
from vitrail.serving.metrics import ModelMetrics
from vitrail.serving.paths import hide_paths
from vitrail.serving.problems import Failed, Invalid, Overloaded, Problem, Unavailable
from vitrail.serving.process import Child, StartFailed
from vitrail.serving.spec import WorkerSpec

MAX_WAITING = 32  # operations of one model
MAX_ATTEMPTS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rendered:
    """The result of an operation as it is sent."""

    media: str
    encoding: str
    content: Buffer


class BadImageGiven(Invalid):
    """An image that cannot be read: nothing is wrong with the rest of the request."""


Reply: TypeAlias = tuple[dict[str, Any], list[Buffer]]


@dataclass(eq=False)
class Operation:
    """One that waits for its turn; cancelled where nobody waits for it any more."""

    header: dict[str, Any]
    buffers: list[Buffer]
    done: "asyncio.Future[Rendered]" = field(init=False)

    def __post_init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()


class Inspection:
    """The process, and those who wait for it."""

    def __init__(
        self, launcher: Launcher, spec: WorkerSpec, hang_seconds: float, metrics: ModelMetrics
    ) -> None:
        self.launcher, self.spec, self.hang_seconds = launcher, spec, hang_seconds
        self.metrics = metrics
        self.waiting: deque[Operation] = deque()
        self.arrived = asyncio.Event()
        self.consumer: asyncio.Task[None] | None = None
        self.child: Child | None = None
        self.listener: asyncio.Task[None] | None = None
        self.reply: asyncio.Future[Reply] | None = None

    async def run(
        self, name: str, options: Mapping[str, Any], image: Buffer | None, *, gzip: bool
    ) -> Rendered:
        """Compute an operation. If it is cancelled before its turn, it is not computed."""
        operation = Operation(
            {"operation": name, "options": dict(options), "gzip": gzip},
            [] if image is None else [image],
        )
        self.check_room()
        self.waiting.append(operation)
        self.arrived.set()
        if self.consumer is None:
            self.consumer = asyncio.create_task(self.consume())
        return await operation.done

    def check_room(self) -> None:
        """Refuse one more where too many wait; those who have left are not counted."""
        if len(self.waiting) < MAX_WAITING:
            return
        self.waiting = deque(one for one in self.waiting if not one.done.done())
        if len(self.waiting) >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} operations wait already")

    async def consume(self) -> None:
        """One operation after the other."""
        while True:
            await self.arrived.wait()
            if not self.waiting:
                self.arrived.clear()
                continue
            operation = self.waiting.popleft()
            if operation.done.done():
                continue
            try:
                rendered = await self.compute(operation)
            except Exception as error:
                if not isinstance(error, Problem):
                    logger.exception("%s failed", operation.header["operation"])
                    error = Failed("the service failed: its log says why")
                if not operation.done.done():
                    operation.done.set_exception(error)
            else:
                if not operation.done.done():
                    operation.done.set_result(rendered)

    async def compute(self, operation: Operation) -> Rendered:
        """A process that dies meanwhile is replaced once."""
        for _ in range(MAX_ATTEMPTS):
            reply = await self.ask(operation)
            if reply is not None:
                return read_reply(*reply)
            self.metrics.restarts.inc()
        raise Unavailable("the process that looks into the model has died: try again")

    async def ask(self, operation: Operation) -> Reply | None:
        """The answer of the process, or None where it has died."""
        child = await self.running()
        reply = self.reply = asyncio.get_running_loop().create_future()
        child.send({"id": 0, **operation.header}, operation.buffers)
        ended = asyncio.ensure_future(child.ended.wait())
        try:
            await asyncio.wait(
                {reply, ended}, timeout=self.hang_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ended.cancel()
            self.reply = None
        if reply.done():
            return reply.result()
        if not child.ended.is_set():
            logger.error("%s takes too long: it is ended", operation.header["operation"])
            child.kill()
            await child.ended.wait()
        return None

    async def running(self) -> Child:
        """The process, started where there is none."""
        if self.child is not None and not self.child.ended.is_set():
            return self.child
        try:
            return await self.start()
        except UserError as error:
            raise Invalid(hide_paths(str(error), (self.spec.path, *self.spec.data))) from None
        except (StartFailed, OSError) as error:
            logger.error("%s", error)
            raise Unavailable("the process that looks into the model cannot be started") from None

    async def start(self) -> Child:
        """`UserError` where the model, or the data, cannot be opened."""
        child = Child(self.launcher, "operations", self.spec)
        await child.start()
        self.child = child
        self.listener = asyncio.create_task(child.listen(self.on_reply))
        return child

    def on_reply(self, header: dict[str, Any], buffers: list[Buffer]) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_result((header, buffers))

    async def close(self) -> None:
        if self.child is not None:
            await self.child.close()
        for task in (self.consumer, self.listener):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def read_reply(header: dict[str, Any], buffers: list[Buffer]) -> Rendered:
    if "problem" in header:
        raise (BadImageGiven if header.get("of") == "image" else Invalid)(header["problem"])
    if "failed" in header:
        raise Failed(header["failed"])
    return Rendered(header["media"], header["encoding"], buffers[0])
