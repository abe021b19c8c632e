"""Limits: bodies, parts, pixels, connections, slow clients, hosts and origins."""

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.serving.running import BOUNDARY, Running, make_form, png, running
from vitrail.serving.bodies import Budget
from vitrail.serving.launcher import Launcher
from vitrail.serving.problems import Overloaded
from vitrail.serving.settings import Limits

LIMITS = Limits(
    body_bytes=100_000,
    images=4,
    pixels=5000,
    header_seconds=0.3,
    body_seconds=0.3,
    idle_seconds=1.0,
    connections=8,
)
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture(scope="module")
def small(launcher: Launcher, checkpoints: Path) -> Iterator[Running]:
    with running(launcher, str(checkpoints / "pets"), limits=LIMITS) as found:
        yield found


def connect(service: Running) -> socket.socket:
    host, port = urlsplit(service.address).netloc.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def answer(client: socket.socket) -> bytes:
    """All that the service sends until it closes."""
    found = b""
    while chunk := client.recv(65536):
        found += chunk
    return found


def test_a_body_is_refused_by_its_stated_length(small: Running) -> None:
    with connect(small) as client:
        client.sendall(
            b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n"
        )
        assert answer(client).startswith(b"HTTP/1.1 413 ")


def test_a_body_is_refused_by_its_length_as_it_comes(small: Running) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    with connect(small) as client:
        client.sendall(head + b"content-type: image/png\r\n\r\n")
        for _ in range(11):
            client.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        assert answer(client).startswith(b"HTTP/1.1 413 ")
    assert small.service.budget.used == 0


def test_a_form_has_a_number_of_images_and_of_fields(small: Running) -> None:
    many = small.form("/v1/predict", [b"x"] * 5)
    assert (many.status, "4 images" in many.json()["error"]) == (413, True)
    fields = make_form([("images", png(1)), *((f"f{n}", b"1") for n in range(40))])
    assert small.ask("POST", "/v1/predict", fields, FORM).status == 413
    unnamed = make_form([("", b"x")])
    assert small.ask("POST", "/v1/predict", unnamed, FORM).status == 400


def test_names_of_files_are_not_looked_at(small: Running) -> None:
    body = make_form([("images", png(1))]).replace(b'filename="x"', b'filename="../../etc/passwd"')
    assert small.ask("POST", "/v1/predict", body, FORM).status == 200


@pytest.mark.slow
def test_an_image_has_a_number_of_pixels(small: Running) -> None:
    (found,) = small.form("/v1/predict", [png(1, (80, 80))]).json()["predictions"]
    assert found["error"] == "80x80, more than the limit of 5,000 pixels"
    reply = small.form("/v1/inspect", [png(1, (80, 80))])
    assert (reply.status, "5,000 pixels" in reply.json()["error"]) == (422, True)


def test_a_client_that_sends_no_head_is_closed(small: Running) -> None:
    began = time.monotonic()
    with connect(small) as silent, connect(small) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nhost: local")
        assert answer(slow).startswith(b"HTTP/1.1 408 ")
        assert answer(silent).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began < 3


def test_a_client_that_sends_its_body_slowly_is_closed(small: Running) -> None:
    with connect(small) as client:
        client.sendall(
            b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n"
            b"content-type: application/json\r\n\r\n{"
        )
        found = answer(client)
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b"within 0.3 s" in found


def test_a_head_has_a_length(small: Running) -> None:
    """Who still sends when the service closes may lose the answer: it is refused all the same."""
    found = b""
    with connect(small) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
        for number in range(70):
            client.sendall(f"x-{number}: {'a' * 1000}\r\n".encode())
        found = answer(client)
    assert not found or found.startswith(b"HTTP/1.1 431 ")
    assert small.get("/healthz").status == 200


def test_there_is_a_number_of_connections(small: Running) -> None:
    time.sleep(0.2)  # those of other tests are closed
    clients = [connect(small) for _ in range(8)]
    try:
        time.sleep(0.05)
        with connect(small) as one_more:
            assert answer(one_more).startswith(b"HTTP/1.1 503 ")
    finally:
        for client in clients:
            client.close()
    time.sleep(0.1)
    assert small.get("/healthz").status == 200


def test_what_is_no_http_is_refused(small: Running) -> None:
    with connect(small) as client:
        client.sendall(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        assert answer(client).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, 403),
        ({"host": "localhost:1", "origin": "http://evil.example"}, 403),
        ({"host": "localhost:1", "origin": "null"}, 403),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "127.0.0.1"}, 200),
    ],
)
def test_pages_of_others_are_refused(small: Running, headers: dict[str, str], status: int) -> None:
    assert small.ask("GET", "/v1/models", headers=headers).status == status


def test_a_proxy_is_named(launcher: Launcher, checkpoints: Path) -> None:
    options = {"trusted_host": ("pets.example",)}
    with running(launcher, str(checkpoints / "pets"), **options) as service:
        for host in ("pets.example", "localhost"):
            headers = {"host": host, "origin": "https://pets.example"}
            assert service.ask("GET", "/v1/models", headers=headers).status == 200


def test_memory_of_all_bodies_is_bounded() -> None:
    budget = Budget(100)
    budget.take(60)
    with pytest.raises(Overloaded):
        budget.take(60)
    budget.give(60)
    budget.take(100)


def test_limits_are_checked() -> None:
    from vitrail.core.errors import UserError

    with pytest.raises(UserError, match="images must be"):
        replace(LIMITS, images=0)
    with pytest.raises(UserError, match="body_seconds must be"):
        replace(LIMITS, body_seconds=0)
