"""Ctrl-C, or a scheduler's SIGTERM, between steps instead of within one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(*, alone: bool = True) -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event; Ctrl-C pressed twice breaks, but for one of many processes,
    which hears one Ctrl-C more than once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: object) -> None:
        if alone and event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
