"""The service under load, in short: what benchmarks/serve.py does for longer. The default tests are
of the load itself: it must notice what it is there to find."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import numpy as np
import pytest
from benchmarks.load.http import Connection, Lost, Reply, make_request, predict_request
from benchmarks.load.photos import Known, known_answers, photos, write_small_model
from benchmarks.load.processes import Running, service
from benchmarks.load.scenarios import (
    Checked,
    check_answers,
    count_wrong,
    end_under_load,
    kill_workers,
    measure,
    overload,
    run,
)

from tests.inference.scripted_service import Answer, Asked, json_answer, scripted
from tests.serving.running import Running as RunningHere
from tests.serving.running import running as running_here
from vitrail.serving.launcher import Launcher

slow = pytest.mark.slow


def answer_of(known: Known, place: int) -> dict[str, object]:
    rows = zip(known.labels, known.scores[place], strict=True)
    top = sorted(({"label": a, "score": float(b)} for a, b in rows), key=lambda one: -one["score"])  # type: ignore[operator]
    return {**top[0], "top": top}


def reply_with(rows: list[dict[str, object]]) -> Reply:
    return Reply(200, {}, json.dumps({"predictions": rows}).encode(), 0.1)


@pytest.fixture
def three() -> Known:
    scores = np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.2, 0.2, 0.6]])
    return Known([b"a", b"b", b"c"], ["x", "y", "z"], scores)


def test_answers_of_other_images_and_of_too_few_are_noticed(three: Known) -> None:
    right = [answer_of(three, 0), answer_of(three, 2)]
    for wanted, rows, mixed_up in (
        ([0, 2], right, 0),
        ([2, 0], right, 2),
        ([0, 1], right, 1),
        ([0, 2, 2], right, 1),
    ):
        load = Checked()
        count_wrong(load, three, wanted, reply_with(rows))
        assert (load.mixed_up, load.inexact) == (mixed_up, 0)
    load, near = Checked(), Known(three.images, three.labels, three.scores + 0.01)
    count_wrong(load, near, [0, 2], reply_with(right))
    assert (load.mixed_up, load.inexact) == (0, 2)


def test_a_response_that_never_comes_and_one_that_nobody_asked_for_are_noticed() -> None:
    def answer(asked: Asked) -> Answer:
        if asked.path == "/twice":
            extra = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
            return Answer(b"{}" + extra, headers={"Content-Length": "2"})
        return json_answer({}) if asked.path == "/once" else Answer(status=200, close=True)

    async def ask(url: str) -> tuple[int, int]:
        once, twice = Connection(url), Connection(url)
        assert (await once.ask(make_request("GET", "/once"))).status == 200
        await twice.ask(make_request("GET", "/twice"))
        return await once.left_over(), await twice.left_over()

    async def cut(url: str) -> None:
        await Connection(url).ask(b"GET /x HTTP/1.1\r\nContent-Length: 1000\r\n\r\n", timeout=0.2)

    with scripted(answer) as (url, _):
        assert run(ask(url)) == (0, 40)
        with pytest.raises(Lost):
            run(cut(url))


# With the real service


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("load"))


@pytest.fixture(scope="module")
def running(small: Path) -> Iterator[Running]:
    with service(f"small={small}", "--engine=eager", "--threads=1", "--queue=1024") as one:
        yield one


@slow
def test_64_clients_get_their_own_answers_and_all_of_them(small: Path, running: Running) -> None:
    known = known_answers(small, 300)
    load = check_answers(running.url, known, clients=64, seconds=5)
    assert not load.lost
    assert set(load.statuses) == {200}
    assert (load.mixed_up, load.inexact, load.unasked_bytes) == (0, 0, 0)
    assert load.images > 500


@slow
def test_overload_is_refused_at_once_and_memory_stays(tmp_path: Path) -> None:
    """The model takes so long that ten times as much is little for the client."""
    requests = [predict_request([one]) for one in photos(16)]
    options = ("vit_ti_16", "--untrained", "--engine=eager", "--threads=1", "--window=0")
    with service(*options, "--queue=16", "--timeout=10") as one:
        capacity = measure(one, requests, clients=8, seconds=2, warm_up=1).speed
        load = overload(one, requests, capacity=capacity, times=10, seconds=8)
    assert not load.lost
    assert set(load.statuses) <= {200, 429, 504}
    assert load.statuses[429] > load.statuses[200]
    assert load.refusal_p99 < 150, "three times the goal: the machine may be busy"
    assert load.growth < 1.15


@slow
def test_what_was_accepted_is_answered_after_sigterm(small: Path) -> None:
    requests = [predict_request([one]) for one in known_answers(small, 32).images]
    for keep in (True, False, False):
        with service(f"small={small}", "--engine=eager", "--threads=1", "--window=0") as one:
            load = end_under_load(one, requests, clients=16, after=0.5, keep=keep)
        assert not load.lost
        assert load.code == 0
        assert load.statuses[200] > 0
        assert set(load.statuses) <= {200, 503}


@slow
def test_connections_in_the_kernel_s_queue_are_answered_too(
    launcher: Launcher, small: Path
) -> None:
    """Before they were taken, two of three ends reset one."""
    for _ in range(6):
        with running_here(launcher, str(small), drain_seconds=0.1) as one:
            found: list[str] = []
            clients = [Thread(target=ask_until_refused, args=(one, found)) for _ in range(12)]
            for client in clients:
                client.start()
            time.sleep(0.3)
            one.stop()
            for client in clients:
                client.join()
        assert found.count("200") > 12
        assert set(found) == {"200"}


def ask_until_refused(one: RunningHere, found: list[str]) -> None:
    """Each request on a connection of its own, until nobody takes one."""
    request = make_request("GET", "/v1/models", Connection="close")
    place = urlsplit(one.address)
    while True:
        try:
            client = socket.create_connection((place.hostname, place.port), timeout=30)
        except OSError:
            return
        with client:
            try:
                client.sendall(request)
                found.append(client.recv(65536)[9:12].decode())
                while client.recv(65536):
                    pass
            except OSError as error:
                found.append(repr(error))


@slow
def test_a_killed_process_is_replaced(small: Path) -> None:
    requests = [predict_request([one]) for one in known_answers(small, 32).images]
    with service(f"small={small}", "--engine=eager", "--threads=1", "--window=0") as one:
        load = kill_workers(one, requests, kills=3, clients=4)
        assert one.is_ready()
    assert not load.lost
    assert set(load.statuses) <= {200, 503}
    assert max(load.until_ready) < 15, "three times the goal: the machine may be busy"
