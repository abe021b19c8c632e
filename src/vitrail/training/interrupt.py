"""Ctrl-C, or a scheduler's SIGTERM or SIGUSR1, between steps instead of within one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StoppedError(Exception):
    """A signal came during an evaluation: the run is saved, and evaluates when it is resumed."""


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
    if signal.getsignal(signal.SIGCHLD) is not None:
        before[signal.SIGCHLD] = signal.getsignal(signal.SIGCHLD)
    try:
        yield found
    except RuntimeError:
        _put_back(before)
        if found.is_set():  # who lost its connection to others was told to end, and ends now
            signal.raise_signal(found.number)
        raise
    finally:
        _put_back(before)


def forget_children() -> None:
    """torch's loader installs a handler that raises when a reader has died, in the middle of
    whatever goes on, a step perhaps. Asked for the next batch it notices that too."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _put_back(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
