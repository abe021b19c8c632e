"""Images, masked and reconstructed, that pre-training writes as a sheet at each evaluation."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.core.passport import Preprocessing
from vitrail.objectives.patches import pixels
from vitrail.weights.atomic import write_file

SHOWN = 8  # images of a sheet
SMALLEST, GAP = 96, 4  # pixels: the side of an image, the gap between two
FOLDER = "reconstructions"
OLD_FOLDER = "pictures"  # of runs that an earlier version started


def write_sheet(
    rows: Mapping[str, Float[Tensor, "B C H W"]], how: Preprocessing, out: Path, step: int
) -> Path:
    """A row for each kind of image (original, masked, …), a column for each image."""
    levels = np.stack([as_pixels(images, how) for images in rows.values()])
    larger = max(-(-SMALLEST // max(levels.shape[2:4])), 1)
    levels = levels.repeat(larger, axis=2).repeat(larger, axis=3)
    kinds, count, high, wide, _ = levels.shape
    sheet = np.full((kinds * (high + GAP) - GAP, count * (wide + GAP) - GAP, 3), 255, np.uint8)
    for row in range(kinds):
        for column in range(count):
            top, left = row * (high + GAP), column * (wide + GAP)
            sheet[top : top + high, left : left + wide] = levels[row, column]

    def fill(path: Path) -> None:
        Image.fromarray(sheet).save(path, "PNG")

    return write_file(out / FOLDER / f"step-{step:09d}.png", fill, overwrite=True)


def as_pixels(images: Float[Tensor, "B C H W"], how: Preprocessing) -> UInt8[np.ndarray, "B H W 3"]:
    """Images as the model reads them, back in the colours that people see."""
    images = images.detach().float().cpu()
    values = pixels(images, how) if how.is_photo else shown_bands(images)
    values = values.flip(1) if how.channel_order == "bgr" else values
    if values.shape[1] != 3:
        values = values.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    levels: UInt8[np.ndarray, "B H W 3"] = (
        (values.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    )
    return levels


def shown_bands(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B _ H W"]:
    """The first three bands, or the first, from two standard deviations below the mean to two
    above."""
    return (images[:, : 3 if images.shape[1] >= 3 else 1] + 2) / 4


def sheets_in(out: Path) -> dict[int, Path]:
    """The sheets of a run, by step."""
    paths = (path for folder in (OLD_FOLDER, FOLDER) for path in (out / folder).glob("*.png"))
    named = {path: re.fullmatch(r"step-(\d{9})\.png", path.name) for path in paths}
    return dict(sorted((int(match[1]), path) for path, match in named.items() if match))
