"""What is done to a service: even load with every answer checked, overload, ends and kills."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from benchmarks.load.http import Connection, Lost, NotSent, Reply, predict_request
from benchmarks.load.photos import TOLERANCE, Known
from benchmarks.load.processes import Running

MOST_IMAGES = 4  # of a checked request


@dataclass
class Load:
    """What became of the requests of one run."""

    seconds: float = 0.0
    images: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    cpu_seconds: float = 0.0  # of the server with all its processes

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of computing for an image."""
        return 1000 * self.cpu_seconds / max(self.images, 1)

    @property
    def speed(self) -> float:
        return self.images / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        return float(np.percentile(self.latencies or [float("nan")], share)) * 1000


def run(coroutine: Any) -> Any:
    """On the event loop that the service has too, where it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


def measure(
    running: Running, requests: Sequence[bytes], *, clients: int, seconds: float, warm_up: float = 2
) -> Load:
    """So many clients, each with one request at a time. What is answered in `seconds` after the
    warm-up counts; what is on its way at the end is waited for."""

    async def drive() -> Load:
        load = Load(seconds=seconds)
        start = time.perf_counter() + warm_up
        end = start + seconds

        async def client(number: int) -> None:
            connection, place = Connection(running.url), number
            while time.perf_counter() < end:
                request = requests[place % len(requests)]
                place += clients
                try:
                    reply = await connection.ask(request)
                except (Lost, NotSent) as error:
                    load.lost.append(str(error))
                    continue
                if start <= time.perf_counter() < end:
                    load.statuses[reply.status] += 1
                    load.latencies.append(reply.seconds)
                    load.images += reply.status == 200
            connection.close()

        async def watch() -> None:
            await asyncio.sleep(warm_up)
            before = running.cpu_seconds()
            await asyncio.sleep(seconds)
            load.cpu_seconds = running.cpu_seconds() - before

        await asyncio.gather(watch(), *(client(number) for number in range(clients)))
        return load

    found: Load = run(drive())
    return found


# Every answer checked


@dataclass
class Checked(Load):
    """Answers that were wrong, by how."""

    requests: int = 0
    mixed_up: int = 0
    inexact: int = 0
    unasked_bytes: int = 0


def check_answers(url: str, known: Known, *, clients: int, seconds: float) -> Checked:
    """Clients that ask for one to four random images, and know what the answers must be."""

    async def drive() -> Checked:
        load, end = Checked(), time.perf_counter() + seconds

        async def client(number: int) -> None:
            draw, connection = random.Random(number), Connection(url)
            while time.perf_counter() < end:
                wanted = draw.choices(range(len(known.images)), k=draw.randint(1, MOST_IMAGES))
                images = [known.images[place] for place in wanted]
                load.requests += 1
                try:
                    reply = await connection.ask(predict_request(images, top=len(known.labels)))
                except (Lost, NotSent) as error:
                    load.lost.append(str(error))
                    continue
                load.statuses[reply.status] += 1
                load.latencies.append(reply.seconds)
                if reply.status == 200:
                    count_wrong(load, known, wanted, reply)
            if connection.sent != connection.answered:
                load.lost.append("a response is missing")
            load.unasked_bytes += await connection.left_over()

        began = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(clients)))
        load.seconds = time.perf_counter() - began
        return load

    found: Checked = run(drive())
    return found


def count_wrong(load: Checked, known: Known, wanted: Sequence[int], reply: Reply) -> None:
    rows = reply.json()["predictions"]
    if len(rows) != len(wanted):
        load.mixed_up += abs(len(rows) - len(wanted))
    for place, row in zip(wanted, rows, strict=False):
        load.images += 1
        nearest, distance = known.nearest(known.row(row["top"]))
        load.mixed_up += nearest != place
        load.inexact += nearest == place and distance > TOLERANCE


# Overload


@dataclass
class Overload(Load):
    """Requests that come at a rate, whatever becomes of those before."""

    rate: float = 0.0
    capacity: float = 0.0
    refused: list[float] = field(default_factory=list)  # seconds
    memory: list[int] = field(default_factory=list)

    @property
    def refusal_p99(self) -> float:
        """Milliseconds."""
        return float(np.percentile(self.refused or [float("nan")], 99)) * 1000

    @property
    def growth(self) -> float:
        """Memory of the last third of the time, as a multiple of that of the second third."""
        third = max(len(self.memory) // 3, 1)
        return median(self.memory[-third:]) / median(self.memory[third : 2 * third] or self.memory)


def overload(
    running: Running, requests: Sequence[bytes], *, capacity: float, times: float, seconds: float
) -> Overload:
    """`times` as many requests a second as the service can compute."""

    async def drive() -> Overload:
        load = Overload(rate=capacity * times, capacity=capacity)
        idle: list[Connection] = []
        start, tasks = time.perf_counter(), set[asyncio.Task[None]]()

        async def ask(request: bytes) -> None:
            connection = idle.pop() if idle else Connection(running.url)
            try:
                reply = await connection.ask(request)
            except (Lost, NotSent) as error:
                load.lost.append(str(error))
                return
            load.statuses[reply.status] += 1
            load.images += reply.status == 200
            (load.refused if reply.status == 429 else load.latencies).append(reply.seconds)
            if connection.is_open:
                idle.append(connection)

        async def watch() -> None:
            while True:
                load.memory.append(await asyncio.to_thread(running.memory))
                await asyncio.sleep(max(seconds / 30, 0.2))

        watching = asyncio.create_task(watch())
        number = 0
        while (now := time.perf_counter() - start) < seconds:
            while number < now * load.rate:
                task = asyncio.create_task(ask(requests[number % len(requests)]))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)
        watching.cancel()
        load.seconds = time.perf_counter() - start
        for connection in idle:
            connection.close()
        return load

    found: Overload = run(drive())
    return found


# Ends


@dataclass
class Ended(Load):
    """A service that got SIGTERM under load."""

    code: int = -1
    end_seconds: float = 0.0
    not_accepted: int = 0


def end_under_load(
    running: Running, requests: Sequence[bytes], *, clients: int, after: float, keep: bool = True
) -> Ended:
    """Clients go on until nobody takes their connections; each request that was sent on one must
    be answered. Without `keep` each request has a connection of its own: then some are always in
    the kernel's queue."""

    async def drive() -> Ended:
        load = Ended()

        async def client(number: int) -> None:
            connection, place = Connection(running.url), number
            while True:
                try:
                    reply = await connection.ask(requests[place % len(requests)])
                except NotSent:
                    load.not_accepted += 1
                    return
                except Lost as error:
                    load.lost.append(str(error))
                    continue
                place += 1
                load.statuses[reply.status] += 1
                load.latencies.append(reply.seconds)
                load.images += reply.status == 200
                if not keep:
                    connection.close()

        async def stop() -> None:
            await asyncio.sleep(after)
            began = time.perf_counter()
            load.code = await asyncio.to_thread(running.end)
            load.end_seconds = time.perf_counter() - began

        await asyncio.gather(stop(), *(client(number) for number in range(clients)))
        return load

    found: Ended = run(drive())
    return found


