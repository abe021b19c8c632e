"""A client with good requests, while others attack: it must be served as if nobody did."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.serving.running import png
from vitrail import Client, UserError

PAUSE = 0.03  # seconds between two requests
PATIENCE = 30.0


@dataclass
class Witness:
    """What became of its requests."""

    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def assert_served(self, *, within: float, at_least: int = 3) -> None:
        assert not self.problems
        assert len(self.seconds) >= at_least, "the attack was over before anybody could notice"
        assert max(self.seconds) < within


@contextmanager
def witness(address: str) -> Iterator[Witness]:
    """It asks from the begin of the block to its end, one image after another."""
    found, over = Witness(), threading.Event()

    def ask() -> None:
        with Client(address, timeout=PATIENCE, retry=False) as client:
            number = 0
            while not over.is_set():
                number += 1
                began = time.monotonic()
                try:
                    client.predict(png(1_000_000 + number))
                except UserError as error:
                    found.problems.append(str(error))
                found.seconds.append(time.monotonic() - began)
                over.wait(PAUSE)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield found
        while len(found.seconds) < 3 and thread.is_alive():  # an attack may be over at once
            time.sleep(0.01)
    finally:
        over.set()
        thread.join(2 * PATIENCE)
