"""Ctrl-C, or a scheduler's SIGTERM or SIGUSR1, between steps instead of within one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Interrupted:
    """Whether a signal has asked a run to stop, and which."""

    def __init__(self) -> None:
        self.number = 0

    def is_set(self) -> bool:
        return self.number != 0

    @property
    def name(self) -> str | None:
        return signal.Signals(self.number).name if self.number else None


@contextmanager
def interruptible(*, alone: bool = True) -> Iterator[Interrupted]:
    """Ctrl-C, SIGTERM and SIGUSR1 are noted; Ctrl-C pressed twice breaks, but for one of many
    processes, which hears one Ctrl-C more than once."""
    found = Interrupted()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return

    def note(number: int, frame: object) -> None:
        if alone and found.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        found.number = number

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield found
    except RuntimeError:
        _put_back(before)
        if found.is_set():  # who lost its connection to others was told to end, and ends now
            signal.raise_signal(found.number)
        raise
    finally:
        _put_back(before)


def _put_back(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
