"""Pictures from a server on this machine: good ones, and all that can go wrong with one."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.inference.photos import small_model
from vitrail.data import download as web
from vitrail.data.images import BadImage
from vitrail.inference.engine import Job, compute_outputs


def png() -> bytes:
    file = BytesIO()
    Image.fromarray(np.arange(27, dtype=np.uint8).reshape(3, 3, 3)).save(file, "PNG")
    return file.getvalue()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        match self.path:
            case "/good.png":
                self.reply(png())
            case "/moved":
                self.reply(b"", code=302, Location="/good.png")
            case "/to-a-file":
                self.reply(b"", code=302, Location="file:///etc/hostname")
            case "/round":
                self.reply(b"", code=302, Location="/round")
            case "/huge":
                self.reply(b"", length=2**40)
            case "/endless" | "/trickle":
                self.send_response(200)
                self.end_headers()
                slow = self.path == "/trickle"
                try:
                    while True:
                        self.wfile.write(b"x" * (1 if slow else 2**16))
                        time.sleep(0.05 if slow else 0)
                except OSError:
                    return  # the reader has left
            case "/trickling-head":
                try:
                    for letter in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000:
                        self.wfile.write(bytes([letter]))
                        time.sleep(0.05)
                except OSError:
                    return
            case "/slow-round":
                time.sleep(0.3)
                self.reply(b"", code=302, Location="/slow-round")
            case "/to-the-cloud":
                self.reply(b"", code=302, Location="http://169.254.169.254/latest/meta-data")
            case "/a%20photo%C3%A9.png?width=%C3%A9":
                self.reply(png())
            case "/silent":
                time.sleep(1.5)
            case "/short":
                self.reply(png()[:40], length=4000)
            case _:
                self.reply(b"", code=404)

    def reply(
        self, body: bytes, *, code: int = 200, length: int | None = None, **headers: str
    ) -> None:
        """`length` is what the header says of the body, if not the truth."""
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv(web.ALLOW_PRIVATE, "1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.daemon_threads = True
        thread = threading.Thread(target=serving.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_a_picture_and_one_that_moved(server: str) -> None:
    assert web.download(f"{server}/good.png") == png()
    assert web.download(f"{server}/moved") == png()
    assert web.download(f"{server}/a photo\u00e9.png?width=\u00e9") == png()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing.png", "the server responds 404"),
        ("to-a-file", "cannot be fetched"),
        ("round", "cannot be fetched"),
        ("huge", "more than the limit"),
        ("endless", "more than the limit"),
        ("silent", "cannot be fetched: timed out"),
        ("trickle", "took longer than"),
        ("trickling-head", "took longer than"),
        ("slow-round", "took longer than"),
        ("short", "40 of 4000 bytes came"),
    ],
)
def test_what_goes_wrong_is_the_pictures_trouble(
    server: str, path: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "PATIENCE", 0.5)
    monkeypatch.setattr(web, "MOST_SECONDS", 0.7)
    if path == "endless":
        monkeypatch.setattr(web, "MOST_BYTES", 2**20)
        monkeypatch.setattr("vitrail.data.images.MOST_BYTES", 2**20)
    began = time.monotonic()
    with pytest.raises(BadImage, match=reason):
        web.download(f"{server}/{path}")
    assert time.monotonic() - began < 5


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[fe80::1]",
        "[fd00::1]",
        "224.0.0.1",
        "240.0.0.1",
    ],
)
def test_what_is_not_public_is_refused(
    host: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(web.ALLOW_PRIVATE)
    monkeypatch.setenv("no_proxy", "*")
    port = server.rpartition(":")[2]
    with pytest.raises(BadImage, match=r"is no public address"):
        web.download(f"http://{host}:{port}/good.png")


def test_every_redirect_is_checked_again(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address is allowed, by leave; the one that it names is not."""
    monkeypatch.setattr(web, "is_public", lambda one, **_: one == "127.0.0.1")
    monkeypatch.delenv(web.ALLOW_PRIVATE)
    monkeypatch.setenv("no_proxy", "*")
    assert web.download(f"{server}/moved") == png()
    with pytest.raises(BadImage, match=r"169\.254\.169\.254 is no public address"):
        web.download(f"{server}/to-the-cloud")


def test_the_address_that_was_checked_is_the_one_that_is_used(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that means another machine at its second lookup."""
    answers_of_dns = iter(["127.0.0.1", "127.9.9.9"])
    plain = socket.getaddrinfo

    def look_up(host: str, *rest: Any, **more: Any) -> Any:
        return plain(next(answers_of_dns) if host == "rebound.test" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setenv("no_proxy", "*")
    port = server.rpartition(":")[2]
    assert web.download(f"http://rebound.test:{port}/good.png") == png()
    assert next(answers_of_dns) == "127.9.9.9", "it was looked up once"


def test_a_lookup_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up_slowly(*_: object, **__: object) -> list[object]:
        time.sleep(0.5)
        return []

    monkeypatch.setattr(web, "PATIENCE", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", look_up_slowly)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(BadImage, match="looking up its name timed out"):
        web.download("http://example.test/x.png")


def test_a_proxy_is_asked_for_the_whole_address(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(web.ALLOW_PRIVATE)
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", server)
    with pytest.raises(BadImage, match="the server responds 404"):  # it knows no such path
        web.download("http://example.test/good.png")
    with pytest.raises(BadImage, match=r"10\.0\.0\.1 is no public address"):
        web.download("http://10.0.0.1/good.png")


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(web.ALLOW_PRIVATE, "1")
    with pytest.raises(BadImage, match="cannot be fetched"):
        web.download("http://127.0.0.1:1/x.png")
    with pytest.raises(BadImage, match="cannot be fetched"):
        web.download("http://[bad/x.png")


def test_the_engine_takes_addresses_beside_files(server: str) -> None:
    names = [f"{server}/good.png", f"{server}/missing.png"]
    good, bad = compute_outputs(small_model(), names, Job(output="scores"))
    assert [good.name, bad.name] == names
    assert good.values is not None
    assert bad.problem == "cannot be fetched: the server responds 404 Not Found"
