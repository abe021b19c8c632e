"""Pictures from a server on this machine: good ones, and all that can go wrong with one."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tests.infer.pictures import small_model
from vitrail.data.images import BadImage
from vitrail.infer import download as web
from vitrail.infer.engine import Job, answers


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
                self.reply(b"", **{"Content-Length": str(2**40)})
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
            case "/silent":
                time.sleep(1.5)
            case "/short":
                self.reply(png()[:40], **{"Content-Length": "4000"})
            case _:
                self.reply(b"", code=404)

    def reply(self, body: bytes, *, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    web.opener.cache_clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.daemon_threads = True
        thread = threading.Thread(target=serving.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()
    web.opener.cache_clear()


def test_a_picture_and_one_that_moved(server: str) -> None:
    assert web.download(f"{server}/good.png") == png()
    assert web.download(f"{server}/moved") == png()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing.png", "the server says 404"),
        ("to-a-file", "cannot be fetched"),
        ("round", "cannot be fetched"),
        ("huge", "more than the limit"),
        ("endless", "more than the limit"),
        ("silent", "cannot be fetched: timed out"),
        ("trickle", "took longer than"),
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


def test_nobody_there() -> None:
    with pytest.raises(BadImage, match="cannot be fetched"):
        web.download("http://127.0.0.1:1/x.png")
    with pytest.raises(BadImage, match="cannot be fetched"):
        web.download("http://[bad/x.png")


def test_the_engine_takes_addresses_beside_files(server: str) -> None:
    names = [f"{server}/good.png", f"{server}/missing.png"]
    good, bad = answers(small_model(), names, Job(output="scores"))
    assert [good.name, bad.name] == names
    assert good.values is not None
    assert bad.problem == "cannot be fetched: the server says 404 Not Found"
