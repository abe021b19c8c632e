"""Maps as images: laid over an image, side by side, and a panel of all layers and heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from vitrail.explanation.head_maps import MAX_HEADS, HeadMaps

Pixels = UInt8[np.ndarray, "H W 3"]

PAPER, INK, SOFT = (255, 255, 255), (29, 39, 48), (93, 107, 120)
GAP, TEXT, LINE = 8, 13, 19  # pixels: between tiles, of letters, of a line
LEGEND = "clear: least · yellow: most, each map on its own scale"


@dataclass(frozen=True)
class Tile:
    """An image and the words above it."""

    title: str
    pixels: Pixels


def overlay_map(
    image: UInt8[np.ndarray, "H W 3"], heat: Float[Tensor, "rows columns"], opacity: float = 0.7
) -> UInt8[np.ndarray, "H W 3"]:
    """The image with a map over it. Where the map is lowest the image stays as it is."""
    colours = heat_colours(heat, image.shape[:2]).astype(float)
    alpha = opacity * colours[..., 3:] / 255
    return ((1 - alpha) * image + alpha * colours[..., :3]).round().astype(np.uint8)


def heat_colours(
    heat: Float[Tensor, "rows columns"], size: tuple[int, ...]
) -> UInt8[np.ndarray, "H W 4"]:
    """A map as large as an image, in colours that become opaque as it rises, on its own scale."""
    heat = heat.detach().float().cpu().nan_to_num()
    height, width = size
    smooth = F.interpolate(heat[None, None], (height, width), mode="bicubic", align_corners=False)
    smooth = smooth.clamp(float(heat.min()), float(heat.max()))  # a spline swings beyond its points
    return colour_levels(scale_levels(smooth[0, 0].numpy()))


def scale_levels(values: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """From 0, the lowest, to 1, the highest."""
    low, high = values.min(), values.max()
    return (values - low) / max(high - low, 1e-12)


def colour_levels(levels: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape 4"]:
    """Levels from 0 to 1 as colours from a clear violet to an opaque yellow.

    >>> colour_levels(np.array([0.0, 1.0]))[:, 3].tolist()
    [0, 255]
    """
    from matplotlib import colormaps

    colours = colormaps["plasma"](0.15 + 0.85 * levels)
    colours[..., 3] = levels
    return (255 * colours).round().astype(np.uint8)


def enlarge(image: UInt8[np.ndarray, "H W 3"], side: int) -> UInt8[np.ndarray, "h w 3"]:
    """The image resized to `side` pixels along its longer side; small ones keep hard edges."""
    height, width = image.shape[:2]
    share = side / max(height, width)
    size = (max(round(width * share), 1), max(round(height * share), 1))
    filters = Image.Resampling.NEAREST if share >= 2 else Image.Resampling.LANCZOS
    return np.array(Image.fromarray(image).resize(size, filters))


def side_by_side(
    tiles: Sequence[Tile], *, title: str = "", across: int = 4
) -> UInt8[np.ndarray, "h w 3"]:
    """Images of one size in rows of `across`, each under its title."""
    rows = [tiles[first : first + across] for first in range(0, len(tiles), across)]
    return _lay_out([("", row) for row in rows], title=title)


def layers_and_heads(
    image: UInt8[np.ndarray, "H W 3"],
    maps: Mapping[str, HeadMaps],
    *,
    title: str = "",
    side: int = 112,
) -> UInt8[np.ndarray, "h w 3"]:
    """A row for each layer, the first at the top: the mean of its heads, then each of them."""
    small = enlarge(image, side)
    most = max((len(one.heat) for one in maps.values()), default=0)
    rows = []
    for name, one in maps.items():
        mean, *heads = one.on_pixels()
        tiles = [Tile("mean of heads", overlay_map(small, mean))]
        tiles += [
            Tile(f"head {number}", overlay_map(small, heat)) for number, heat in enumerate(heads)
        ]
        rows.append((name, tiles))
    cut = f" · the first {MAX_HEADS} of {most} heads" if most > MAX_HEADS else ""
    return _lay_out([("image", [Tile("", small)]), *rows], title=title + cut, titles_once=True)


def write_png(pixels: UInt8[np.ndarray, "H W 3"], out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(out, "PNG")
    return out


def _lay_out(
    rows: Sequence[tuple[str, Sequence[Tile]]], *, title: str, titles_once: bool = False
) -> UInt8[np.ndarray, "h w 3"]:
    """Rows of tiles with their names at the left. Titles stand above each tile, or, where the rows
    agree in them, above a row that is longer than those before."""
    high, wide = (
        max(tile.pixels.shape[axis] for _, row in rows for tile in row) for axis in (0, 1)
    )
    margin = max((_width(name) for name, _ in rows), default=0)
    margin += GAP if margin else 0
    lines = _wrapped(title, margin + max(len(row) for _, row in rows) * (wide + GAP) - GAP)
    longest = [max(len(row) for _, row in rows[: number + 1]) for number in range(len(rows))]
    shown = [
        not titles_once or number == 0 or longest[number] > longest[number - 1]
        for number in range(len(rows))
    ]
    has_words = [any(_titles(row)) and show for (_, row), show in zip(rows, shown, strict=True)]
    height = 2 * GAP + len(lines) * LINE + sum(high + GAP + LINE * words for words in has_words)
    width = 2 * GAP + margin + max(len(row) for _, row in rows) * (wide + GAP) - GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    top = GAP
    for line in lines:
        pen.text((GAP, top), line, fill=INK, font=_font())
        top += LINE
    for (name, row), words in zip(rows, has_words, strict=True):
        for number, tile in enumerate(row):
            left = GAP + margin + number * (wide + GAP)
            if words:
                pen.text((left, top), _shortened(tile.title, wide), fill=SOFT, font=_font())
            sheet.paste(Image.fromarray(tile.pixels), (left, top + LINE * words))
        top += LINE * words
        pen.text((GAP, top + (high - LINE) // 2), name, fill=INK, font=_font())
        top += high + GAP
    return np.array(sheet)


def _titles(row: Sequence[Tile]) -> list[str]:
    return [tile.title for tile in row]


@cache
def _font() -> Any:
    """matplotlib's own, which knows the letters of most languages and lies on every machine."""
    import matplotlib

    return ImageFont.truetype(
        str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")), TEXT
    )


def _width(text: str) -> int:
    return round(_font().getlength(text))


def _shortened(text: str, pixels: int) -> str:
    while text and _width(text) > pixels:
        text = text[:-2].rstrip() + "…" if len(text) > 2 else ""
    return text


def _wrapped(text: str, pixels: int) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and _width(f"{lines[-1]} {word}") <= pixels:
            lines[-1] = f"{lines[-1]} {word}"
        else:
            lines.append(word)
    return lines
