"""The CPU threads that a task computes with."""

from collections.abc import Iterator
from contextlib import contextmanager

from vitrail.core.ranges import check_count
from vitrail.inference.engine import torch_threads

MAX_THREADS = 256


@contextmanager
def use_threads(threads: int | None) -> Iterator[None]:
    """Compute with this many CPU threads meanwhile, if a number was given.

    >>> import torch
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
    with torch_threads(threads):
        yield
