"""Routes under /v2: the Open Inference Protocol, as KServe and Triton speak it."""

import asyncio
from importlib.metadata import version

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from vitrail.serving import schemas
from vitrail.serving.batcher import Task
from vitrail.serving.bodies import Body, check_encoding
from vitrail.serving.pool import Pool
from vitrail.serving.problems import BadRequest, NotFound
from vitrail.serving.responses import json_response
from vitrail.serving.service import Service, digest_of
from vitrail.serving.spec import ModelInfo
from vitrail.serving.tensors import (
    IMAGES,
    LENGTH_HEADER,
    OUTPUTS,
    InferRequest,
    output_shapes,
    parse_infer,
    render_infer,
)

VERSION = "1"  # of every model: a name has one at a time
LARGE = 2**18  # bytes: read in a thread


def make_router(service: Service) -> APIRouter:
    """All routes of the protocol."""
    router = APIRouter(prefix="/v2")
    add_server_routes(router, service)
    add_model_routes(router, service)
    return router


def add_server_routes(router: APIRouter, service: Service) -> None:
    @router.get("/health/live", summary="Whether the service runs")
    async def live() -> Response:
        return json_response({"live": True})

    @router.get("/health/ready", **schemas.READY)
    async def ready() -> Response:
        return json_response({"ready": service.is_ready}, 200 if service.is_ready else 503)

    @router.get("", summary="The service and its extensions of the protocol")
    async def server() -> Response:
        facts = {"name": "vitrail", "version": version("vitrail")}
        return json_response({**facts, "extensions": ["binary_tensor_data"]})


def add_model_routes(router: APIRouter, service: Service) -> None:
    async def ready(request: Request) -> Response:
        _, pool = find_model(service, request)
        return json_response({"ready": pool.is_ready}, 200 if pool.is_ready else 503)

    async def metadata(request: Request) -> Response:
        name, pool = find_model(service, request)
        assert pool.info is not None
        return json_response(describe(name, pool.info))

    async def infer(request: Request) -> Response:
        deadline = service.deadline(request)
        name, pool = find_model(service, request)
        check_encoding(request)
        with pool.in_use():
            assert pool.info is not None
            pool.batcher.check_room(1)
            body = Body(request, service.settings.limits, service.budget)
            try:
                content = await body.read()
                parsed = await read_request(request, content, pool.info, service)
                values = {
                    one.name: await compute(service, request, pool, parsed, one.name, deadline)
                    for one in parsed.outputs
                }
            finally:
                body.close()
        parts, length = render_infer(name, parsed, values)
        headers = {} if length is None else {LENGTH_HEADER: str(length)}
        media = "application/json" if length is None else "application/octet-stream"
        return Response(b"".join(parts), headers=headers, media_type=media)

    for prefix in ("/models/{name}", "/models/{name}/versions/{version}"):
        for path, handler, method, schema in (
            (f"{prefix}/ready", ready, "GET", schemas.MODEL_READY),
            (prefix, metadata, "GET", schemas.MODEL_METADATA),
            (f"{prefix}/infer", infer, "POST", schemas.INFER),
        ):
            described = schemas.with_path(schema, path)
            router.add_api_route(path, handler, methods=[method], **described)


def find_model(service: Service, request: Request) -> tuple[str, Pool]:
    name, version = request.path_params["name"], request.path_params.get("version", VERSION)
    if version != VERSION:
        raise NotFound(f"the model {name} has the version {VERSION} alone, got {version!r}")
    return name, service.registry.pool_of(name)


def describe(name: str, info: ModelInfo) -> dict[str, object]:
    """The inputs and outputs of a model."""
    return {
        "name": name,
        "versions": [VERSION],
        "platform": f"vitrail_{info.engine}",
        "inputs": [
            {"name": IMAGES, "datatype": "FP32", "shape": [-1, info.channels, *info.image_size]}
        ],
        "outputs": [
            {"name": output, "datatype": "FP32", "shape": shape}
            for output, shape in output_shapes(info).items()
        ],
    }


async def read_request(
    request: Request, content: bytes, info: ModelInfo, service: Service
) -> InferRequest:
    header, most = request.headers.get(LENGTH_HEADER), service.settings.limits.images
    if len(content) < LARGE or header is not None:
        return parse_infer(content, header, info, max_images=most)
    return await asyncio.to_thread(parse_infer, content, header, info, max_images=most)


async def compute(
    service: Service,
    request: Request,
    pool: Pool,
    parsed: InferRequest,
    output: str,
    deadline: float,
) -> list[NDArray[np.float32]]:
    """One output of all images; a tensor has no place for the problem of one of them."""
    want = OUTPUTS[output]
    tasks = []
    for payload in parsed.payloads:
        key = None if parsed.is_tensor else await digest_of(bytes(payload), want)
        tasks.append(Task(want, payload, parsed.is_tensor, deadline, key))
    found = []
    for number, answer in enumerate(await service.wait(request, pool, tasks, deadline)):
        if isinstance(answer, str):
            raise BadRequest(f"image {number}: {answer}")
        found.append(answer)
    return found
