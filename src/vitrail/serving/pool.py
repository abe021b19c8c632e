"""The processes of one model: some for batches, one for inspection, each replaced when it dies."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vitrail.core.errors import UserError
from vitrail.serving.batcher import Answer, Batcher, Rules, Task
from vitrail.serving.frames import BrokenFrame, Buffer
from vitrail.serving.inspection import Inspection
from vitrail.serving.launcher import Launcher
from vitrail.serving.metrics import ModelMetrics
from vitrail.serving.problems import Failed
from vitrail.serving.process import Child, StartFailed
from vitrail.serving.spec import ModelInfo, WorkerSpec

AHEAD = 1  # batches that a process has beside those that its threads compute
MIN_PAUSE, MAX_PAUSE = 0.1, 10.0  # seconds between two starts that fail

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Worker:
    """A process that computes batches, and those that it has."""

    child: Child
    slots: int
    batches: dict[int, tuple[list[Task], asyncio.TimerHandle]] = field(default_factory=dict)
    is_ready: bool = True


class Pool:
    """One model: loaded, drained and closed as a whole."""

    def __init__(
        self,
        launcher: Launcher,
        spec: WorkerSpec,
        rules: Rules,
        *,
        workers: int,
        hang_seconds: float,
        metrics: ModelMetrics,
    ) -> None:
        self.launcher, self.spec, self.count = launcher, spec, workers
        self.hang_seconds, self.metrics = hang_seconds, metrics
        self.workers: list[Worker] = []
        self.batcher = Batcher(rules, self)
        self.inspection = Inspection(launcher, spec, hang_seconds, metrics)
        self.keepers: set[asyncio.Task[None]] = set()
        self.number = 0
        self.users = 0  # requests that hold this model
        self.unused = asyncio.Event()
        self.unused.set()
        self.closing = False
        self.info: ModelInfo | None = None

    # Starting and ending

    async def start(self) -> ModelInfo:
        """The first process decides the engine; the others follow."""
        first = await self.start_worker()
        assert first.child.info is not None
        self.info = first.child.info
        self.spec = replace(
            self.spec,
            engine=self.info.engine,
            digest=self.info.digest,
            features=self.info.features,
        )
        self.inspection.spec = self.spec
        self.batcher.sizes = self.info.batch_sizes
        self.keep(first)
        others = [self.start_worker() for _ in range(self.count - 1)]
        for worker in await asyncio.gather(*others):
            self.keep(worker)
        if self.spec.data and self.info.can_inspect:  # data that cannot be opened are told now
            await self.inspection.start()
        return self.info

    async def start_worker(self) -> Worker:
        child = Child(self.launcher, "batches", self.spec)
        await child.start()
        return Worker(child, slots=self.spec.threads + AHEAD)

    def keep(self, worker: Worker) -> None:
        """Use a process until it dies, and then another one."""
        self.workers.append(worker)
        task = asyncio.create_task(self.listen(worker))
        self.keepers.add(task)
        task.add_done_callback(self.keepers.discard)
        self.batcher.pump()

    async def listen(self, worker: Worker) -> None:
        await worker.child.listen(lambda *message: self.on_answer(worker, *message))
        self.remove(worker)
        if self.closing:
            return
        logger.warning("a process of %s ended: it is started again", self.spec.name)
        self.metrics.restarts.inc()
        await self.replace_worker()

    def remove(self, worker: Worker) -> None:
        """What a dead process had is tried once more."""
        worker.is_ready = False
        if worker in self.workers:
            self.workers.remove(worker)
        lost = [batch for batch, _ in worker.batches.values()]
        for _, timer in worker.batches.values():
            timer.cancel()
        worker.batches.clear()
        for batch in reversed(lost):
            self.batcher.retry(batch)

    async def replace_worker(self) -> None:
        """Until one is ready: memory may be short, or a file being written."""
        pause = MIN_PAUSE
        while not self.closing:
            try:
                self.keep(await self.start_worker())
                return
            except (StartFailed, UserError, OSError) as error:
                logger.error("%s cannot be started: %s", self.spec.name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE)

    @property
    def is_ready(self) -> bool:
        return bool(self.workers) and not self.closing

    @contextlib.contextmanager
    def in_use(self) -> Any:
        """A request that is being answered: the processes stay until it is done."""
        self.users += 1
        self.unused.clear()
        try:
            yield self
        finally:
            self.users -= 1
            if not self.users:
                self.unused.set()

    async def drain(self) -> None:
        """Answer what was accepted, then end the processes."""
        await self.unused.wait()
        await self.batcher.idle.wait()
        await self.close()

    async def close(self) -> None:
        self.closing = True
        keepers = list(self.keepers)
        for worker in list(self.workers):
            await worker.child.close()
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await self.inspection.close()
        self.batcher.fail_all(Failed("the model was unloaded"))

    # Batches: what `Batcher` asks of its slots

    @property
    def total(self) -> int:
        return sum(worker.slots for worker in self.workers)

    @property
    def free(self) -> int:
        return sum(worker.slots - len(worker.batches) for worker in self.workers)

    def send(self, batch: list[Task]) -> None:
        worker = max(self.workers, key=lambda one: one.slots - len(one.batches))
        self.number += 1
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.hang_seconds, self.on_hang, worker)
        worker.batches[self.number] = (batch, timer)
        self.metrics.batch_size.observe(len(batch))
        now = time.monotonic()
        for task in batch:
            self.metrics.queue_seconds.observe(now - task.arrived)
        items = [[task.want, task.is_tensor] for task in batch]
        worker.child.send({"id": self.number, "items": items}, [task.payload for task in batch])

    def on_answer(self, worker: Worker, header: dict[str, Any], buffers: list[Buffer]) -> None:
        batch, timer = worker.batches[header["id"]]
        answers = []
        if "failed" not in header:  # read before anything is changed: it may be nonsense
            answers = read_answers(header["results"], buffers, count=len(batch))
        del worker.batches[header["id"]]
        timer.cancel()
        if "failed" in header:
            self.batcher.retry(batch, Failed(str(header["failed"])))
            return
        self.metrics.batch_seconds.observe(header["seconds"])
        self.metrics.images.inc(len(batch))
        self.batcher.finish(batch, answers)

    def on_hang(self, worker: Worker) -> None:
        logger.error("a process of %s does not answer: it is ended", self.spec.name)
        worker.child.kill()


def read_answers(results: Sequence[Any], buffers: Sequence[Buffer], *, count: int) -> list[Answer]:
    """The problem of each image, or its values."""
    if len(results) != count or sum(not isinstance(one, str) for one in results) != len(buffers):
        raise BrokenFrame(f"an answer for {count} images has {len(results)} results")
    rest = iter(buffers)
    return [
        one if isinstance(one, str) else np.frombuffer(next(rest), np.float32).reshape(one)
        for one in results
    ]
