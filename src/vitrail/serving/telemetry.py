"""Traces by OpenTelemetry, only where they are wanted: a span for every request."""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from vitrail.core.errors import UserError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

NEEDS = "telemetry needs {}, which is not installed: pip install {}"
EXTRA = "'vitrail[telemetry]'"
EXPORTER = "OTEL_TRACES_EXPORTER"  # "console" prints spans, anything else sends them by OTLP
QUIET = "healthz,v2/health/.*,metrics"  # probes come every second


def with_telemetry(app: ASGIApp) -> ASGIApp:
    """The application with a span for each request. Where no provider of spans is set up, one is,
    as the OTEL_ environment variables say."""
    try:
        from opentelemetry import trace
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
        from opentelemetry.util.http import parse_excluded_urls
    except ImportError as error:
        raise UserError(NEEDS.format(error.name, EXTRA)) from None
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        exporter: SpanExporter
        if os.environ.get(EXPORTER) == "console":
            exporter = ConsoleSpanExporter()
        else:
            exporter = otlp_exporter()
        provider = TracerProvider()  # its resource is that of OTEL_SERVICE_NAME
        provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
    return OpenTelemetryMiddleware(app, excluded_urls=parse_excluded_urls(QUIET))


def otlp_exporter() -> "SpanExporter":
    """To OTEL_EXPORTER_OTLP_ENDPOINT, by HTTP."""
    name = "opentelemetry-exporter-otlp-proto-http"
    try:
        module = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise UserError(
            f"{NEEDS.format(name, EXTRA)}, or set {EXPORTER}=console to print spans"
        ) from None
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter
