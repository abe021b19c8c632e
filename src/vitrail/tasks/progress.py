"""The progress of a task: what is being done, how much of it, and of how much."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

# what is being done, how much of it is, and of how much
OnProgress: TypeAlias = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Report nothing."""


def steps_of(on_progress: OnProgress, what: str) -> Callable[[int, int], None]:
    """The progress of one piece of work."""
    return partial(on_progress, what)
