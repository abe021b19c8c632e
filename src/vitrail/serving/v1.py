"""Routes under /v1: predictions, embeddings, search, models, and the operations of the page."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vitrail.core.ranges import check_count
from vitrail.core.records import validate
from vitrail.serving import schemas
from vitrail.serving.batcher import Answer
from vitrail.serving.bodies import Given, query_options, read_object, reading
from vitrail.serving.inspection import BadImageGiven
from vitrail.serving.operations import OPERATIONS, Operation
from vitrail.serving.pool import Pool
from vitrail.serving.problems import Forbidden, Invalid
from vitrail.serving.responses import JSON, json_response
from vitrail.serving.service import Service
from vitrail.serving.settings import NAME
from vitrail.serving.spec import MAX_TOP, ModelInfo

MAX_MATCHES = 200
OF_EVERY_MODEL = ("samples", "sample")  # operations that do not look into it: exported files too
MAX_BODY = 2**16  # bytes of a request about models
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """How many classes of each image to return."""

    top: int = 5

    def __post_init__(self) -> None:
        check_count("top", self.top, at_least=1, at_most=MAX_TOP)


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """There are none yet."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How many images to find."""

    k: int = 10

    def __post_init__(self) -> None:
        check_count("k", self.k, at_least=1, at_most=MAX_MATCHES)


def busy_routes(service: Service) -> dict[tuple[str, str], Handler]:
    """Those that are called thousands of times a minute, by method and path: `Guard` calls them
    itself. The router has them too, for /openapi.json."""
    return {
        ("POST", "/v1/predict"): predict_route(service),
        ("POST", "/v1/embed"): embed_route(service),
    }


def make_router(service: Service) -> APIRouter:
    """All routes of a service."""
    router = APIRouter(prefix="/v1")
    routes: list[tuple[str, str, Handler, dict[str, Any]]] = [
        ("POST", "/predict", predict_route(service), schemas.PREDICT),
        ("POST", "/embed", embed_route(service), schemas.EMBED),
        ("POST", "/search", search_route(service), schemas.SEARCH),
        ("GET", "/models", models_route(service), schemas.MODELS),
        ("GET", "/models/{name}", model_route(service), schemas.ONE_MODEL),
        ("POST", "/models/{name}", load_route(service), schemas.LOAD),
        ("DELETE", "/models/{name}", unload_route(service), schemas.UNLOAD),
    ]
    for operation in OPERATIONS.values():
        method = "POST" if operation.needs_image else "GET"
        make = explain_route if operation.name == "explain" else operation_route
        route = make(service, operation)
        path, schema = f"/{operation.path}", schemas.operation_schema(operation)
        routes.append((method, path, route, schema))
    for method, path, handler, schema in routes:
        router.add_api_route(path, handler, methods=[method], **schema)
    return router


def predict_route(service: Service) -> Handler:
    async def predict(request: Request) -> Response:
        deadline = service.deadline(request)
        name, pool = model_of(service, request)
        with pool.in_use():
            assert pool.info is not None
            info = pool.info
            if not info.classes:
                raise Invalid(f"the model {name} has no head: it gives vectors, see /v1/embed")
            async with reading(request, service.settings.limits, service.budget) as upload:
                options = validate(PredictOptions, upload.options, where="predict")
                need_images(upload.images)
                answers = await service.compute(request, pool, "scores", upload.images, deadline)
        found = [prediction_of(one, info, options.top) for one in answers]
        return json_response({"model": name, "predictions": found})

    return predict


def embed_route(service: Service) -> Handler:
    async def embed(request: Request) -> Response:
        deadline = service.deadline(request)
        name, pool = model_of(service, request)
        with pool.in_use():
            assert pool.info is not None
            if not pool.info.features:
                raise Invalid(f"the model {name} is an exported file without features")
            async with reading(request, service.settings.limits, service.budget) as upload:
                validate(EmbedOptions, upload.options, where="embed")
                need_images(upload.images)
                answers = await service.compute(request, pool, "features", upload.images, deadline)
        found = [{"error": one} if isinstance(one, str) else one.tolist() for one in answers]
        return json_response({"model": name, "vectors": found})

    return embed


def search_route(service: Service) -> Handler:
    async def search(request: Request) -> Response:
        deadline = service.deadline(request)
        name, pool = model_of(service, request, inside=True)
        if not service.settings.data:
            raise Invalid("search needs images to search in: start the service with data=DIR")
        with pool.in_use():
            async with reading(request, service.settings.limits, service.budget) as upload:
                options = validate(SearchOptions, upload.options, where="search")
                need_images(upload.images)
                images = await service.open_images(upload.images, deadline)
                ask = partial(inspect_each, service, request, pool, images, deadline)
                found = await ask("search", {"k": options.k})
        return list_response(name, "matches", found)

    return search


def explain_route(service: Service, operation: Operation) -> Handler:
    async def explain(request: Request) -> Response:
        deadline = service.deadline(request)
        name, pool = model_of(service, request, inside=True)
        with pool.in_use():
            async with reading(request, service.settings.limits, service.budget) as upload:
                operation.read_options(upload.options)
                need_images(upload.images)
                images = await service.open_images(upload.images, deadline)
                ask = partial(inspect_each, service, request, pool, images, deadline)
                found = await ask(operation.name, upload.options)
        return list_response(name, "explanations", found)

    return explain


