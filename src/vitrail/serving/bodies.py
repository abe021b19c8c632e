"""The body of a request: images and options, within limits of bytes, parts and time.

Limits count while bytes come in, so that nothing large is ever held, and nothing touches the disk.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from vitrail.serving.problems import BadRequest, Invalid, Overloaded, TooLarge, TooSlow, WrongType
from vitrail.serving.settings import Limits

IMAGES, OPTIONS = "images", "options"
MAX_FIELDS = 32  # beside images
MAX_FIELD_BYTES = 2**20  # of all fields beside images
ADDRESSES = ("http://", "https://")
LARGE_JSON = 2**18  # bytes: decoded in a thread
MAX_VALUES = 2**19  # of JSON: enough for all cells of an edit, and 64 bytes each


@dataclass(frozen=True)
class Given:
    """One image of a request: its bytes, its address, or why it can be neither."""

    data: bytes = b""
    address: str | None = None
    problem: str | None = None


@dataclass
class Upload:
    """What a request brought."""

    images: list[Given] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def only_image(self) -> Given:
        """For what is done with one image at a time."""
        if len(self.images) != 1:
            raise Invalid(f"one image is needed in the field {IMAGES}, got {len(self.images)}")
        return self.images[0]


class Budget:
    """Bytes of all bodies that are held; a client that asks for more than is left has to wait."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def take(self, count: int) -> None:
        if self.used + count > self.limit:
            raise Overloaded("the memory for requests is used up")
        self.used += count

    def give(self, count: int) -> None:
        self.used -= count


@asynccontextmanager
async def reading(request: Request, limits: Limits, budget: Budget) -> AsyncIterator[Upload]:
    """The images and options of a request, whose memory is counted until the end of the block."""
    body = Body(request, limits, budget)
    try:
        yield await read_upload(request, body, limits)
    finally:
        body.close()


async def read_upload(request: Request, body: "Body", limits: Limits) -> Upload:
    """Options stand in the body or in the address; those of the body win."""
    check_encoding(request)
    upload = await read_content(request, body, limits)
    upload.options = query_options(request.query_params) | upload.options
    return upload


