"""The images of the data whose features are nearest to those of an image, or of one of its
patches."""

from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.core.errors import UserError
from vitrail.explanation.hooks import grid_layouts
from vitrail.serving.operations.context import Context
from vitrail.serving.operations.data import data_of
from vitrail.serving.operations.data_context import DataContext, patch_vectors
from vitrail.serving.operations.options import NeighboursOptions
from vitrail.tasks.seen_image import SeenImage, see


def run_neighbours(
    context: Context, image: Image.Image | None, options: NeighboursOptions
) -> dict[str, Any]:
    """Matches by their cosine, the nearest first; with a patch, the nearest patch of each image. A
    patch is counted on the grid of the last attention; patches of matches on `grid`."""
    data, seen = data_of(context), see(context.model, image)
    if options.patch is None:
        return {"matches": nearest_images(data, seen, options.k), "grid": None}
    matches, grid = nearest_patches(data, seen, options.patch, options.k)
    return {"matches": matches, "grid": grid, "compared": len(data.patches)}


def nearest_images(data: DataContext, seen: SeenImage, k: int) -> list[dict[str, Any]]:
    data.compute()
    if not data.features:
        raise UserError("no image of the data can be read")
    ids = sorted(data.features)
    rows = np.stack([data.features[index] for index in ids]).astype(np.float64)
    cosines = (rows @ data.vector_of(seen.tensor).astype(np.float64)).clip(-1, 1)  # of rounding
    best = np.argsort(-cosines, kind="stable")[:k]
    return [{"id": ids[i], "score": float(cosines[i]), "patch": None} for i in best.tolist()]


@torch.no_grad()
def nearest_patches(
    data: DataContext, seen: SeenImage, patch: tuple[int, int], k: int
) -> tuple[list[dict[str, Any]], list[int]]:
    model = data.model
    own = patch_vectors(model, model.encode(seen.tensor))[0].astype(np.float32)
    row, column = find_cell(patch, list(grid_layouts(model).values())[-1].grid, own.shape[:2])
    query = own[row, column]
    data.compute_patches()
    if not data.patches:
        raise UserError("no image of the data can be read")
    found = list[dict[str, Any]]()
    for index, patches in sorted(data.patches.items()):
        cosines = (patches.astype(np.float32) @ query).clip(-1, 1)
        place = int(cosines.argmax())
        cell = [int(side) for side in divmod(place, cosines.shape[1])]
        found.append({"id": index, "score": float(cosines.flat[place]), "patch": cell})
    found.sort(key=lambda one: -one["score"])
    return found[:k], list(own.shape[:2])


def find_cell(
    patch: tuple[int, int], grid: tuple[int, int], other: tuple[int, ...]
) -> tuple[int, int]:
    """The cell of another grid on the same image.

    >>> find_cell((3, 3), (7, 7), (14, 14))
    (7, 7)
    """
    for place, side in zip(patch, grid, strict=True):
        if not 0 <= place < side:
            raise UserError(
                f"patch must be from [0, 0] to [{grid[0] - 1}, {grid[1] - 1}], got {list(patch)}"
            )
    row, column = (
        min(int((place + 0.5) * there / here), there - 1)
        for place, here, there in zip(patch, grid, other, strict=True)
    )
    return row, column
