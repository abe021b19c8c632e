"""uvicorn with limits for slow clients, and an end at which no accepted request is lost."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitrail.core.errors import UserError
from vitrail.serving.accept_queue import stop_connections, take_connections
from vitrail.serving.app import create_app
from vitrail.serving.service import Service
from vitrail.serving.settings import Limits

BACKLOG = 1024
LINGER_SECONDS = 0.25  # until an idle connection is closed
FIRST_SECONDS = 1.0  # until one is closed that never sent anything: it may have just been taken
HANDSHAKE_SECONDS = 0.05
MAX_HEAD = 2**16  # bytes of the address and the headers of a request


class LimitedProtocol(HttpToolsProtocol):
    """A connection that has to send its requests within a time and a size."""

    limits: Limits  # of the class that `make_protocol` makes

    def connection_made(self, transport: Any) -> None:
        self.head_bytes = 0
        self.in_head = False  # between the first and the last byte of a request's head
        self.slow: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self.refuse(503, "Service Unavailable", "too many connections")
        else:
            self.wait_at_most(self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self.head_bytes = 0
        self.in_head = True
        self.wait_at_most(self.limits.header_seconds)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self.count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.in_head = False
        # the route answers 408 before this, which is for bodies that nobody reads any more
        self.wait_at_most(self.limits.body_seconds + 5)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.stop_waiting()
        super().on_message_complete()

    def count_head(self, size: int) -> None:
        self.head_bytes += size
        if self.head_bytes > MAX_HEAD:
            self.refuse(431, "Request Header Fields Too Large", "the head of a request is too long")

    def wait_at_most(self, seconds: float) -> None:
        self.stop_waiting()
        self.slow = self.loop.call_later(seconds, self.on_slow)

    def stop_waiting(self) -> None:
        if self.slow is not None:
            self.slow.cancel()
            self.slow = None

    def on_slow(self) -> None:
        if self.is_idle:
            self.refuse(408, "Request Timeout", "the request came too slowly")
        else:
            self.transport.abort()

    @property
    def is_idle(self) -> bool:
        """No request waits for its answer; before the first one there is no cycle."""
        return bool(getattr(self.cycle, "response_complete", True))

    def refuse(self, status: int, phrase: str, sentence: str) -> None:
        """Answer without a request, and close."""
        if self.transport.is_closing():
            return
        body = f'{{"error": "{sentence}", "code": {status}}}'
        self.transport.write(
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
        )
        self.transport.close()

    def shutdown(self) -> None:
        """A request that is already in the socket is answered, not cut off."""
        if self.is_idle:
            last: Any = self.cycle  # None before the first request
            seconds = FIRST_SECONDS if last is None else LINGER_SECONDS
            self.loop.call_later(seconds, self.close_idle)
        else:
            self.cycle.keep_alive = False

    def close_idle(self) -> None:
        if self.in_head:  # what is being sent is answered, or ended by its own limit of time
            self.loop.call_later(LINGER_SECONDS, self.close_idle)
        elif self.is_idle:
            self.transport.close()
        else:
            self.cycle.keep_alive = False


def make_protocol(limits: Limits) -> type[LimitedProtocol]:
    return type("Protocol", (LimitedProtocol,), {"limits": limits})


class DrainingServer(uvicorn.Server):
    """On SIGTERM it takes what has arrived, answers it, and ends."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        config = uvicorn.Config(
            create_app(service),
            http=make_protocol(settings.limits),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,  # nothing here asks who the client is
            backlog=BACKLOG,
            timeout_keep_alive=max(int(settings.limits.idle_seconds), 1),
            timeout_graceful_shutdown=int(settings.timeout) + 5,
        )
        super().__init__(config)
        self.service = service
        service.count_connections = lambda: len(self.server_state.connections)
        self.interrupted = False
        for name in ("uvicorn.error", "python_multipart"):
            # they warn of requests that are none: these are answered, and nobody can mend them
            logging.getLogger(name).setLevel(logging.ERROR)
        self.listener = bind(settings.host, settings.port)

    @property
    def address(self) -> str:
        """Under which this machine reaches it."""
        host, port = self.service.settings.host, self.listener.getsockname()[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run_until_signal(self, on_ready: Callable[[str], None]) -> None:
        """Listen at once, load all models, say so, and serve until a signal. `UserError` where a
        model cannot be loaded."""
        running = asyncio.create_task(self.serve(sockets=[self.listener]))
        loading = asyncio.create_task(self.service.registry.start())
        try:
            await asyncio.wait({running, loading}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                on_ready(self.address)
            await running
        finally:
            self.should_exit = True
            loading.cancel()
            await asyncio.gather(running, loading, return_exceptions=True)
            await self.service.registry.close()
            self.listener.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.draining = True
        if sig == signal.SIGINT:
            self.force_exit = self.should_exit
            self.interrupted = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.draining = True
        if not self.force_exit:
            await asyncio.sleep(self.service.settings.drain_seconds)
            await self.take_last()
        await super().shutdown(sockets)

    async def take_last(self) -> None:
        """Listen no more, and take every connection that the kernel has in its queue: closing the
        listener would reset them, with the requests that they have sent."""
        queue = self.listener.dup()  # the same queue, which asyncio's own closing leaves alone
        with queue:
            if stop_connections(self.listener):
                await asyncio.sleep(HANDSHAKE_SECONDS)  # of those that have begun
            for server in self.servers:
                server.close()
            last = take_connections(queue)  # to its end nothing is waited for
        for one in last:
            await asyncio.get_running_loop().connect_accepted_socket(self.make_connection, one)

    def make_connection(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    listener = None
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        if listener is not None:
            listener.close()
        reason = error.strerror or error
        raise UserError(f"{host}:{port} cannot be listened on: {reason}") from None
    return listener
