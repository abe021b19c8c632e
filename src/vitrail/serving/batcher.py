"""Bounded micro-batching: single images in, batches to processes, each answer to those who wait.

The size of a batch and the time to wait for one adapt to the load. With nothing to do an image is
sent at once, alone. The more images are on their way, the larger the batches are: as many as share
them out among the slots of the processes, in whole runs of an engine that is built for some sizes
alone. Waiting lasts while it promises a fuller batch, and never longer than `max_wait`.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrail.serving.frames import Buffer
from vitrail.serving.problems import Overloaded, Unavailable
from vitrail.serving.spec import LANES, Lane, Want

MAX_RECENT = 1024  # answers that are kept for images that come again
MAX_KEPT_BYTES = 2**16  # of one answer
MAX_ATTEMPTS = 2  # the first, and one more where a process has died
SMOOTHING = 0.2  # weight of the newest gap between two images
RETRY_SECONDS = (1, 60)  # that a client is told to wait, at least and at most

# what became of an image: its values, or the problem with it
Answer: TypeAlias = "NDArray[np.float32] | str"


@dataclass(eq=False)
class Task:
    """One image on its way, and how many wait for it."""

    want: Want
    payload: Buffer
    is_tensor: bool
    deadline: float
    key: bytes | None = None  # of the same image for the same purpose
    attempts: int = 0
    waiters: int = 1
    arrived: float = field(default_factory=time.monotonic)
    done: "asyncio.Future[Answer]" = field(init=False)

    def __post_init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()

    @property
    def lane(self) -> Lane:
        return LANES[self.want]


class Slots(Protocol):
    """The processes that compute batches."""

    @property
    def total(self) -> int:
        """Batches that may be sent at once."""

    @property
    def free(self) -> int:
        """Those that may be sent now."""

    def send(self, batch: list[Task]) -> None:
        """Compute a batch; `Batcher.finish` or `Batcher.retry` follows."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How far batches may grow, and how many images may wait."""

    batch_size: int = 32
    max_wait: float = 0.005
    queue: int = 256
    window: float = 5.0


