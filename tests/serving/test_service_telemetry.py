"""Spans of requests, where they are wanted."""

import asyncio
from typing import Any

import pytest

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


def test_a_missing_exporter_is_one_sentence() -> None:
    try:
        import opentelemetry.exporter.otlp.proto.http  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="OTEL_TRACES_EXPORTER=console"):
            otlp_exporter()
    else:
        assert otlp_exporter() is not None
