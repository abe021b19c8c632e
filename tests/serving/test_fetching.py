"""Images by address: named hosts alone, public addresses alone, also behind redirects and names
that change."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serving.running import Running, png, running
from vitrail.data.download import ALLOW_PRIVATE, download
from vitrail.data.images import BadImage
from vitrail.serving.bodies import Given
from vitrail.serving.fetching import Fetcher
from vitrail.serving.launcher import Launcher

IMAGE = png(3)


class Handler(BaseHTTPRequestHandler):
    """/image is one, /to?ADDRESS redirects, /large has no end."""

    def do_GET(self) -> None:
        path, _, target = self.path.partition("?")
        if path == "/to":
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        try:
            if path == "/large":
                for _ in range(100):
                    self.wfile.write(b"x" * 10_000)
            else:
                self.wfile.write(IMAGE)
        except OSError:
            pass  # the other side has had enough

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """The host and port of a web server on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def _private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_PRIVATE, "1")


@pytest.mark.slow
@pytest.mark.usefixtures("_private")
def test_an_image_of_a_named_host_is_computed(
    launcher: Launcher, checkpoints: Path, web: str
) -> None:
    with running(launcher, str(checkpoints / "pets"), allow_host=(web,)) as service:
        expected = service.form("/v1/predict", [IMAGE]).json()["predictions"][0]
        images = [f"http://{web}/image", f"http://{web}/to?/image", "http://localhost/image"]
        values = {"images": [*images, f"http://{web}/to?http://localhost:1/image"]}
        found = service.post_json("/v1/predict", values).json()["predictions"]
        assert found[:2] == [expected, expected]
        assert "the host localhost is not allowed" in found[2]["error"]
        assert "the host localhost:1 is not allowed" in found[3]["error"]
        single = service.post_json("/v1/inspect", {"images": ["http://localhost/image"]})
        assert (single.status, "not allowed" in single.json()["error"]) == (422, True)


def refusal(address: str, **options: Any) -> str:
    with pytest.raises(BadImage) as found:
        download(address, **options)
    return found.value.reason


PRIVATE = [
    "127.0.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[fe80::1]", "[fc00::1]",
    "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "224.0.0.1", "255.255.255.255", "[::]", "2130706433",
    "0x7f000001", "127.1", "0177.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("host", PRIVATE)
def test_private_addresses_are_refused_even_of_a_named_host(host: str) -> None:
    reason = refusal(f"http://{host}/image", hosts={host.strip("[]")}, seconds=5)
    assert "no public address" in reason or "cannot be fetched" in reason
    assert "image" not in reason.replace("/image", "")


@pytest.mark.parametrize(
    "address",
    [
        "http://images.example.org.evil.example/image",
        "http://evil.example/?images.example.org",
        "http://images.example.org@evil.example/image",
        "http://images.example.org:81/image",
        "http://evil.example#images.example.org",
        "http://images.example.org\\@evil.example/",
        "http://IMAGES.EXAMPLE.ORG.:80/image",
    ],
)
def test_a_host_is_named_exactly(address: str) -> None:
    assert "is not allowed" in refusal(address, hosts={"images.example.org"}, seconds=5)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://x/y", "http:///x", "http://"])
def test_other_schemes_are_refused(address: str) -> None:
    assert "must be http://" in refusal(address, hosts={"x"}, seconds=5)


def test_a_name_that_changes_its_meaning_is_connected_to_as_it_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looked up once: a second answer, of this machine, is never asked for."""
    asked: list[str] = []
    connected: list[str] = []

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        address = "93.184.215.14" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))]

    def connect(place: tuple[str, int], *_: Any) -> socket.socket:
        connected.append(place[0])
        raise OSError("not in a test")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    refusal("http://images.example.org/image", hosts={"images.example.org"}, seconds=5)
    assert (asked, connected) == (["images.example.org"], ["93.184.215.14"])


def test_a_named_host_with_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    reason = refusal("http://images.example.org/", hosts={"images.example.org"}, seconds=5)
    assert "10.0.0.7 is no public address" in reason


@pytest.mark.usefixtures("_private")
def test_no_proxy_is_asked(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert download(f"http://{web}/image", hosts={web}) == IMAGE


@pytest.mark.usefixtures("_private")
def test_a_download_has_a_size(web: str) -> None:
    reason = refusal(f"http://{web}/large", hosts={web}, max_bytes=50_000, seconds=5)
    assert "more than the limit of 50,000" in reason


@pytest.mark.slow
def test_requests_without_addresses_do_not_wait(service: Running) -> None:
    assert service.form("/v1/predict", [IMAGE]).status == 200


@pytest.mark.usefixtures("_private")
def test_the_images_of_a_request_have_a_size_together(web: str) -> None:
    """Each alone is small enough: 64 of them would not be."""

    async def fetch() -> list[Given]:
        fetcher = Fetcher((web,), max_bytes=2 * len(IMAGE) + 1)
        images = [Given(address=f"http://{web}/image")] * 5
        return await fetcher.open_all(images, time.monotonic() + 60)

    found = asyncio.run(fetch())
    assert [one.data for one in found].count(IMAGE) == 2
    assert all("bytes" in (one.problem or "") for one in found if not one.data)
