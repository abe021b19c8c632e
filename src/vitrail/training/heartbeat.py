"""Which process of a run hangs: each one publishes how far it is, and the main one watches.

A process that has died is noticed by its broken connections. One that hangs (a disk, a driver, a
stopped process) leaves the others waiting in a collective: after a while the main process ends the
run with a sentence that names it, and torchrun can start it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

SECONDS = 5.0  # between two beats
SILENT = 6 * SECONDS  # without a beat


class Store(Protocol):
    """Where processes leave what others may read: torch's TCPStore."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


@dataclass(frozen=True)
class Beat:
    """How far a process was (`place` counts what it has begun), doing what, and when it said so by
    the clock of the process that reads."""

    rank: int
    place: int
    doing: str
    seen: float


class Heartbeat:
    """Publishes `mark` in a thread; in the main process `on_hang` is called with a sentence once no
    process has got on for `patience` seconds."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        patience: float,
        on_hang: Callable[[str], None],
        seconds: float = SECONDS,
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.patience, self.on_hang, self.seconds = patience, on_hang, seconds
        self.place, self.doing, self.allowed = 0, "starting", False
        self._beats: dict[int, tuple[str, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def mark(self, doing: str, *, may_take_long: bool = False) -> None:
        """The process has got on to the next thing; some things may take one process, and those
        that wait for it, as long as they like."""
        self.place, self.doing, self.allowed = self.place + 1, doing, may_take_long

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        count, got_on, last = 0, time.monotonic(), -1
        while not self._ended.wait(self.seconds):
            count += 1
            with suppress(RuntimeError):  # the store goes with the main process
                self.store.set(f"beat/{self.rank}", f"{count} {self.place} {self.doing}")
                if self.rank == 0:
                    beats = self._read()
                    place = sum(beat.place for beat in beats)
                    if place != last or self.allowed:
                        got_on, last = time.monotonic(), place
                    elif time.monotonic() - got_on > self.patience:
                        self.on_hang(describe(beats, time.monotonic(), self.patience, self.seconds))
                        return

    def _read(self) -> list[Beat]:
        now, found = time.monotonic(), []
        for rank in range(self.size):
            key = f"beat/{rank}"
            text = self.store.get(key).decode() if self.store.check([key]) else "0 0 starting"
            before = self._beats.get(rank)
            if before is None or before[0] != text.split()[0]:
                self._beats[rank] = (text.split()[0], now)
            _, place, doing = text.split(" ", 2)
            found.append(Beat(rank, int(place), doing, self._beats[rank][1]))
        return found


def describe(beats: Sequence[Beat], now: float, patience: float, seconds: float = SECONDS) -> str:
    """Who keeps the others waiting.

    >>> describe([Beat(0, 9, "step 4", 50.0), Beat(1, 8, "reading step 4", 50.0)], 51.0, 600)
    'process 1 hangs (reading step 4): the others have waited for it for 10 minutes'
    """
    minutes = f"{patience / 60:.0f} minutes" if patience >= 90 else f"{patience:.0f} s"
    silent = [beat for beat in beats if now - beat.seen > SILENT / SECONDS * seconds]
    behind = [beat for beat in beats if beat.place == min(beat.place for beat in beats)]
    late = silent or (behind if len(behind) < len(beats) else [])
    if not late:
        return (
            f"all processes wait for each other at {beats[0].doing}, for {minutes}: check the "
            "network between the machines"
        )
    ranks = ", ".join(str(beat.rank) for beat in late)
    one = len(late) == 1
    who, them = (f"process {ranks}", "it") if one else (f"processes {ranks}", "them")
    if silent:
        what = f"{'does' if one else 'do'} not respond (last seen: {late[0].doing})"
    else:
        what = f"{'hangs' if one else 'hang'} ({late[0].doing})"
    return f"{who} {what}: the others have waited for {them} for {minutes}"