async def inspect_each(
    service: Service,
    request: Request,
    pool: Pool,
    images: Sequence[Given],
    deadline: float,
    operation: str,
    options: Mapping[str, Any],
) -> list[bytes]:
    """An operation on one image after the other: JSON of its result, or of its problem."""
    found = []
    for image in images:
        problem = image.problem
        if problem is None:
            running = pool.inspection.run(operation, options, image.data, gzip=False)
            try:
                found.append(bytes((await service.run(request, running, deadline)).content))
            except BadImageGiven as error:
                problem = str(error)
        if problem is not None:
            found.append(json.dumps({"error": problem}).encode())
    return found


def list_response(model: str, name: str, found: Sequence[bytes]) -> Response:
    """A list whose elements are JSON already."""
    start = json.dumps({"model": model, name: []}).encode().removesuffix(b"]}")
    return Response(start + b", ".join(found) + b"]}", media_type=JSON)


def operation_route(service: Service, operation: Operation) -> Handler:
    async def run_operation(request: Request) -> Response:
        deadline = service.deadline(request)
        _, pool = model_of(service, request, inside=operation.name not in OF_EVERY_MODEL)
        run = partial(run_one, service, request, pool, deadline)
        with pool.in_use():
            if operation.needs_image:
                async with reading(request, service.settings.limits, service.budget) as upload:
                    options = upload.options
                    operation.read_options(options)
                    (image,) = await service.open_images([upload.only_image()], deadline)
                    if image.problem is not None:
                        raise Invalid(image.problem)
                    return await run(operation, options, image.data)
            options = query_options({**request.query_params, **request.path_params})
            operation.read_options(options)
            return await run(operation, options, None)

    return run_operation


async def run_one(
    service: Service,
    request: Request,
    pool: Pool,
    deadline: float,
    operation: Operation,
    options: Mapping[str, Any],
    image: bytes | None,
) -> Response:
    gzip = "gzip" in request.headers.get("accept-encoding", "")
    running = pool.inspection.run(operation.name, options, image, gzip=gzip)
    rendered = await service.run(request, running, deadline)
    headers = {"vary": "accept-encoding"}
    if rendered.encoding:
        headers["content-encoding"] = rendered.encoding
    return Response(bytes(rendered.content), headers=headers, media_type=rendered.media)


def models_route(service: Service) -> Handler:
    async def list_models(request: Request) -> Response:
        return json_response({"models": [one.facts() for one in service.registry.models.values()]})

    return list_models


def model_route(service: Service) -> Handler:
    async def describe_model(request: Request) -> Response:
        served = service.registry.find(request.path_params["name"])
        info = service.registry.pool_of(served.name).info
        assert info is not None
        return json_response({**served.facts(), "passport": info.passport})

    return describe_model


def load_route(service: Service) -> Handler:
    async def load_model(request: Request) -> Response:
        require_admin(request)
        name = request.path_params["name"]
        if not NAME.fullmatch(name):
            raise Invalid(
                f"the name of a model has letters, digits, '.', '_' and '-', got {name!r}"
            )
        values = read_object(await small_body(request), "the body")
        source = values.get("source")
        if set(values) != {"source"} or not isinstance(source, str):
            raise Invalid(
                'the body must be {"source": NAME}, with a NAME that was given at the start'
            )
        await service.registry.load(name, source)
        return json_response(service.registry.models[name].facts())

    return load_model


def unload_route(service: Service) -> Handler:
    async def unload_model(request: Request) -> Response:
        require_admin(request)
        service.registry.unload(request.path_params["name"])
        return json_response({"unloaded": request.path_params["name"]})

    return unload_model


async def small_body(request: Request) -> bytes:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise Invalid(f"the body may have {MAX_BODY} bytes")
    return data


def require_admin(request: Request) -> None:
    """The role was found out before the route; without keys nobody is an admin."""
    if request.scope.get("vitrail.role") != "admin":
        raise Forbidden("models are changed with the key of an admin (--api-key-file FILE)")


def model_of(service: Service, request: Request, *, inside: bool = False) -> tuple[str, Pool]:
    """The model of a request; `inside`: one that can be looked into."""
    served = service.registry.find(request.query_params.get("model"))
    pool = service.registry.pool_of(served.name)
    if inside and pool.info is not None and not pool.info.can_inspect:
        raise Invalid(f"the model {served.name} is an exported file: this needs its checkpoint")
    return served.name, pool


def need_images(images: list[Given]) -> None:
    if not images:
        raise Invalid("at least one image is needed in the field images, got none")


def prediction_of(answer: Answer, info: ModelInfo, top: int) -> dict[str, Any]:
    """The best classes of an image, from their numbers and scores."""
    if isinstance(answer, str):
        return {"error": answer}
    indices, scores = answer[:, :top].tolist()
    found = [
        {"label": info.label(int(index)), "score": score}
        for index, score in zip(indices, scores, strict=True)
    ]
    return {**found[0], "top": found}