class Batcher:
    """The queue of one model. Everything happens on the event loop, so there are no locks."""

    def __init__(
        self, rules: Rules, slots: Slots, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.rules, self.slots, self.now = rules, slots, now
        self.sizes: tuple[int, ...] = ()  # of an engine's runs, ascending; none: any
        self.waiting: dict[Lane, deque[Task]] = {"logits": deque(), "pooled": deque()}
        self.count = 0  # of waiting images somebody wants
        self.in_flight = 0
        self.pending: dict[bytes, Task] = {}
        self.recent: OrderedDict[bytes, tuple[float, Answer]] = OrderedDict()
        self.gap = math.inf  # seconds between two images, smoothed
        self.last_arrival = -math.inf
        self.finished: deque[tuple[float, int]] = deque(maxlen=64)
        self.timer: asyncio.TimerHandle | None = None
        self.shared = 0  # images that were computed for somebody else
        self.idle = asyncio.Event()
        self.idle.set()

    # Images come in

    @property
    def is_full(self) -> bool:
        return self.count >= self.rules.queue

    def check_room(self, images: int) -> None:
        """Refuse what does not fit into the queue, before it is read."""
        if self.count + images > self.rules.queue:
            raise Overloaded(
                f"{self.count} images wait already, the limit is {self.rules.queue}",
                retry_after=self.retry_after(),
            )

    def submit(self, tasks: Sequence[Task]) -> list[Task]:
        """Queue all or none; gives the task to wait for in place of each: where the same image is
        on its way already, that one."""
        found = [self.find_same(task) for task in tasks]
        self.check_room(sum(one is None for one in found))
        result = []
        for task, same in zip(tasks, found, strict=True):
            if same is None:  # the same image may be twice in this request
                same = self.find_same(task)
            if same is not None:
                self.shared += 1
                same.waiters += 1
                same.deadline = max(same.deadline, task.deadline)
                result.append(same)
                continue
            self.add(task)
            result.append(task)
        self.pump()
        return result

    def find_same(self, task: Task) -> Task | None:
        if task.key is None or not self.rules.window:
            return None
        if (same := self.pending.get(task.key)) is not None and same.waiters:
            return same
        kept = self.recent.get(task.key)
        if kept is None or kept[0] < self.now():
            return None
        task.waiters = 0
        if not task.done.done():
            task.done.set_result(kept[1])
        return task

    def add(self, task: Task) -> None:
        now = self.now()
        gap = now - self.last_arrival
        if math.isfinite(gap):
            known = self.gap if math.isfinite(self.gap) else gap
            self.gap = known + SMOOTHING * (gap - known)
        self.last_arrival = now
        self.waiting[task.lane].append(task)
        self.count += 1
        self.idle.clear()
        if task.key is not None and self.rules.window:
            self.pending[task.key] = task

    def leave(self, task: Task) -> None:
        """Somebody waits for this image no longer; nobody does: it is not computed."""
        task.waiters -= 1
        if task.waiters <= 0 and task.attempts == 0 and not task.done.done():
            self.count -= 1
            self.forget(task)
            task.done.cancel()
            task.payload = b""
            line = self.waiting[task.lane]
            if len(line) > 2 * self.rules.queue:  # mostly of those who have left
                self.waiting[task.lane] = deque(one for one in line if not one.done.done())
            self.check_idle()

    # Batches go out

    def pump(self) -> None:
        """Send what can be sent now."""
        while self.slots.free > 0 and any(self.waiting.values()):
            wait = self.wait_time()
            if wait > 0:
                self.set_timer(wait)
                return
            batch = self.take()
            if batch:  # else all of this line had left, and the other may have some
                self.slots.send(batch)

    def wait_time(self) -> float:
        """Seconds to wait for a fuller batch."""
        busy = self.slots.total - self.slots.free
        missing = self.target() - self.count
        if not busy or missing <= 0:
            return 0.0
        oldest = min(line[0].arrived for line in self.waiting.values() if line)
        left = oldest + self.rules.max_wait - self.now()
        # one slot is there to be filled ahead: while the others compute, waiting costs nothing
        if self.slots.free > 1 and missing * self.gap > self.rules.max_wait:
            return 0.0
        return max(left, 0.0)

    def target(self) -> int:
        """Images of a batch that share out all that are on their way, in whole runs."""
        share = math.ceil((self.count + self.in_flight) / max(self.slots.total, 1))
        return whole_runs(min(max(share, 1), self.rules.batch_size), self.sizes)

    def take(self) -> list[Task]:
        """The next batch, from the line whose first image has waited longest."""
        lines = [line for line in self.waiting.values() if line]
        if not lines:
            return []
        line = min(lines, key=lambda one: one[0].arrived)
        size, batch, now = self.target(), list[Task](), self.now()
        while line and len(batch) < size:
            task = line.popleft()
            if task.done.done():  # cancelled, and not counted any more
                continue
            if task.deadline < now:  # those who wait for it have their own clock
                self.count -= 1
                self.forget(task)
                task.done.cancel()
                continue
            if task.attempts and batch:  # after a crash each image is tried alone
                line.appendleft(task)
                break
            self.count -= 1
            task.attempts += 1
            batch.append(task)
            if task.attempts > 1:
                break
        self.in_flight += len(batch)
        self.check_idle()
        return batch

    def set_timer(self, seconds: float) -> None:
        if self.timer is None:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(seconds, self.on_timer)

    def on_timer(self) -> None:
        self.timer = None
        self.pump()

    # Answers come back

    def finish(self, batch: Sequence[Task], answers: Sequence[Answer]) -> None:
        """A batch was computed."""
        now = self.now()
        self.in_flight -= len(batch)
        self.finished.append((now, len(batch)))
        for task, answer in zip(batch, answers, strict=True):
            self.forget(task)
            if task.key is not None and self.rules.window:
                self.remember(task.key, answer, now)
            if not task.done.done():
                task.done.set_result(answer)
        self.check_idle()
        self.pump()

    def retry(self, batch: Sequence[Task], error: Exception | None = None) -> None:
        """A process died, or failed with an error: once more, each image alone; then give up."""
        self.in_flight -= len(batch)
        for task in reversed(batch):
            if task.done.done():
                self.forget(task)
            elif task.attempts >= MAX_ATTEMPTS or not task.waiters:
                self.forget(task)
                task.done.set_exception(error or Unavailable("the process of this image has died"))
                task.done.exception()  # it may be that nobody waits any more
            else:
                self.waiting[task.lane].appendleft(task)
                self.count += 1
        self.check_idle()
        self.pump()

    def fail_all(self, error: Exception) -> None:
        """Nothing can be computed any more."""
        for line in self.waiting.values():
            while line:
                task = line.popleft()
                self.forget(task)
                if not task.done.done():
                    task.done.set_exception(error)
                    task.done.exception()
        self.count = 0
        self.check_idle()

    def forget(self, task: Task) -> None:
        if task.key is not None and self.pending.get(task.key) is task:
            del self.pending[task.key]

    def remember(self, key: bytes, answer: Answer, now: float) -> None:
        if not isinstance(answer, str) and answer.nbytes > MAX_KEPT_BYTES:
            return
        self.recent[key] = (now + self.rules.window, answer)
        self.recent.move_to_end(key)
        while len(self.recent) > MAX_RECENT or next(iter(self.recent.values()))[0] < now:
            self.recent.popitem(last=False)

    def check_idle(self) -> None:
        if not self.count and not self.in_flight:
            self.idle.set()

    def retry_after(self) -> int:
        """Seconds until there will be room, from how fast images are answered."""
        least, most = RETRY_SECONDS
        if len(self.finished) < 2:
            return least
        seconds = self.now() - self.finished[0][0]
        rate = sum(count for _, count in self.finished) / max(seconds, 1e-3)
        return int(min(max(math.ceil(self.count / max(rate, 1e-3)), least), most))


def whole_runs(count: int, sizes: tuple[int, ...]) -> int:
    """As many images as fill runs of an engine: those that would only fill a run in part are left
    to the next batch, since an engine computes what is missing too.

    >>> [whole_runs(count, (1, 4, 8)) for count in (1, 3, 4, 6, 11, 16, 31)]
    [1, 1, 4, 4, 8, 16, 24]
    """
    if not sizes or count < sizes[0]:
        return count
    largest = max(size for size in sizes if size <= count)
    return count - count % largest if largest == sizes[-1] else largest
