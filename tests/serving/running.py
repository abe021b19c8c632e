"""A real service on a free port of this machine, in a thread, and a plain client for it."""

import asyncio
import http.client
import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from vitrail.serving.launcher import Launcher
from vitrail.serving.server import DrainingServer
from vitrail.serving.service import Service
from vitrail.serving.settings import Settings, parse_source

BOUNDARY = "vitrail-boundary"
SECONDS = 60.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Running:
    """A service that answers, and ways to ask it."""

    service: Service
    server: DrainingServer
    loop: asyncio.AbstractEventLoop
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.server.address

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=SECONDS)
        try:
            connection.request(method, path, body or None, {**self.headers, **(headers or {})})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def form(self, path: str, images: Sequence[bytes], **options: Any) -> Reply:
        fields: list[tuple[str, bytes]] = [("images", image) for image in images]
        if options:
            fields.append(("options", json.dumps(options).encode()))
        headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
        return self.ask("POST", path, make_form(fields), headers)

    def post_json(self, path: str, values: Any, **headers: str) -> Reply:
        body = json.dumps(values).encode()
        return self.ask("POST", path, body, {"content-type": "application/json", **headers})

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.server.handle_exit, signal.SIGTERM, None)


def make_form(fields: Sequence[tuple[str, bytes]]) -> bytes:
    parts = []
    for name, content in fields:
        head = f'content-disposition: form-data; name="{name}"; filename="x"'
        parts.append(f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


@contextmanager
def running(
    launcher: Launcher, *models: str, standby: Sequence[str] = (), **options: Any
) -> Iterator[Running]:
    """A service with these settings; it is drained at the end."""
    settings = Settings(
        models=tuple(map(parse_source, models)),
        standby=tuple(map(parse_source, standby)),
        port=0,
        **{"engine": "eager", "threads": 1, "drain_seconds": 0.0, **options},
    )
    ready = threading.Event()
    found: list[Running] = []
    errors: list[BaseException] = []

    async def main() -> None:
        service = Service(settings, launcher)
        server = DrainingServer(service)
        found.append(Running(service, server, asyncio.get_running_loop()))
        await server.run_until_signal(lambda _: ready.set())

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(SECONDS), "the service did not become ready"
    if errors:
        raise errors[0]
    try:
        yield found[0]
    finally:
        if thread.is_alive():
            found[0].stop()
        thread.join(SECONDS)
        assert not thread.is_alive(), "the service did not end"
    if errors:
        raise errors[0]


def png(seed: int, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> bytes:
    """An encoded image of noise."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()
