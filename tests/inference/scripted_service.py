"""A small HTTP server that answers as a test scripts it: refusals, pauses and closed connections,
which a healthy service does not give on demand."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]


@dataclass
class Answer:
    """What is sent for it."""

    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False  # the connection, without a word in the response
    delay: float = 0.0


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(json.dumps(value).encode(), status, named)


Script = Callable[[Asked], Answer]


@contextmanager
def scripted(script: Script) -> Iterator[tuple[str, list[Asked]]]:
    """The address of a server that answers by a function, and what it was asked."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            host, port = self.client_address[:2]
            request = Asked(self.command, self.path, headers, body, (str(host), int(port)))
            asked.append(request)
            answer = script(request)
            if answer.delay:
                threading.Event().wait(answer.delay)
            with suppress(ConnectionError):  # a client that has given up
                self.send_response(answer.status)
                length = {"Content-Length": str(len(answer.body))}
                for name, value in (length | answer.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)
            self.close_connection = self.close_connection or answer.close

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
