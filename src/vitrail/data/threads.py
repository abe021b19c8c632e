"""A function of every item, computed by threads, its results in order.

Threads are enough, because decoding, hashing and reading all let go of Python's lock.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from vitrail.core.errors import UserError

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 16  # images in one task: enough that handing it over costs nothing beside it
AHEAD = 4  # tasks for each thread that may wait to be taken


def each(function: Callable[[int], T], count: int, *, threads: int | None = None) -> Iterator[T]:
    """function(0), function(1), …; at most a few hundred results are ever waiting.

    >>> list(each(lambda index: index * index, 4))
    [0, 1, 4, 9]
    """
    workers = _usable() if threads is None else threads
    if workers < 1:
        raise UserError(f"threads must be at least 1, got {threads}")

    def work(start: int) -> list[T]:
        return [function(index) for index in range(start, min(start + CHUNK, count))]

    for done in ahead(work, range(0, count, CHUNK), threads=workers, lead=AHEAD):
        yield from done


def ahead(
    function: Callable[[T], R], items: Iterable[T], *, threads: int, lead: int
) -> Iterator[R]:
    """function(item) of each, in order; threads stay ahead by `lead` items each, and no more.

    >>> list(ahead(lambda number: number * number, range(4), threads=2, lead=2))
    [0, 1, 4, 9]
    """
    waiting: deque[Future[R]] = deque()
    rest = iter(items)
    pool = ThreadPoolExecutor(threads)
    try:
        waiting.extend(pool.submit(function, item) for item in islice(rest, lead * threads))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(function, item) for item in islice(rest, 1))
            yield done
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C only what is being done is finished


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """
    >>> list(batched("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _usable() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
