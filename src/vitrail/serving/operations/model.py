"""What a model is made of and where it comes from, its filters and positions, and commands to go on
with."""

import base64
import re
import shlex
from dataclasses import asdict
from io import BytesIO
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.explanation.drawing import evenly_spaced, mosaic
from vitrail.explanation.filters import (
    first_filters,
    kernels_to_rgb,
    largest_kernels,
    principal_components,
)
from vitrail.explanation.hooks import token_layouts
from vitrail.explanation.positions import position_similarity, position_table
from vitrail.models.measure import count, measure
from vitrail.models.model import Model
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.options import NoOptions
from vitrail.serving.paths import is_telling, public_values
from vitrail.tasks.seen_image import png_address

KERNEL_SIDE = 48  # pixels of a filter on the page, at least
MAX_KERNELS = 28
MAX_TILES = 10  # a side, of the similarity of positions
MAX_LABELS = 1000


def run_model(context: Context, image: Image.Image | None, options: NoOptions) -> dict[str, Any]:
    model = context.model
    passport = asdict(model.passport)
    for name in ("origin", "provenance"):  # labels may look like paths: /m/0k4j
        passport[name] = public_values(passport[name])
    config = passport.pop("config")
    labels = passport.get("labels")
    if labels is not None and len(labels) > MAX_LABELS:
        passport["labels"] = [*labels[:MAX_LABELS], f"and {len(labels) - MAX_LABELS} more"]
    filters, described = filter_images(model)
    return {
        "name": context.name,
        "family": model.passport.family,
        "config": config,
        "passport": passport,
        "parameters": count(model),
        "macs": measure(model.config).macs,
        "origin": public_values(model.passport.origin.source),
        "scores": dict(model.passport.scores),
        "preprocessing": model.passport.preprocessing.in_words(),
        "filters": filters,
        "filters_are": described,
        "positions": position_image(model),
        "commands": commands_for(context),
    }


def filter_images(model: Model) -> tuple[list[str], str | None]:
    """The first filters as pictures: principal components of patch filters, or the kernels of a
    stem; and which of them it is."""
    try:
        found = first_filters(model)
    except UserError:
        return [], None
    if found.patches:
        shown, _ = principal_components(found.kernels, MAX_KERNELS)
    else:
        shown = largest_kernels(found.kernels, MAX_KERNELS)
    flipped = model.passport.preprocessing.channel_order == "bgr"
    colours, _ = kernels_to_rgb(shown, flipped=flipped)
    pictures = [enlarge(to_bytes(one), KERNEL_SIDE) for one in colours]
    kind = "components" if found.patches else "kernels"
    return [png_address(picture) for picture in pictures], kind


def to_bytes(colours: Float[Tensor, "p q 3"]) -> Any:
    levels = colours.detach().nan_to_num(0.5).clamp(0, 1).cpu().double().numpy()
    return (levels * 255).round().astype(np.uint8)


def enlarge(pixels: Any, side: int) -> Any:
    """Each pixel a square, until the shorter side is at least so long."""
    times = max(-(-side // min(pixels.shape[:2])), 1)
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


@torch.no_grad()
def position_image(model: Model) -> dict[str, Any] | None:
    """How alike the positions of patches are, a tile for each patch; none without a table."""
    layout = next(iter(token_layouts(model).values()), None)
    table = None if layout is None else position_table(model, layout)
    if table is None:
        return None
    tiles = position_similarity(table).cpu().numpy()
    rows, columns = tiles.shape[:2]
    down, across = evenly_spaced(rows, MAX_TILES), evenly_spaced(columns, MAX_TILES)
    sheet = mosaic(tiles[np.ix_(down, across)], gap=1)
    return {
        "grid": [rows, columns],
        "tiles": [len(down), len(across)],
        "image": transparent_png(enlarge(with_gaps(sheet), 320)),
    }


def with_gaps(cosines: Float[np.ndarray, "H W"]) -> UInt8[np.ndarray, "H W 4"]:
    """Cosines in colours, from violet (-1) to yellow (1), and nothing between tiles: the page may
    be light or dark."""
    from matplotlib import colormaps

    levels = np.nan_to_num((cosines + 1) / 2)
    colours: UInt8[np.ndarray, "H W 4"]
    colours = (255 * colormaps["viridis"](levels)).round().astype(np.uint8)
    colours[np.isnan(cosines), 3] = 0
    return colours


def transparent_png(pixels: UInt8[np.ndarray, "H W 4"]) -> str:
    """As `png_address`, with opacity."""
    out = BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def commands_for(context: Context) -> dict[str, list[str]]:
    """Commands to type where the service runs. A path of the machine is shown as it was given only
    where it tells nothing of the directories above."""
    source = context.source
    model = shlex.quote(source) if source and not is_telling(source) else "MODEL"
    stem = re.sub(r"[^\w.-]+", "-", context.name).strip("-") or "model"
    return {
        "export": [f"vitrail export {model} --out {stem}.onnx"],
        "export_web": [f"vitrail export {model} --to web --out {stem}-page"],
        "bench": [f"vitrail bench {model}"],
    }
