"""Processes that die, hang or are full: requests are answered all the same, or refused in time."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image

from tests.serving.running import BOUNDARY, Reply, Running, make_form, png, running
from vitrail.serving.launcher import Launcher
from vitrail.serving.pool import Pool


def pool_of(service: Running) -> Pool:
    pool = service.service.registry.models["pets"].pool
    assert pool is not None
    return pool


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


@pytest.fixture
def asking() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as found:
        yield found


@pytest.fixture
def pets(launcher: Launcher, checkpoints: Path) -> Iterator[Running]:
    with running(launcher, str(checkpoints / "pets"), queue=3, window=0, batch_size=2) as found:
        yield found


@contextmanager
def frozen(service: Running) -> Iterator[int]:
    """A process that does nothing inside the block, unless it was killed in it."""
    pid = pool_of(service).workers[0].child.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def predict(service: Running, seed: int, **headers: str) -> Reply:
    content = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return service.ask("POST", "/v1/predict", make_form([("images", png(seed))]), content | headers)


def start(asking: ThreadPoolExecutor, service: Running, count: int) -> "list[Future[Reply]]":
    return [asking.submit(predict, service, seed) for seed in range(count)]


def in_flight(service: Running) -> int:
    return pool_of(service).batcher.in_flight


def test_what_a_killed_process_had_is_answered_by_the_next(
    pets: Running, asking: ThreadPoolExecutor
) -> None:
    expected = [predict(pets, seed).body for seed in range(2)]
    with frozen(pets) as pid:
        replies = start(asking, pets, 2)
        wait_until(lambda: in_flight(pets) == 2)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        assert [one.result().body for one in replies] == expected
    assert time.monotonic() - began < 5
    assert pool_of(pets).is_ready
    assert pool_of(pets).workers[0].child.pid != pid


@pytest.mark.slow
def test_an_image_that_ends_every_process_is_answered_with_503(pets: Running) -> None:
    stream = BytesIO()
    Image.new("RGB", (6000, 6000)).save(stream, "JPEG")  # takes a while to decode
    done = threading.Event()

    def kill_busy() -> None:
        while not done.is_set():
            for worker in list(pool_of(pets).workers):
                if worker.batches:
                    worker.child.kill()
            time.sleep(0.001)

    killer = threading.Thread(target=kill_busy)
    killer.start()
    reply = pets.form("/v1/predict", [stream.getvalue()])
    done.set()
    killer.join()
    assert reply.status == 503
    assert "retry-after" in reply.headers
    wait_until(lambda: pool_of(pets).is_ready)
    assert predict(pets, 1).status == 200


def test_a_process_that_hangs_is_replaced(pets: Running, asking: ThreadPoolExecutor) -> None:
    pool_of(pets).hang_seconds = 0.2
    with frozen(pets) as pid:
        (reply,) = start(asking, pets, 1)
        assert reply.result().status == 200
        assert pool_of(pets).workers[0].child.pid != pid


def test_a_full_queue_refuses_quickly_and_says_when_to_come_again(
    pets: Running, asking: ThreadPoolExecutor
) -> None:
    with frozen(pets):
        taken = start(asking, pets, 7)  # two slots with two images each, and three that wait
        wait_until(lambda: in_flight(pets) + pool_of(pets).batcher.count >= 5)
        wait_until(lambda: pool_of(pets).batcher.is_full)
        began = time.monotonic()
        refused = predict(pets, 99)
        assert time.monotonic() - began < 0.5
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        several = pets.form("/v1/predict", [png(1)] * 4)
        assert several.status == 429
    statuses = [one.result().status for one in taken]
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 5
    assert predict(pets, 99).status == 200


def test_a_deadline_ends_a_request_with_504(pets: Running) -> None:
    with frozen(pets):
        began = time.monotonic()
        reply = predict(pets, 1, **{"x-timeout": "0.2"})
        assert reply.status == 504
        assert time.monotonic() - began < 2
    assert predict(pets, 1).status == 200


def test_an_image_whose_client_has_left_is_not_computed(
    pets: Running, asking: ThreadPoolExecutor
) -> None:
    batcher = pool_of(pets).batcher
    with frozen(pets):
        taken = start(asking, pets, 4)
        wait_until(lambda: pool_of(pets).free == 0 and in_flight(pets) + batcher.count == 4)
        waiting = batcher.count
        body = make_form([("images", png(77))])
        head = (
            f"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
            f"content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
        )
        host, port = urlsplit(pets.address).netloc.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(head.encode() + body)
            wait_until(lambda: batcher.count == waiting + 1)
        wait_until(lambda: batcher.count == waiting)
    assert all(one.result().status == 200 for one in taken)


def test_requests_that_were_accepted_are_answered_when_the_service_ends(
    launcher: Launcher, checkpoints: Path, asking: ThreadPoolExecutor
) -> None:
    with running(launcher, str(checkpoints / "pets"), window=0) as service, frozen(service):
        replies = start(asking, service, 4)
        wait_until(lambda: in_flight(service) + pool_of(service).batcher.count == 4)
        service.stop()
        wait_until(lambda: service.service.draining)
        assert not service.service.is_ready
        threading.Timer(
            0.3, os.kill, (pool_of(service).workers[0].child.pid, signal.SIGCONT)
        ).start()
        found = [one.result() for one in replies]
    assert [one.status for one in found] == [200] * 4
    assert all(one.headers["connection"] == "close" for one in found)


def test_a_model_that_cannot_be_loaded_ends_the_start(launcher: Launcher, tmp_path: Path) -> None:
    from vitrail.core.errors import UserError

    with pytest.raises(UserError, match="nothing"), running(launcher, str(tmp_path / "nothing")):
        pass
    with pytest.raises(UserError, match="untrained"), running(launcher, "vit_ti_16"):
        pass


@pytest.mark.slow
def test_fifty_kills_leave_the_service_ready(launcher: Launcher, checkpoints: Path) -> None:
    slowest = 0.0
    with running(launcher, str(checkpoints / "pets"), window=0) as service:
        for seed in range(50):
            os.kill(pool_of(service).workers[0].child.pid, signal.SIGKILL)
            began = time.monotonic()
            wait_until(lambda: not pool_of(service).is_ready, 1)
            wait_until(lambda: pool_of(service).is_ready)
            slowest = max(slowest, time.monotonic() - began)
            assert predict(service, seed).status == 200
    assert slowest < 5
