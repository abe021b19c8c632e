"""What is refused by the head of a request: nothing of its body is read, and nothing computed."""

import asyncio
import json
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from vitrail.serving.batcher import Batcher, Rules
from vitrail.serving.guard import Guard
from vitrail.serving.inspection import MAX_WAITING, Inspection, Operation
from vitrail.serving.registry import Served
from vitrail.serving.service import Service
from vitrail.serving.settings import Settings, parse_source


class NoSlots:
    total, free = 1, 0

    def send(self, batch: Any) -> None:
        raise AssertionError


async def ask_full(path: str, query: bytes = b"") -> tuple[int, dict[str, str], Any]:
    """POST to a service whose queues are full; reading the body, or reaching a route, fails."""
    pets = parse_source("pets=nowhere")
    launcher: Any = SimpleNamespace(close=lambda: None)
    service = Service(Settings(models=(pets,)), launcher)
    batcher = Batcher(Rules(queue=4), NoSlots())
    batcher.count = 4
    inspection: Any = Inspection.__new__(Inspection)
    inspection.waiting = deque(Operation({}, []) for _ in range(MAX_WAITING))
    pool: Any = SimpleNamespace(batcher=batcher, inspection=inspection, info=None)
    service.registry.models["pets"] = Served("pets", pets, pool, "ready")
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body is read")

    async def route(*_: Any) -> None:
        sent.append({"type": "http.response.start", "status": 200, "headers": []})
        sent.append({"body": b"{}"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": query,
        "headers": [(b"host", b"localhost"), (b"content-length", b"9000")],
    }  # fmt: skip
    await Guard(route, service, {})(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v1/predict", "4 images wait already, the limit is 4"),
        ("/v1/embed", "4 images wait already, the limit is 4"),
        ("/v2/models/pets/infer", "4 images wait already, the limit is 4"),
        ("/v2/models/pets/versions/1/infer", "4 images wait already, the limit is 4"),
        ("/v1/explain", f"{MAX_WAITING} operations wait already"),
        ("/v1/inspect", f"{MAX_WAITING} operations wait already"),
        ("/v1/search", f"{MAX_WAITING} operations wait already"),
    ],
)
def test_a_full_queue_is_told_before_the_body_is_read(path: str, sentence: str) -> None:
    status, headers, body = asyncio.run(ask_full(path))
    assert (status, body["error"]) == (429, sentence)
    assert int(headers["retry-after"]) >= 1


def test_who_asks_for_another_model_is_told_by_the_route() -> None:
    assert asyncio.run(ask_full("/v1/predict", b"model=none"))[0] == 200
    assert asyncio.run(ask_full("/v2/models/none/infer"))[0] == 200
    assert asyncio.run(ask_full("/v1/predict", b"model=pets&top=1"))[0] == 429