def check_encoding(request: Request) -> None:
    """A small compressed body may become a huge one."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise WrongType("a body must not be compressed: send it as it is")


async def read_content(request: Request, body: "Body", limits: Limits) -> Upload:
    media, parameters = parse_options_header(request.headers.get("content-type", ""))
    if media == b"multipart/form-data":
        form = Form(parameters.get(b"boundary", b""), limits)
        await body.feed(form.feed)
        return form.finish()
    if media == b"application/json":
        text = await body.read()
        if len(text) < LARGE_JSON:
            return read_json(text, limits)
        return await asyncio.to_thread(read_json, text, limits)
    if media.startswith(b"image/") or media == b"application/octet-stream":
        return Upload([Given(await body.read())])
    got = media.decode("latin-1") or "none"
    raise WrongType(
        f"content-type must be multipart/form-data, application/json or image/…, got {got}"
    )


class Body:
    """The bytes of a request, as they come."""

    def __init__(self, request: Request, limits: Limits, budget: Budget) -> None:
        self.request, self.limits, self.budget = request, limits, budget
        self.taken = 0

    async def feed(self, sink: Callable[[bytes], None]) -> None:
        """Hand every piece on, within the limits."""
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in self.request.stream():
                    self.budget.take(len(chunk))
                    self.taken += len(chunk)
                    if self.taken > self.limits.body_bytes:
                        raise too_large(self.taken, self.limits)
                    if chunk:
                        sink(chunk)
        except TimeoutError:
            raise TooSlow(
                f"the body must come within {self.limits.body_seconds:g} s", close=True
            ) from None

    async def read(self) -> bytes:
        chunks: list[bytes] = []
        await self.feed(chunks.append)
        return b"".join(chunks)

    def close(self) -> None:
        self.budget.give(self.taken)
        self.taken = 0


def too_large(size: int, limits: Limits) -> TooLarge:
    return TooLarge(
        f"a body may have {limits.body_bytes:,} bytes, got {size:,} or more", close=True
    )


class Form:
    """A multipart body, parsed while it comes. Names of files are not looked at."""

    def __init__(self, boundary: bytes, limits: Limits) -> None:
        self.limits, self.upload = limits, Upload()
        self.fields = self.field_bytes = 0
        self.header_field = self.header_value = self.disposition = b""
        self.name = ""
        self.parts: list[bytes] = []
        self.ended = False
        try:
            if not boundary:
                raise FormParserError("no boundary")
            self.parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self.on_part_begin,
                    "on_part_data": self.on_part_data,
                    "on_part_end": self.on_part_end,
                    "on_header_field": self.on_header_field,
                    "on_header_value": self.on_header_value,
                    "on_header_end": self.on_header_end,
                    "on_headers_finished": self.on_headers_finished,
                    "on_end": self.on_end,
                },
            )
        except FormParserError as error:
            raise BadRequest(f"content-type has no usable boundary: {error}") from None

    def feed(self, chunk: bytes) -> None:
        try:
            self.parser.write(chunk)
        except FormParserError as error:
            raise BadRequest(f"the multipart body cannot be read: {error}", close=True) from None

    def finish(self) -> Upload:
        if not self.ended:
            raise BadRequest("the multipart body ends before its last boundary")
        return self.upload

    def on_part_begin(self) -> None:
        self.header_field = self.header_value = self.disposition = b""
        self.name, self.parts = "", []

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self.header_field += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self.header_value += data[start:end]

    def on_header_end(self) -> None:
        if self.header_field.lower() == b"content-disposition":
            self.disposition = self.header_value
        self.header_field = self.header_value = b""

    def on_headers_finished(self) -> None:
        _, parameters = parse_options_header(self.disposition)
        self.name = parameters.get(b"name", b"").decode("utf-8", "replace")
        if self.name == IMAGES:
            if len(self.upload.images) >= self.limits.images:
                raise TooLarge(f"a request may have {self.limits.images} images", close=True)
            return
        self.fields += 1
        if self.fields > MAX_FIELDS:
            raise TooLarge(f"a request may have {MAX_FIELDS} fields beside images", close=True)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self.name != IMAGES:
            self.field_bytes += end - start
        if self.field_bytes > MAX_FIELD_BYTES:
            raise TooLarge(
                f"the fields beside images may have {MAX_FIELD_BYTES:,} bytes", close=True
            )
        self.parts.append(data[start:end])

    def on_part_end(self) -> None:
        content, self.parts = b"".join(self.parts), []
        if self.name == IMAGES:
            self.upload.images.append(Given(content))
        elif self.name == OPTIONS:
            self.upload.options |= read_object(content, OPTIONS)
        elif not self.name:
            raise BadRequest("a part of the multipart body has no name", close=True)
        else:
            self.upload.options[self.name] = plain_value(content.decode("utf-8", "replace"))

    def on_end(self) -> None:
        self.ended = True


def read_json(text: bytes, limits: Limits) -> Upload:
    """{"images": [base64…], …options}"""
    values = read_object(text, "the body")
    images = values.pop(IMAGES, [])
    if not isinstance(images, list) or not all(isinstance(one, str) for one in images):
        raise Invalid(f"{IMAGES} must be a list of texts in base64, or of addresses")
    if len(images) > limits.images:
        raise TooLarge(f"a request may have {limits.images} images, got {len(images)}")
    return Upload([read_text(one) for one in images], values)


def read_text(text: str) -> Given:
    """One image of a JSON body: base64, a data address, or one of the web."""
    if text.lower().startswith(ADDRESSES):
        return Given(address=text)
    if text.startswith("data:"):
        kind, _, text = text.partition(",")
        if not kind.endswith(";base64"):
            return Given(problem="a data address must be in base64")
    try:
        return Given(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        return Given(problem=f"base64 cannot be decoded: {error}")


def read_object(text: bytes, where: str, *, max_values: int = MAX_VALUES) -> dict[str, Any]:
    check_values(sum(map(text.count, (b",", b"[", b"{"))), max_values)
    try:
        values = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{where} must be JSON: {error}") from None
    if not isinstance(values, dict):
        raise BadRequest(f"{where} must be a JSON object, got {type(values).__name__}")
    return values


def check_values(count: int, limit: int) -> None:
    """Refuse JSON with more commas and brackets before it is parsed: a megabyte of short values
    becomes dozens."""
    if count > limit:
        raise TooLarge(f"JSON may have {limit:,} values, got {count:,}", close=True)


def refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def query_options(query: Mapping[str, str]) -> dict[str, Any]:
    """Options that stand in the address, beside the name of the model."""
    return {name: plain_value(text) for name, text in query.items() if name != "model"}


def plain_value(text: str) -> Any:
    """What JSON makes of a text, or the text.

    >>> plain_value("3"), plain_value("auto")
    (3, 'auto')
    """
    check_values(sum(map(text.count, ",[{")), MAX_VALUES)
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text
