"""Attacks over HTTP: whatever comes is refused in words and within limits, no response is a failure
of the service, and another client is served meanwhile. Long versions are slow tests."""

import base64
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from benchmarks.load.processes import Running as Started
from benchmarks.load.processes import service as started
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.golden import golden
from tests.inference.scripted_service import Answer, Asked, scripted
from tests.serving.running import BOUNDARY, Running, make_form, png, running
from tests.serving.witness import witness
from vitrail.data.download import ALLOW_PRIVATE
from vitrail.serving.launcher import Launcher
from vitrail.serving.settings import Limits

slow = pytest.mark.slow
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
WITHIN = 5.0  # seconds in which the other client is served, on a machine that is busy with tests
SECRET = b"root:x:0:0"  # how /etc/passwd begins


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=30)


def read_all(client: socket.socket) -> bytes:
    """Until the service closes, or has nothing more to say."""
    found = b""
    try:
        while chunk := client.recv(65536):
            found += chunk
    except OSError:
        pass
    return found


# Generated requests


def fuzz(service: Running, cases: int, *, only: Sequence[str] = ()) -> Counter[int]:
    """`cases` requests that follow the service's own description of itself, or nearly do; the
    statuses that they get. All of its paths, or some of them."""
    import schemathesis

    images = st.sampled_from([png(1), png(2, (8, 8)), b"", b"no picture"]) | st.binary(max_size=64)
    schemathesis.openapi.format("binary", images)
    schemathesis.openapi.format("byte", images.map(lambda one: base64.b64encode(one).decode()))
    text = service.get("/openapi.json").body
    schema = schemathesis.openapi.from_dict(with_known_models(json.loads(text)))
    schema.config.update(base_url=service.address)
    every: list[Any] = list(schema.get_all_operations())
    operations = [one.ok() for one in every if not only or one.ok().path in only]
    found: Counter[int] = Counter()
    for number, operation in enumerate(operations):
        rest = cases - sum(found.values())
        fuzz_operation(operation, max(1, rest // (len(operations) - number)), found)
    return found


def fuzz_operation(operation: Any, cases: int, found: Counter[int]) -> None:
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        response = case.call(timeout=300)
        found[response.status_code] += 1
        assert response.status_code < 500, f"{case.as_curl_command()}: {response.text}"
        if response.status_code >= 400:
            said = response.json()
            assert set(said) == {"error", "code"}
            assert said["code"] == response.status_code
            assert said["error"]

    ask()


def with_known_models(schema: dict[str, Any]) -> dict[str, Any]:
    """Names of models that are there, mostly: a random one gets no further than 404."""
    names = {"type": "string", "enum": ["pets", "many", "../pets", "none"]}
    versions = {"type": "string", "enum": ["1", "2"]}
    for methods in schema["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in ("name", "model"):
                    parameter["schema"] = names
                elif parameter["name"] == "version":
                    parameter["schema"] = versions
    return schema


def test_generated_requests_never_fail_the_service(service: Running) -> None:
    """Those that need no inspection, which takes a while to start."""
    paths = ["/v1/predict", "/v1/embed", "/v1/models/{name}", "/v2/models/{name}/infer"]
    found = fuzz(service, 48, only=paths)
    assert sum(found.values()) >= 30
    assert found[200]


@slow
def test_2000_generated_requests_never_fail_the_service(
    launcher: Launcher, checkpoints: Path
) -> None:
    """With time enough for every operation: on a busy machine 504 would be right."""
    models = [str(checkpoints / name) for name in ("pets", "many")]
    with running(launcher, *models, timeout=600.0) as service:
        with witness(service.address) as other:
            found: Counter[int] = Counter()
            while sum(found.values()) < 2000:
                found += fuzz(service, 3000)
        assert found[200] > 100
        other.assert_served(within=30)


# Bad images


def valid_files() -> list[bytes]:
    """One image in many formats."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    photo = Image.fromarray(pixels).resize((90, 70))
    found = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF"):
        for mode in ("RGB", "L"):
            file = BytesIO()
            photo.convert(mode).save(file, kind)
            found.append(file.getvalue())
    return found


def mutated(files: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """Files with a few bytes changed, removed, repeated, or the end missing."""
    draw = random.Random(seed)
    for _ in range(count):
        data = bytearray(draw.choice(files))
        for _ in range(draw.choice((1, 2, 8, 64))):
            if not data:
                break
            place = draw.randrange(len(data))
            match draw.randrange(5):
                case 0:
                    data[place] = draw.randrange(256)
                case 1:
                    data[place : place + 4] = draw.choice(
                        (b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff")
                    )
                case 2:
                    del data[place : place + draw.randrange(1, 32)]
                case 3:
                    data[place:place] = data[place : place + 16]
                case 4 if draw.random() < 0.2:
                    del data[place:]
        yield bytes(data)


def send_images(service: Running, images: Sequence[bytes]) -> Counter[str]:
    """In requests of a few images; how many were computed, and how many refused in words."""
    found: Counter[str] = Counter()
    for start in range(0, len(images), 16):
        part = images[start : start + 16]
        reply = service.form("/v1/predict", part)
        assert reply.status == 200, reply.body
        rows = reply.json()["predictions"]
        assert len(rows) == len(part)
        for row in rows:
            assert set(row) == {"error"} or set(row) == {"label", "score", "top"}
            found["refused" if "error" in row else "computed"] += 1
            assert "Traceback" not in row.get("error", "")
    return found


def restarts(service: Running) -> float:
    lines = service.get("/metrics").body.decode().splitlines()
    rows = [line for line in lines if line.startswith("vitrail_worker_restarts_total{")]
    return sum(float(row.rpartition(" ")[2]) for row in rows)


def test_mutated_images_are_refused_one_by_one(service: Running) -> None:
    before = restarts(service)
    found = send_images(service, list(mutated(valid_files(), 96)))
    assert found["computed"] > 10
    assert found["refused"] > 10
    assert restarts(service) == before, "no image has ended a process"


@slow
def test_1000_bad_images_are_refused_one_by_one(service: Running) -> None:
    folder = golden("bad-images")
    files = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    images = [one for one in files if len(one) < 4 * 2**20]
    images += mutated(images, max(1000 - len(images), 500), seed=1)
    before = restarts(service)
    with witness(service.address) as other:
        found = send_images(service, images)
        for one in images[::40]:
            reply = service.form("/v1/inspect", [one])
            assert reply.status in (200, 422), reply.body
    assert found.total() >= 1000
    assert min(found.values()) > 100
    assert restarts(service) == before
    other.assert_served(within=30)


# Large, many and slow


@pytest.fixture(scope="module")
def limited(launcher: Launcher, checkpoints: Path) -> Iterator[Running]:
    """The limits of the service, but for the times, which a test can wait for."""
    limits = replace(Limits(), header_seconds=1.0, body_seconds=1.0, idle_seconds=2.0)
    with running(launcher, str(checkpoints / "pets"), limits=limits) as found:
        yield found


def test_a_body_of_a_gigabyte_is_refused_by_its_length(limited: Running) -> None:
    head = "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\n"
    with witness(limited.address) as other, closing(connect(limited.address)) as client:
        began = time.monotonic()
        client.sendall(f"{head}content-length: {2**30}\r\n\r\n".encode())
        assert read_all(client).startswith(b"HTTP/1.1 413 ")
        assert time.monotonic() - began < WITHIN
    other.assert_served(within=WITHIN)


def stream_gigabyte(address: str, head: str, piece: bytes) -> tuple[int, bytes]:
    """How many bytes could be sent before the service had enough, and what it said."""
    sent = 0
    with closing(connect(address)) as client:
        client.sendall(head.encode())
        try:
            while sent < 2**30:
                client.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        return sent, read_all(client)


@pytest.fixture(scope="module")
def process(checkpoints: Path) -> Iterator[Started]:
    """A service as a process of its own, whose memory can be measured."""
    with started(f"pets={checkpoints / 'pets'}", "--engine=eager", "--threads=1") as found:
        yield found


CHUNK = b"100000\r\n" + bytes(2**20) + b"\r\n"
PART = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="images"\r\n\r\n'.encode()


@slow
@pytest.mark.parametrize(
    ("media", "begin"),
    [
        ("image/png", b""),
        ("application/json", b""),
        (f"multipart/form-data; boundary={BOUNDARY}", PART),
        (f"multipart/form-data; boundary={BOUNDARY}", b""),
    ],
)
def test_a_gigabyte_that_is_streamed_is_cut_off(process: Started, media: str, begin: bytes) -> None:
    head = (
        "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        f"content-type: {media}\r\n\r\n"
    )
    if begin:
        head += f"{len(begin):x}\r\n{begin.decode()}\r\n"
    before = process.memory()
    with witness(process.url) as other:
        sent, said = stream_gigabyte(process.url, head, CHUNK)
    assert sent < 2 * Limits().body_bytes + 16 * 2**20, "what the kernel holds comes on top"
    assert not said or said.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))
    assert process.memory() - before < 3 * Limits().body_bytes
    other.assert_served(within=WITHIN)


def test_ten_thousand_parts_are_refused(limited: Running) -> None:
    with witness(limited.address) as other:
        for name in ("images", "other", "options"):
            body = make_form([(name, b"{}" if name == "options" else b"x")] * 10_000)
            began = time.monotonic()
            reply = limited.ask("POST", "/v1/predict", body, FORM)
            assert reply.status == 413, reply.body
            assert time.monotonic() - began < WITHIN
    other.assert_served(within=WITHIN)


def test_deep_and_wide_json_is_refused(limited: Running) -> None:
    bodies = [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"images": [' + b'"",' * 9_999 + b'""]}',
        b'{"images": ["x"], "top": ' + b"9" * 5_000 + b"}",
        b'{"images": ["x"], "top": 1e999}',
        b'{"images": ["\\ud800"]}',
        b'{"images": "\xff\xfe"}',
        b'{"images": [NaN]}',
    ]
    with witness(limited.address) as other:
        for body in bodies:
            reply = limited.ask("POST", "/v1/predict", body, {"content-type": "application/json"})
            assert reply.status in (200, 400, 413, 422), (body[:40], reply.body[:200])
            if reply.status == 200:  # the image is refused, not the request
                assert all("error" in one for one in reply.json()["predictions"])
    other.assert_served(within=WITHIN)


def test_json_of_many_short_values_is_refused_before_it_is_parsed(limited: Running) -> None:
    """Three letters are 64 bytes of memory as an empty list."""
    many = b"[" + b"[]," * 300_000 + b"[]]"
    media = {"content-type": "application/json"}
    form = make_form([("images", b"x"), ("erase", many)])
    began = time.monotonic()
    for path, body, headers in (
        ("/v1/predict", b'{"images": [], "top": ' + many + b"}", media),
        ("/v1/predict", form, FORM),
        ("/v2/models/pets/infer", b'{"inputs": ' + many + b"}", media),
    ):
        reply = limited.ask("POST", path, body, headers)
        assert reply.status == 413, reply.body
        assert "values" in reply.json()["error"]
    assert time.monotonic() - began < WITHIN


def test_empty_elements_of_a_tensor_are_not_all_read(limited: Running) -> None:
    """Four bytes say that an element is empty: a megabyte has a quarter of a million of them."""
    elements = bytes(2**19)
    tensor = {
        "name": "encoded_images",
        "datatype": "BYTES",
        "shape": [2],
        "parameters": {"binary_data_size": len(elements)},
    }
    header = json.dumps({"inputs": [tensor]}).encode()
    length = {"inference-header-content-length": str(len(header))}
    reply = limited.ask("POST", "/v2/models/pets/infer", header + elements, length)
    assert reply.status == 400
    assert reply.json()["error"] == "encoded_images must have 2 elements, got 3 or more"


def hold_slowly(address: str, count: int, seconds: float) -> list[bytes]:
    """Connections that send a byte of a request now and then; what they were told at the end."""
    heads = [
        b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\nx-slow: ",
        b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\n"
        b"content-length: 100000\r\n\r\n",
        b"",
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3 + b"GET ",
    ]
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(address))) for _ in range(count)]
        for number, client in enumerate(clients):
            client.sendall(heads[number % len(heads)])
        end, open_ones = time.monotonic() + seconds, list(clients)
        while open_ones and time.monotonic() < end:
            time.sleep(0.1)
            for client in list(open_ones):
                try:
                    client.sendall(b"a")
                except OSError:
                    open_ones.remove(client)
        assert not open_ones, f"{len(open_ones)} of {count} slow connections are still open"
        return [read_all(client) for client in clients]


def test_slow_connections_are_closed_while_others_are_served(limited: Running) -> None:
    with witness(limited.address) as other:
        hold_slowly(limited.address, 40, seconds=8)
    other.assert_served(within=WITHIN)


@slow
def test_200_slow_connections_are_closed_while_others_are_served(limited: Running) -> None:
    with witness(limited.address) as other:
        hold_slowly(limited.address, 200, seconds=20)
    other.assert_served(within=WITHIN)
    assert limited.service.budget.used == 0


@slow
def test_clients_that_read_no_answer_hold_nothing(limited: Running) -> None:
    """Many requests for large answers on connections whose window is closed."""
    request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with witness(limited.address) as other, ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(closing(socket.socket()))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            parts = urlsplit(limited.address)
            client.connect((parts.hostname, parts.port))
            client.sendall(request * 20)
        time.sleep(2)
    other.assert_served(within=2 * WITHIN)


# Names


TRAVERSALS = [
    "/../../../../etc/passwd",
    "/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/static/../../../../../../etc/passwd",
    "/static/..%5c..%5c..%5cetc%5cpasswd",
    "/app/%252e%252e/%252e%252e/etc/passwd",
    "/app//etc/passwd",
    "//etc/passwd",
    "/%00/etc/passwd",
    "/app/main.js%00.png",
    "/v1/data/..%2f..%2fetc%2fpasswd/image",
    "/v1/samples/..%2f..%2f..%2fetc%2fpasswd",
    "/v1/models/..%2f..%2fetc%2fpasswd",
    "/v2/models/..%2f..%2fetc%2fpasswd",
    "/v1/models?model=../../../etc/passwd",
    "/file:///etc/passwd",
]


def raw_get(address: str, path: str) -> bytes:
    """The path as it is: a client of the standard library would tidy it."""
    with closing(connect(address)) as client:
        client.sendall(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        )
        return read_all(client)


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_of_a_request_leads_to_a_file(service: Running, path: str) -> None:
    found = raw_get(service.address, path)
    assert SECRET not in found
    status = int(found.split()[1])
    assert status < 500
    assert status >= 400 or path.startswith("/v1/models?")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "pets\0", "a" * 5000, ""])
def test_no_name_of_a_request_leads_to_a_file(service: Running, name: str, tmp_path: Path) -> None:
    quoted = "".join(f"%{byte:02x}" for byte in name.encode())
    for path in ("/v1/predict", "/v1/embed", "/v1/inspect"):
        reply = service.form(f"{path}?model={quoted}", [png(1)])
        assert reply.status == 404 or (not name and reply.status in (200, 404))
        assert SECRET not in reply.body
    body = make_form([("images", png(1))])
    for header in (f'filename="{name[:200]}"', f"filename*=utf-8''{quoted[:200]}"):
        named = body.replace(b'filename="x"', header.replace("\0", "").encode())
        assert service.ask("POST", "/v1/predict", named, FORM).status in (200, 400)
    assert not list(tmp_path.iterdir())
    load = service.post_json(f"/v1/models/{quoted}", {"source": name})
    assert load.status in (401, 403, 404, 405, 422), load.body


# Addresses


SSRF = [
    "http://127.0.0.1:{port}/secret",
    "http://localhost:{port}/secret",
    "http://LOCALHOST:{port}/secret",
    "http://[::1]:{port}/secret",
    "http://[::ffff:127.0.0.1]:{port}/secret",
    "http://0.0.0.0:{port}/secret",
    "http://0:{port}/secret",
    "http://127.1:{port}/secret",
    "http://2130706433:{port}/secret",
    "http://0x7f000001:{port}/secret",
    "http://0177.0.0.1:{port}/secret",
    "http://127.0.0.1.nip.io:{port}/secret",
    "http://images.example.org@127.0.0.1:{port}/secret",
    "http://127.0.0.1:{port}#@images.example.org/secret",
    "http://images.example.org:{port}/secret",
    "http://images.example.org.:{port}/secret",
    "http://169.254.169.254/latest/meta-data/",
    "http://10.0.0.1/",
    "http://192.168.0.1/",
    "http://[fd00::1]/",
    "http://[64:ff9b::7f00:1]:{port}/secret",
    "https://127.0.0.1:{port}/secret",
    "HTTP://127.0.0.1:{port}/secret",
    "http:\\\\127.0.0.1:{port}\\secret",
    "http://127.0.0.1:{port}\r\nHost: images.example.org\r\n/secret",
    "gopher://127.0.0.1:{port}/_secret",
    "file:///etc/passwd",
    "ftp://127.0.0.1/secret",
    "data:image/png,secret",
]


def secret_image(asked: Asked) -> Answer:
    return Answer(png(7), headers={"Content-Type": "image/png"})


def assert_all_refused(service: Running, addresses: Sequence[str]) -> None:
    reply = service.post_json("/v1/predict", {"images": list(addresses)})
    assert reply.status == 200, reply.body
    rows = reply.json()["predictions"]
    assert len(rows) == len(addresses)
    for address, row in zip(addresses, rows, strict=True):
        assert set(row) == {"error"}, address
    for address in addresses[:3]:
        assert service.post_json("/v1/inspect", {"images": [address]}).status == 422


def test_addresses_are_refused_unless_a_host_was_named(service: Running) -> None:
    with scripted(secret_image) as (url, asked), witness(service.address) as other:
        port = urlsplit(url).port
        assert_all_refused(service, [one.replace("{port}", str(port)) for one in SSRF])
    assert not asked, "nobody was sent to the server on this machine"
    other.assert_served(within=WITHIN)


@pytest.fixture(scope="module")
def fetching(launcher: Launcher, checkpoints: Path) -> Iterator[Running]:
    """A service that may fetch images of one host."""
    hosts = ("images.example.org",)
    with running(launcher, str(checkpoints / "pets"), allow_host=hosts) as found:
        yield found


def resolving(addresses: dict[str, list[str]], asked: list[str]) -> Any:
    """A name server that says one address after another; the last one again and again."""
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name.rstrip(".") not in addresses:
            if name.endswith((".org", ".io")):
                raise socket.gaierror(socket.EAI_NONAME, "no such name")
            return real(host, port, *more, **options)
        asked.append(name)
        known = addresses[name.rstrip(".")]
        address = known[min(len(asked) - 1, len(known) - 1)]
        return real(address, port, *more, **options)

    return look_up


def test_private_addresses_are_refused_also_of_the_named_host(
    fetching: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(secret_image) as (url, asked), witness(fetching.address) as other:
        port = urlsplit(url).port
        names: list[str] = []
        monkeypatch.setattr(
            socket, "getaddrinfo", resolving({"images.example.org": ["127.0.0.1"]}, names)
        )
        assert_all_refused(fetching, [one.replace("{port}", str(port)) for one in SSRF])
    assert not asked
    other.assert_served(within=WITHIN)


def test_a_name_that_is_rebound_leads_nowhere_else(
    launcher: Launcher, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is public when it is checked and this machine when it is asked for again."""
    connected: list[tuple[str, int]] = []
    real = socket.create_connection

    def connect_to(place: tuple[str, int], *more: Any, **options: Any) -> socket.socket:
        if place[0] == "93.184.215.14":
            connected.append(place)
            raise OSError("there is no such network here")
        return real(place, *more, **options)

    with scripted(secret_image) as (url, asked):
        host = f"images.example.org:{urlsplit(url).port}"
        with running(launcher, str(checkpoints / "pets"), allow_host=(host,)) as service:
            names: list[str] = []
            answers = {"images.example.org": ["93.184.215.14", "127.0.0.1"]}
            monkeypatch.setattr(socket, "getaddrinfo", resolving(answers, names))
            monkeypatch.setattr(socket, "create_connection", connect_to)
            reply = service.post_json("/v1/predict", {"images": [f"http://{host}/secret"]})
    assert set(reply.json()["predictions"][0]) == {"error"}
    assert [place[0] for place in connected] == ["93.184.215.14"]
    assert not asked


def test_redirects_lead_nowhere_else(
    launcher: Launcher, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The named host, which may be on this machine here, sends on to others."""
    with scripted(secret_image) as (secret, asked):
        port = urlsplit(secret).port
        targets = [one.replace("{port}", str(port)) for one in SSRF if "\r" not in one]

        def redirect(request: Asked) -> Answer:
            if request.path == "/circle":
                return Answer(status=302, headers={"Location": "/circle"})
            target = targets[int(request.path.rpartition("/")[2])]
            return Answer(status=302, headers={"Location": target})

        monkeypatch.setenv(ALLOW_PRIVATE, "1")
        with scripted(redirect) as (url, sent):
            host = urlsplit(url).netloc
            with running(launcher, str(checkpoints / "pets"), allow_host=(host,)) as service:
                addresses = [f"{url}/{number}" for number in range(len(targets))]
                assert_all_refused(service, [*addresses, f"{url}/circle"])
            assert len(sent) >= len(addresses)
    assert not asked


@pytest.mark.slow
def test_a_slow_host_takes_no_more_time_than_a_request_has(
    launcher: Launcher, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that accepts and never says anything; others are served meanwhile."""
    monkeypatch.setenv(ALLOW_PRIVATE, "1")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        model = str(checkpoints / "pets")
        with running(launcher, model, allow_host=(host,), timeout=2.0) as service:
            statuses: list[int] = []

            def ask() -> None:
                values = {"images": [f"http://{host}/{number}" for number in range(8)]}
                statuses.append(service.post_json("/v1/predict", values).status)

            threads = [threading.Thread(target=ask) for _ in range(8)]
            began = time.monotonic()
            with witness(service.address) as other:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert time.monotonic() - began < 12
            assert set(statuses) <= {200, 504}
            other.assert_served(within=2.0)
