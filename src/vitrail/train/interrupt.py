"""Ctrl-C between steps instead of within one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(*, alone: bool = True) -> Iterator[threading.Event]:
    """Ctrl-C sets the event; pressed twice it breaks. One of many processes also heeds the launcher
    asking it to end, and hears one Ctrl-C more than once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: object) -> None:
        if alone and event.is_set():
            raise KeyboardInterrupt
        event.set()

    signals = (signal.SIGINT,) if alone else (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, note) for number in signals}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
