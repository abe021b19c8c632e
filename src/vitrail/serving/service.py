"""A service: its settings, models, limits and counters, and what every route needs of them."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from starlette.requests import Request

from vitrail.serving.batcher import Answer, Task
from vitrail.serving.bodies import Budget, Given
from vitrail.serving.errors import ClientLeft
from vitrail.serving.fetching import Fetcher
from vitrail.serving.inspection import Rendered
from vitrail.serving.keys import Keys, read_keys
from vitrail.serving.launcher import Launcher
from vitrail.serving.metrics import Metrics
from vitrail.serving.pool import Pool
from vitrail.serving.problems import Invalid, OutOfTime
from vitrail.serving.registry import Registry
from vitrail.serving.settings import Settings
from vitrail.serving.spec import Want

LARGE_IMAGE = 2**20  # bytes: hashed in a thread
TIMEOUT_HEADER = "x-timeout"
LATE = "no answer before the deadline: try again later"


class Service:
    """Everything that lives as long as the service does."""

    def __init__(self, settings: Settings, launcher: Launcher | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.registry = Registry(settings, self.metrics, launcher)
        self.budget = Budget(settings.limits.memory_bytes)
        self.fetcher = Fetcher(settings.allow_host, settings.limits.body_bytes)
        self.keys: Keys | None = None
        if settings.api_key_file is not None:
            self.keys = read_keys(settings.api_key_file)
        self.draining = False
        self.warming: asyncio.Task[None] | None = None
        self.count_connections: Callable[[], int] = lambda: 0  # the server knows

    def warm_up(self) -> None:
        """Import what operations need, once, before somebody waits for one."""
        if self.warming is None:
            self.warming = asyncio.create_task(asyncio.to_thread(self.registry.launcher.warm_up))

    @property
    def is_ready(self) -> bool:
        return self.registry.is_ready and not self.draining

    def deadline(self, request: Request) -> float:
        """When the answer is due: after the service's timeout, or an earlier one of the client."""
        seconds = self.settings.timeout
        given = request.headers.get(TIMEOUT_HEADER)
        if given is not None:
            try:
                limit = float(given)
            except ValueError:
                limit = -1.0
            if not 0 < limit < 1e9:
                raise Invalid(f"{TIMEOUT_HEADER} must be seconds above 0, got {given!r}")
            seconds = min(seconds, limit)
        return time.monotonic() + seconds

    async def compute(
        self, request: Request, pool: Pool, want: Want, images: Sequence[Given], deadline: float
    ) -> list[Answer]:
        """What is wanted of each image, in order; text is the problem that prevented it."""
        opened = await self.open_images(images, deadline)
        tasks: list[Task | None] = []
        for one in opened:
            if one.problem is not None:
                tasks.append(None)
                continue
            key = await digest_of(one.data, want)
            tasks.append(Task(want, one.data, False, deadline, key))
        answers = iter(
            await self.wait(request, pool, [one for one in tasks if one is not None], deadline)
        )
        return [
            (given.problem or "") if task is None else next(answers)
            for given, task in zip(opened, tasks, strict=True)
        ]

    async def open_images(self, images: Sequence[Given], deadline: float) -> Sequence[Given]:
        """With the bytes of those that were given by address."""
        if all(one.address is None for one in images):
            return images
        return await self.fetcher.open_all(images, deadline)

    async def wait(
        self, request: Request, pool: Pool, tasks: Sequence[Task], deadline: float
    ) -> list[Answer]:
        """Queue images and wait for their answers, the end of time, or the client's leaving."""
        if not tasks:
            return []
        queued = pool.batcher.submit(tasks)
        try:
            await self.until(request, [task.done for task in queued], deadline)
            if any(task.done.cancelled() for task in queued):
                raise OutOfTime(LATE)
            return [task.done.result() for task in queued]
        finally:
            for task in queued:
                if not task.done.done():
                    pool.batcher.leave(task)

    async def run(
        self, request: Request, running: Coroutine[Any, Any, Rendered], deadline: float
    ) -> Rendered:
        """The result of an operation; cancelled where nobody waits for it."""
        task = asyncio.ensure_future(running)
        try:
            await self.until(request, [task], deadline)
        finally:
            task.cancel()
        return task.result()

    async def until(
        self, request: Request, futures: Sequence["asyncio.Future[Any]"], deadline: float
    ) -> None:
        """Until all are done."""
        if all(future.done() for future in futures):
            return
        every: asyncio.Future[Any] = (
            futures[0] if len(futures) == 1 else asyncio.gather(*futures, return_exceptions=True)
        )
        gone = asyncio.ensure_future(wait_for_disconnect(request))
        try:
            await asyncio.wait(
                {every, gone},
                timeout=max(deadline - time.monotonic(), 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            left = gone.done() and not gone.cancelled()
            gone.cancel()
        if every.done():
            if every.cancelled():
                raise OutOfTime(LATE)
            return
        if left:
            raise ClientLeft
        raise OutOfTime(LATE)


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def digest_of(data: bytes, want: Want) -> bytes:
    """One name for an image and what is wanted of it."""
    if len(data) >= LARGE_IMAGE:
        found = await asyncio.to_thread(hashlib.sha256, data)
    else:
        found = hashlib.sha256(data)
    return want.encode() + found.digest()
