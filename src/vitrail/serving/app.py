"""The application: routes, errors as JSON, and the page."""

from importlib.metadata import version

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from vitrail.core.errors import UserError
from vitrail.serving import v1
from vitrail.serving.guard import Guard, problem_body
from vitrail.serving.page import find_page
from vitrail.serving.problems import Problem
from vitrail.serving.service import ClientLeft, Service

LEFT = 499  # of a client that reads no answer
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
    )
    app.include_router(v1.make_router(service))
    add_errors(app)
    add_health(app, service)
    add_page(app)
    return Guard(app, service)


def problem_response(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return Response(
        problem_body(sentence, status), status, headers=headers, media_type="application/json"
    )


def add_errors(app: FastAPI) -> None:
    """Every error is one JSON object."""

    @app.exception_handler(Problem)
    async def on_problem(_: Request, problem: Problem) -> Response:
        return problem_response(problem.status, str(problem), problem.headers)

    @app.exception_handler(UserError)
    async def on_user_error(_: Request, error: UserError) -> Response:
        return problem_response(422, str(error))

    @app.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> Response:
        return problem_response(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(ClientLeft)
    async def on_left(_: Request, __: ClientLeft) -> Response:
        return Response(status_code=LEFT)

    @app.exception_handler(ClientDisconnect)
    async def on_disconnect(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=LEFT)

    @app.exception_handler(Exception)
    async def on_bug(_: Request, __: Exception) -> Response:
        return problem_response(500, "the service failed: its log says why")


def add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", summary="Whether all models are ready")
    async def healthz() -> Response:
        state = "ready" if service.is_ready else "draining" if service.draining else "loading"
        return v1.json_response({"state": state}, 200 if service.is_ready else 503)

    @app.get("/metrics", summary="Counters and times, as Prometheus reads them")
    async def metrics() -> Response:
        for name, served in service.registry.models.items():
            if served.pool is not None:
                service.metrics.waiting.labels(name).set(served.pool.batcher.count)
                service.metrics.shared.labels(name).set(served.pool.batcher.shared)
        service.metrics.body_bytes.set(service.budget.used)
        content, media = service.metrics.text()
        return Response(content, media_type=media)


def add_page(app: FastAPI) -> None:
    @app.get("/{path:path}", include_in_schema=False)
    async def page(request: Request) -> Response:
        found = find_page(request.url.path)
        if found is None:
            return problem_response(404, "there is nothing under this address")
        headers = {"etag": found.tag, "cache-control": CACHE}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media)
