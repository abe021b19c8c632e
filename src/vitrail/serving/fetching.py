"""Images by address: off, but for hosts that were named at the start, one by one.

A name is looked up once, its address is checked to be public, and that very address is connected
to (`data/download.py`); each redirect passes the same checks again.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.data.download import download
from vitrail.data.images import BadImage
from vitrail.serving.bodies import Given

MAX_AT_ONCE = 8  # downloads; others wait
MAX_SECONDS = 15.0  # for one image
OFF = "images by address are off: start the service with --allow-host HOST, or send the image"

TOO_MUCH = "the images of a request that are given by address may have {:,} bytes together"


@dataclass
class Allowance:
    """Bytes that the images of one request may still have."""

    left: int


class Fetcher:
    """Downloads for all requests of a service; the images of one have `max_bytes` together."""

    def __init__(self, hosts: Sequence[str], max_bytes: int) -> None:
        self.hosts = frozenset(hosts)
        self.max_bytes = max_bytes
        self.turn = asyncio.Semaphore(MAX_AT_ONCE)

    async def open_all(self, images: Sequence[Given], deadline: float) -> list[Given]:
        """All images of a request, each with its bytes or with the problem why it has none."""
        allowance = Allowance(self.max_bytes)
        return await asyncio.gather(*(self.open(one, deadline, allowance) for one in images))

    async def open(self, image: Given, deadline: float, allowance: Allowance) -> Given:
        if image.address is None:
            return image
        if not self.hosts:
            return Given(problem=OFF)
        async with self.turn:
            seconds = min(MAX_SECONDS, deadline - time.monotonic())
            if not allowance.left:
                return Given(problem=TOO_MUCH.format(self.max_bytes))
            if seconds <= 0:
                return Given(problem="there was no time left to fetch it")
            try:
                data = await asyncio.to_thread(
                    download,
                    image.address,
                    hosts=self.hosts,
                    max_bytes=allowance.left,
                    seconds=seconds,
                )
            except BadImage as problem:
                return Given(problem=problem.reason)
            if len(data) > allowance.left:  # others of this request came meanwhile
                return Given(problem=TOO_MUCH.format(self.max_bytes))
            allowance.left -= len(data)
            return Given(data)
