"""The CPU threads that a task computes with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vitrail.core.ranges import check_count

MAX_THREADS = 256


@contextmanager
def use_threads(threads: int | None) -> Iterator[None]:
    """Compute with this many CPU threads meanwhile, if a number was given.

    >>> before = torch.get_num_threads()
    >>> with use_threads(3):
    ...     torch.get_num_threads()
    3
    >>> torch.get_num_threads() == before
    True
    """
    if threads is None:
        yield
        return
    check_count("threads", threads, at_least=1, at_most=MAX_THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
