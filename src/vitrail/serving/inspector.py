"""A process that looks into one model for the page: operations in eager PyTorch, one by one."""

import logging
import socket
import traceback
from dataclasses import asdict
from typing import Any

import torch
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.core.json_text import to_json
from vitrail.core.packed import Packed, compress
from vitrail.data.images import BadImage, decode
from vitrail.serving.engine import check_pixels
from vitrail.serving.frames import Buffer, Message
from vitrail.serving.loading import describe, load_model
from vitrail.serving.operations import OPERATIONS, File
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.data_context import open_data_context
from vitrail.serving.paths import hide_paths
from vitrail.serving.search import VectorSearch
from vitrail.serving.spec import WorkerSpec
from vitrail.serving.worker import Answer, prepare_process, serve_messages

MIN_COMPRESSED = 1024  # bytes: less gains nothing
PACKED = "application/octet-stream"
JSON = "application/json"

logger = logging.getLogger(__name__)


def run_inspector(channel: socket.socket, spec: WorkerSpec) -> None:
    """Load a model and answer operations until nobody asks any more."""
    prepare_process(1)
    torch.set_num_threads(spec.threads)

    def start() -> tuple[dict[str, Any], Answer]:
        model = load_model(spec)
        data = open_data_context(spec.data, model)
        info = describe(model, spec, "eager")
        search = VectorSearch(spec.data, model, info.digest)
        problem = "" if data is not None else next(filter(None, search.problems), "")
        context = Context(model, data, name=spec.name, source=spec.path, data_problem=problem)
        return asdict(info), lambda *one: answer(context, search, spec, *one)

    serve_messages(channel, start, threads=1)


SEARCH = "search"


def answer(
    context: Context,
    search: VectorSearch,
    spec: WorkerSpec,
    header: dict[str, Any],
    buffers: list[Buffer],
) -> Message:
    """One operation on one image, or on none: the media type of its result, and the bytes."""
    name = header["operation"]
    try:
        if name == SEARCH:
            check_pixels(bytes(buffers[0]), spec.max_pixels)
            result: Any = search.run(bytes(buffers[0]), header["options"]["k"])
        else:
            options = OPERATIONS[name].read_options(header["options"])
            image = open_image(bytes(buffers[0]), context, spec) if buffers else None
            result = OPERATIONS[name].run(context, image, options)
    except UserError as error:
        return {"problem": hide_paths(str(error), (spec.path, *spec.data))}, []
    except BadImage as problem:
        return {"problem": problem.reason, "of": "image"}, []
    except Exception:
        logger.error("%s failed: %s", name, traceback.format_exc())
        return {"failed": f"{name} failed: the log of the service says why"}, []
    return render(result, gzip=header["gzip"])


def render(result: Any, *, gzip: bool) -> Message:
    """A result as it is sent: its media type, how it is compressed, and its bytes."""
    match result:
        case Packed():
            media, content = PACKED, result.to_bytes()
        case File():
            media, content = result.media_type, result.content
        case _:
            media, content = JSON, to_json(result).encode()
    is_text = media in (PACKED, JSON)
    if gzip and is_text and len(content) >= MIN_COMPRESSED:
        return {"media": media, "encoding": "gzip"}, [compress(content)]
    return {"media": media, "encoding": ""}, [content]


def open_image(data: bytes, context: Context, spec: WorkerSpec) -> Image.Image:
    """By the safe decoder, within the limits of the service."""
    check_pixels(data, spec.max_pixels)
    channels = len(context.model.passport.preprocessing.mean)
    pixels = decode(data, "image", channels=channels if channels in (1, 3) else 3)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
