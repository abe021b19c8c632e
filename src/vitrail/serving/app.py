"""The application: routes, errors as JSON, and the page."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from vitrail.serving import schemas, v1, v2
from vitrail.serving.errors import EXPECTED, error_response
from vitrail.serving.guard import Guard
from vitrail.serving.page import find_page
from vitrail.serving.responses import json_response, problem_response
from vitrail.serving.service import Service
from vitrail.serving.telemetry import with_telemetry

# newer versions of FastAPI would make a second span of each request, and some of probes
OWN_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False}
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
CACHE = "no-cache"  # asked again each time, and answered with 304 where nothing has changed


def create_app(service: Service) -> ASGIApp:
    """Everything that answers requests."""
    app = FastAPI(
        title="Vitrail",
        version=version("vitrail"),
        description="Vision transformers: predictions, embeddings, and a look inside.",
        docs_url=None,  # its page would load a library from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        telemetry=OWN_TELEMETRY,
    )
    app.include_router(v1.make_router(service))
    app.include_router(v2.make_router(service))
    add_errors(app)
    add_health(app, service)
    add_page(app, service)
    guarded = Guard(app, service, v1.busy_routes(service))
    return with_telemetry(guarded) if service.settings.telemetry else guarded


def add_errors(app: FastAPI) -> None:
    """Every error is one JSON object."""

    async def on_error(_: Request, error: Exception) -> Response:
        return error_response(error)

    for kind in (*EXPECTED, Exception):
        app.add_exception_handler(kind, on_error)


def add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", **schemas.READY)
    async def healthz() -> Response:
        state = "ready" if service.is_ready else "draining" if service.draining else "loading"
        if not service.registry.models and not service.draining:
            state = "no model"
        return json_response({"state": state}, 200 if service.is_ready else 503)

    @app.get("/metrics", **schemas.METRICS)
    async def metrics() -> Response:
        service.metrics.forget_models()
        for name, served in service.registry.models.items():
            if (pool := served.pool) is not None:
                service.metrics.set_model(
                    name,
                    waiting=pool.batcher.count,
                    shared=pool.batcher.shared,
                    workers=len(pool.workers),
                )
        service.metrics.body_bytes.set(service.budget.used)
        service.metrics.connections.set(service.count_connections())
        content, media = service.metrics.text()
        return Response(content, media_type=media)


def not_there(app: FastAPI, request: Request) -> Response:
    """Why no route answers: it takes other methods, or there is none."""
    others = app.router.routes[:-1]  # the last one takes everything

    def is_taken(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in others)

    taken = [method for method in METHODS if is_taken(method)]
    if not taken:
        return problem_response(404, "there is nothing under this address: see /openapi.json")
    allowed = ", ".join(taken)
    sentence = f"this address takes {allowed}, got {request.method}"
    return problem_response(405, sentence, {"allow": allowed})


def add_page(app: FastAPI, service: Service) -> None:
    @app.api_route("/{path:path}", methods=METHODS, include_in_schema=False)
    async def page(request: Request) -> Response:
        found = find_page(request.url.path) if request.method in ("GET", "HEAD") else None
        if found is None:
            return not_there(app, request)
        if request.url.path == "/":
            service.warm_up()  # whoever opens the page will soon look inside a model
        headers = {"etag": found.tag, "cache-control": CACHE}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media)
