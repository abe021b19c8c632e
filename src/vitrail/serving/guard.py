"""What stands before every route: keys, the size of a body, room in the queue; and behind it:
headers of every answer, counters, and an end to answers that nobody reads."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.serving.bodies import too_large
from vitrail.serving.errors import error_response
from vitrail.serving.keys import key_of
from vitrail.serving.operations import OPERATIONS
from vitrail.serving.problems import Forbidden, NotFound, Problem, Unauthorised
from vitrail.serving.responses import problem_body
from vitrail.serving.service import Service

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), geolocation=(), microphone=()"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        b"frame-ancestors 'none'; form-action 'self'",
    ),
]
LOCAL = ("localhost", "127.0.0.1", "[::1]")
# Answered without a key: probes, and the page's own files, which hold nothing.
OPEN = ("/healthz", "/v2/health/live", "/v2/health/ready")
GUARDED = ("/v1/", "/v2/", "/v2", "/metrics", "/openapi.json")
MAX_DIGITS = 18  # of a length: more are as much too many
# Which processes a request waits for: it is refused before its body is read while that queue is
# full.
WAITING = {
    "/v1/predict": "batches",
    "/v1/embed": "batches",
    "/v1/search": "operations",
    **{f"/v1/{one.path}": "operations" for one in OPERATIONS.values() if one.needs_image},
}
INFER = "/v2/models/"


def needs_key(path: str) -> bool:
    """
    >>> needs_key("/v1/predict"), needs_key("/v2/health/ready"), needs_key("/app/main.js")
    (True, False, False)
    """
    return path not in OPEN and path.startswith(GUARDED)


class Guard:
    """The outermost application of a service."""

    def __init__(
        self, app: ASGIApp, service: Service, busy: Mapping[tuple[str, str], Handler]
    ) -> None:
        self.app, self.service, self.busy = app, service, busy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, metrics = time.perf_counter(), self.service.metrics
        status = 499  # the client left before an answer
        busy = self.busy.get((scope["method"], scope["path"]))

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
                if self.service.draining:
                    message["headers"].append((b"connection", b"close"))
            async with asyncio.timeout(self.service.settings.limits.send_seconds):
                await send(message)

        try:
            try:
                self.check(scope)
            except Problem as problem:
                await send_problem(problem, send_guarded)
                return
            if busy is None:
                await self.app(scope, receive, send_guarded)
            else:
                response = await respond(busy, Request(scope, receive))
                await response(scope, receive, send_guarded)
        finally:
            route = scope["path"] if busy else getattr(scope.get("route"), "path", "other")
            metrics.requests.labels(route, status).inc()
            metrics.seconds.labels(route).observe(time.perf_counter() - began)

    def check(self, scope: Scope) -> None:
        """Refuse what can be refused by the head of a request."""
        path, headers = scope["path"], scope["headers"]
        self.check_origin(headers)
        keys = self.service.keys
        if keys is not None and needs_key(path):
            role = keys.role(key_of(headers))
            if role is None:
                raise Unauthorised("API key is missing or wrong: send Authorization: Bearer KEY")
            scope["vitrail.role"] = role
        limits = self.service.settings.limits
        length = header_of(headers, b"content-length")
        if length.isdecimal() and int(length[:MAX_DIGITS]) > limits.body_bytes:
            raise too_large(int(length[:MAX_DIGITS]), limits)
        if scope["method"] == "POST":
            self.check_room(scope)

    def check_origin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Pages of others may not use a service that only this machine reaches: neither by their
        own name for its address (DNS rebinding), nor by a form."""
        settings = self.service.settings
        host = header_of(headers, b"host")
        if settings.is_local and host_name(host) not in (*LOCAL, *settings.trusted_host):
            raise Forbidden(
                f"the service answers as localhost, got the host {host!r}: behind a proxy, name "
                "it with trusted_host=NAME"
            )
        origin = header_of(headers, b"origin")
        sender = origin.partition("://")[2]  # none of "null", that of files and of closed frames
        if origin and sender != host and host_name(sender) not in settings.trusted_host:
            raise Forbidden("requests of pages of other origins are refused")

    def check_room(self, scope: Scope) -> None:
        """Refuse what finds no room in the queue of its model, before its body is read."""
        path, query = scope["path"], scope["query_string"]
        if path not in WAITING and not path.startswith(INFER):
            return
        name = parse_qs(query.decode("latin-1")).get("model", [None])[0] if query else None
        if path.startswith(INFER):
            name = path[len(INFER) :].partition("/")[0]
        try:
            pool = self.service.registry.find(name).pool
        except NotFound:
            return  # the route says so
        if pool is None:
            return
        if WAITING.get(path, "batches") == "batches":
            pool.batcher.check_room(1)
        else:
            pool.inspection.check_room()


def header_of(headers: list[tuple[bytes, bytes]], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def host_name(host: str) -> str:
    """Without the port.

    >>> host_name("localhost:8000"), host_name("[::1]:8000")
    ('localhost', '[::1]')
    """
    return re.sub(r":\d+$", "", host).lower()


async def respond(handler: Handler, request: Request) -> Response:
    """Without the layers of a framework: half of the time of a small request."""
    try:
        return await handler(request)
    except Exception as error:
        return error_response(error)


async def send_problem(problem: Problem, send: Send) -> None:
    body = problem_body(str(problem), problem.status)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(name.encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
