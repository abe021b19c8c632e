"""One run at a time writes to a directory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.training.world import World

_locked: set[int] = set()  # descriptors of directories


@contextmanager
def sole_writer(out: Path, world: World) -> Iterator[None]:
    """Refuse a directory that another run writes to; all processes of a run refuse together. The
    main one locks the directory itself, which leaves no file there, and the system unlocks it when
    that process ends, however it dies."""
    descriptor, taken = None, False
    if world.is_main:
        try:
            descriptor = lock(out)
        except BlockingIOError:
            taken = True
    try:
        if world.from_main(taken):
            raise UserError(
                f"{out}: another run is writing to it: wait until that run has ended, or choose "
                "another directory"
            )
        yield
    finally:
        if descriptor is not None:
            _locked.discard(descriptor)
            os.close(descriptor)


def lock(out: Path) -> int | None:
    """The descriptor of a directory that this process has locked; None where the system or the file
    system knows no such locks. BlockingIOError where another process has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        descriptor = os.open(out, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    close_in_children()
    _locked.add(descriptor)
    return descriptor


@cache
def close_in_children() -> None:
    """Processes that read images are forked, and have open what their parent has: they would keep
    the lock of a run that was killed until they notice, and it could not be resumed at once."""
    os.register_at_fork(after_in_child=_close_locked)


def _close_locked() -> None:
    for descriptor in _locked:
        with suppress(OSError):
            os.close(descriptor)
    _locked.clear()
