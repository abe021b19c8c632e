"""The prediction after edits of the image: erased or blurred cells, exchanged patches, a shift, a
corruption, or the erased part of an explanation."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.evaluation.corruptions import corrupt
from vitrail.explanation.hooks import token_layouts
from vitrail.explanation.lens import NO_HEAD
from vitrail.explanation.readout import finest_layout
from vitrail.explanation.what_if import (
    Cell,
    Pixels,
    blur_cells,
    check_cells,
    erase_cells,
    moved_positions,
    permute_cells,
    random_order,
    shift_pixels,
)
from vitrail.models.model import Model
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.explain import compute_map
from vitrail.serving.operations.options import ErasedExplanation, WhatIfOptions
from vitrail.tasks.seen_image import (
    SeenImage,
    finite_scores,
    from_pixels,
    label_of,
    png_address,
    see,
    top_classes,
)

TOP = 5  # classes before and after


def run_what_if(
    context: Context, image: Image.Image | None, options: WhatIfOptions
) -> dict[str, Any]:
    """What the model says before and after; `image` is what it saw after all edits."""
    model, seen = context.model, see(context.model, image)
    layout = next(iter(token_layouts(model).values()), None) or finest_layout(model)
    grid = options.grid or layout.grid
    pixels = edit(seen.pixels, options, grid, layout)
    erased = None
    if options.explain is not None:
        erased, pixels = erase_explained(model, seen, options.explain, pixels)
    order = None if options.permute is None else random_order(grid[0] * grid[1], options.permute)
    moved = order if options.permute_positions else None
    before = compute(model, seen.tensor)
    after = compute(model, from_pixels(model, pixels), grid, moved)
    return {
        **compare(model, before, after),
        "grid": list(grid),
        "erased": erased,
        "image": png_address(pixels),
    }


def edit(pixels: Pixels, options: WhatIfOptions, grid: Cell, layout: TokenLayout) -> Pixels:
    """Every edit that the model is not needed for, in the order that the options give."""
    own = layout if grid == layout.grid else None
    height, width = pixels.shape[:2]
    if options.corruption is not None:
        pixels = corrupt(pixels, options.corruption.name, options.corruption.severity)
    right, down = options.shift
    if abs(right) >= width or abs(down) >= height:
        raise UserError(
            f"shift must be less than the image of {width}x{height} pixels, got {options.shift}"
        )
    pixels = shift_pixels(pixels, right, down)
    if options.permute is not None:
        pixels = permute_cells(pixels, grid, random_order(grid[0] * grid[1], options.permute))
    check_cells(options.blur, grid, "blur")
    check_cells(options.erase, grid, "erase")
    if options.blur:
        pixels = blur_cells(pixels, options.blur, grid, own)
    return erase_cells(pixels, options.erase, grid, own)


def erase_explained(
    model: Model, seen: SeenImage, options: ErasedExplanation, pixels: Pixels
) -> tuple[dict[str, Any], Pixels]:
    """Without the share of the cells that the map of the unedited image marks as most relevant."""
    found, _, _ = compute_map(model, seen.tensor, options.method)
    heat = found.map[0].float().cpu().numpy()
    count = min(max(round(options.share * heat.size), int(options.share > 0)), heat.size)
    best = np.argsort(-heat.reshape(-1), kind="stable")[:count]
    cells = [(int(place) // heat.shape[1], int(place) % heat.shape[1]) for place in best]
    erased = {
        "method": found.method,
        "grid": list(found.layout.grid),
        "cells": [list(cell) for cell in cells],
    }
    return erased, erase_cells(pixels, cells, found.layout.grid, found.layout)


@torch.no_grad()
def compute(model: Model, image: Tensor, grid: Cell = (0, 0), moved: Any = None) -> Tensor:
    """The probabilities, or without a head the features; patches that were `moved` keep their
    positions."""
    if moved is not None:
        with moved_positions(model, grid, moved):
            return compute(model, image)
    output: Tensor = model(image)[0]
    return finite_scores(model, output) if model.config.num_classes else output


def compare(model: Model, old: Tensor, new: Tensor) -> dict[str, Any]:
    """Without a head there are no classes, but the cosine between the features."""
    if not model.config.num_classes:
        cosine = torch.nn.functional.cosine_similarity(old.double(), new.double(), dim=0)
        none: dict[str, Any] = {"before": None, "after": None, "changed": [], "note": NO_HEAD}
        return {**none, "similarity": min(float(cosine), 1.0)}
    tops = top_classes(model, old, TOP), top_classes(model, new, TOP)
    shown = dict.fromkeys(one["index"] for top in tops for one in top)
    changed = [
        {
            "index": index,
            "label": label_of(model, index),
            "before": float(old[index]),
            "after": float(new[index]),
        }
        for index in shown
    ]
    changed.sort(key=lambda one: -abs(one["after"] - one["before"]))
    both = {"before": tops[0], "after": tops[1], "changed": changed}
    return {**both, "note": None, "similarity": None}