# Kills


@dataclass
class Killed(Load):
    """A service whose processes were killed, again and again."""

    kills: int = 0
    until_ready: list[float] = field(default_factory=list)  # seconds, of each kill


def kill_workers(
    running: Running,
    requests: Sequence[bytes],
    *,
    kills: int,
    clients: int,
    on_kill: Callable[[int], None] = lambda number: None,
) -> Killed:
    """SIGKILL to a process that computes, under load, each time that the service is ready again:
    it counts as many processes as before, another one among them, and says that it is ready."""

    async def drive() -> Killed:
        load, over = Killed(), asyncio.Event()
        began = time.perf_counter()

        async def client(number: int) -> None:
            connection, place = Connection(running.url), number
            while not over.is_set():
                try:
                    reply = await connection.ask(requests[place % len(requests)])
                except (Lost, NotSent) as error:
                    load.lost.append(str(error))
                    continue
                place += clients
                load.statuses[reply.status] += 1
                load.latencies.append(reply.seconds)
                load.images += reply.status == 200
                if reply.status != 200:
                    await asyncio.sleep(0.05)
            connection.close()

        async def kill() -> None:
            draw = random.Random(0)
            for number in range(kills):
                before = await asyncio.to_thread(running.workers)
                victim = draw.choice(before)
                start = time.perf_counter()
                os.kill(victim, signal.SIGKILL)
                load.kills += 1
                await ready_again(running, before, victim)
                load.until_ready.append(time.perf_counter() - start)
                on_kill(number)
                before_images = load.images
                while load.images == before_images:  # it does compute again
                    await asyncio.sleep(0.02)
                await asyncio.sleep(draw.uniform(0.0, 0.3))
            over.set()

        await asyncio.gather(kill(), *(client(number) for number in range(clients)))
        load.seconds = time.perf_counter() - began
        return load

    found: Killed = run(drive())
    return found


async def ready_again(running: Running, before: Sequence[int], victim: int) -> None:
    while True:
        now = set(await asyncio.to_thread(running.workers)) - {victim}
        if len(now) >= len(before) and now - set(before):
            ready = await asyncio.to_thread(running.ready_workers) >= len(before)
            if ready and await asyncio.to_thread(running.is_ready):
                return
        await asyncio.sleep(0.02)
