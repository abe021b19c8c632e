"""The images of the data that a service was given: mistakes, a map of their features, files."""

from io import BytesIO
from typing import Any
from urllib.parse import quote

from PIL import Image

from vitrail.core.errors import UserError
from vitrail.core.json_text import utf8_name
from vitrail.data.images import BadImage, decode
from vitrail.data.source import Source
from vitrail.serving.operations import File
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.data_context import DataContext
from vitrail.serving.operations.embedding_map import make_map
from vitrail.serving.operations.options import DataImageOptions, DataOptions

THUMBNAIL = 128  # pixels of the longer side
# what a browser shows as it is, by its first bytes
MEDIA = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png"}


def data_of(context: Context) -> DataContext:
    if context.data is None:
        raise UserError(
            context.data_problem
            or "this service has no data for this model: start it with --data PATH of a run, of a "
            "directory that vitrail embed wrote with this model, or of images"
        )
    return context.data


def run_data(context: Context, image: Image.Image | None, options: DataOptions) -> dict[str, Any]:
    """Images that the model has seen so far, what it says of them, and where they lie on a map;
    `images` and the points of the map are in one order. `foreign` counts images of classes that
    the model does not have."""
    data = data_of(context)
    data.compute()
    ids = sorted(data.features)[: options.count]
    mistakes = [index for index in ids if data.is_mistake(index)]
    mistakes.sort(key=lambda index: -(data.prediction(index)[1] or 0))
    return {
        "kind": data.kind,
        "name": data.name,
        "total": len(data),
        "computed": len(data.features),
        "unreadable": len(data.unreadable),
        "images": [describe_image(context, data, index) for index in ids],
        "mistakes": mistakes,
        "foreign": sum(data.is_foreign(index) for index in ids),
        "map": make_map(data, ids, options.map),
    }


def describe_image(context: Context, data: DataContext, index: int) -> dict[str, Any]:
    predicted, score = data.prediction(index)
    return {
        "id": index,
        "name": utf8_name(data.source.name(index)).rpartition("/")[2],
        "label": data.label(index),
        "predicted": predicted,
        "score": score,
        "thumb": f"v1/data/{index}/image?side={THUMBNAIL}&model={quote(context.name, safe='')}",
    }


def run_data_image(context: Context, image: Image.Image | None, options: DataImageOptions) -> File:
    """One image: as its file is where a browser shows such files, else as PNG; or smaller."""
    data = data_of(context)
    if not 0 <= options.id < len(data):
        raise UserError(f"id must be from 0 to {len(data) - 1}, got {options.id}")
    return image_file(data.source, options.id, options.side)


def image_file(source: Source, index: int, side: int | None) -> File:
    """The image of a source by its number; only what decodes is sent."""
    try:
        raw = source.read(index)
        at_least = None if side is None else (side, side)
        is_file = isinstance(raw, bytes)
        pixels = decode(raw, "image", at_least=at_least) if isinstance(raw, bytes) else raw
    except BadImage as problem:
        raise UserError(f"image {index} cannot be read: {problem.reason}") from None
    except OSError as error:
        raise UserError(f"image {index} cannot be read: {error.strerror or error}") from None
    if is_file and side is None and isinstance(raw, bytes):
        for start, media in MEDIA.items():
            if raw.startswith(start):
                return File(raw, media)
    return picture_file(pixels, side)


def picture_file(pixels: Any, side: int | None) -> File:
    shown = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    if side is not None:
        shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    out = BytesIO()
    shown.save(out, "PNG")
    return File(out.getvalue(), "image/png")
