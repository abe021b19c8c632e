"""Spans of requests, where they are wanted."""

import asyncio
import gzip
import signal
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serving.test_service_command import address_of, command
from vitrail.core.errors import UserError
from vitrail.serving.telemetry import otlp_exporter, with_telemetry

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs vitrail[telemetry]")


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def ask(wrapped: Any, path: str) -> None:
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": [],
        "query_string": b"", "scheme": "http", "server": ("localhost", 80), "http_version": "1.1",
        "asgi": {"version": "3.0"}, "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Any) -> None:
        return None

    asyncio.run(wrapped(scope, receive, send))


def test_a_request_is_a_span_and_a_probe_is_none() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    wrapped = with_telemetry(app)
    ask(wrapped, "/v2/health/ready")
    assert exporter.get_finished_spans() == ()
    ask(wrapped, "/v1/models")
    assert any("GET" in span.name for span in exporter.get_finished_spans())


class Collector(ThreadingHTTPServer):
    """A collector of OTLP on a free port of this machine: the spans that arrived."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Any] = []
        self.services: set[str] = set()


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        for resource in trace_service_pb2.ExportTraceServiceRequest.FromString(body).resource_spans:
            facts = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.server.services.add(facts["service.name"])
            self.server.spans += [one for scope in resource.scope_spans for one in scope.spans]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


def test_spans_arrive_at_a_collector(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    place = f"http://127.0.0.1:{collector.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", place)
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(otlp_exporter()))
    with provider.get_tracer("test").start_as_current_span("POST /v1/predict"):
        pass
    provider.shutdown()
    assert [span.name for span in collector.spans] == ["POST /v1/predict"]


@pytest.mark.slow
def test_the_service_sends_a_span_of_each_request(
    collector: Collector, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, also the last ones before it ends; probes have none."""
    place = f"http://127.0.0.1:{collector.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", place)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "pets")
    with command(str(checkpoints / "pets"), "--json", "--telemetry") as process:
        address = address_of(process)
        for path in ("/v1/models", "/healthz", "/v1/models/pets"):
            with urllib.request.urlopen(f"{address}{path}", timeout=30) as reply:
                assert reply.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert collector.services == {"pets"}
    requests = [span for span in collector.spans if span.name.startswith("GET")]
    targets = [
        one.value.string_value
        for span in requests
        for one in span.attributes
        if one.key in ("http.target", "url.path")
    ]
    assert set(targets) == {"/v1/models", "/v1/models/pets"}
    of_requests = [span for span in requests if not span.parent_span_id]
    assert len(of_requests) == 2


def test_a_missing_exporter_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UserError, match="OTEL_TRACES_EXPORTER=console") as error:
        otlp_exporter()
    assert "pip install 'vitrail[telemetry]'" in str(error.value)
