"""A bare HTTP/1.1 client on asyncio: little beside the service on the same machine, and exact about
what came back on which connection."""

import asyncio
import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from vitrail.inference.client import encode_form

MAX_HEAD = 2**16


@dataclass(frozen=True)
class Reply:
    """A whole response, and the seconds from the first byte sent to the last one read."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class Lost(Exception):  # noqa: N818 - what became of a request
    """A request was sent, and the connection ended without a whole response."""


class NotSent(Exception):  # noqa: N818
    """The request could not be sent: nobody took the connection."""


class Connection:
    """One connection that stays open; a request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = str(parts.hostname), int(parts.port or 80)
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.sent = self.answered = 0

    @property
    def is_open(self) -> bool:
        return self.writer is not None

    async def open(self) -> None:
        try:
            self.reader, self.writer = await asyncio.open_connection(
                self.host, self.port, limit=MAX_HEAD
            )
        except OSError as error:
            raise NotSent(str(error)) from None

    async def ask(self, request: bytes, timeout: float = 60.0) -> Reply:
        """Send a request and read its response."""
        if self.writer is None:
            await self.open()
        assert self.reader is not None
        assert self.writer is not None
        start = time.perf_counter()
        try:
            self.writer.write(request)
            self.sent += 1
            async with asyncio.timeout(timeout):
                await self.writer.drain()
                status, headers, body = await read_response(self.reader)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise Lost(f"{type(error).__name__}: {error}") from None
        self.answered += 1
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Reply(status, headers, body, time.perf_counter() - start)

    async def left_over(self) -> int:
        """Bytes that came without having been asked for; the connection ends."""
        if self.reader is None or self.writer is None:
            return 0
        try:
            async with asyncio.timeout(0.2):
                return len(await self.reader.read(2**20))
        except (TimeoutError, OSError):
            return 0
        finally:
            self.close()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split()[1])
    fields = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = bytearray()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return status, headers, bytes(body)
    return status, headers, await reader.readexactly(int(headers.get("content-length", 0)))


def make_request(
    method: str, path: str, body: bytes = b"", media: str = "", **headers: str
) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    if media:
        lines.append(f"Content-Type: {media}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def predict_request(images: Sequence[bytes], *, top: int = 5, verb: str = "predict") -> bytes:
    """A multipart request of the service."""
    body, media = encode_form(images, {"top": top} if verb == "predict" else {})
    return make_request("POST", f"/v1/{verb}", body, media)


def json_request(image: bytes, path: str = "/predict") -> bytes:
    """A request with one image in base64, as LitServe's examples have it."""
    body = json.dumps({"image": base64.b64encode(image).decode()}).encode()
    return make_request("POST", path, body, "application/json")
