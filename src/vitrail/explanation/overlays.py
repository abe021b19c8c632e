"""Maps as images: laid over an image, side by side, and a panel of all layers and heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.core.errors import UserError
from vitrail.core.layout import TokenLayout
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.hooks import forward_hooks, token_layouts
from vitrail.explanation.propagation import normalise_rows, on_pixels, propagate
from vitrail.explanation.readout import readout

Pixels = UInt8[np.ndarray, "H W 3"]

PAPER, INK, SOFT = (255, 255, 255), (29, 39, 48), (93, 107, 120)
GAP, TEXT, LINE = 8, 13, 19  # pixels: between tiles, of letters, of a line
MAX_HEADS = 16  # columns of a panel
LEGEND = "dark: least · bright: most, each image by its own scale"


@dataclass(frozen=True)
class HeadMaps:
    """Where each head of an attention looks, and where its cells lie on an image of this size."""

    heat: Float[Tensor, "heads rows columns"]
    layout: TokenLayout
    size: tuple[int, int]

    def on_pixels(self) -> Float[Tensor, "maps H W"]:
        """The mean of all heads, then each of the first few."""
        mean = self.heat.mean(dim=0, keepdim=True)
        return on_pixels(torch.cat([mean, self.heat[:MAX_HEADS]]), self.size, layout=self.layout)


@dataclass(frozen=True)
class Tile:
    """An image and the words above it."""

    title: str
    pixels: Pixels


def overlay_map(
    image: UInt8[np.ndarray, "H W 3"], heat: Float[Tensor, "rows columns"], strength: float = 0.6
) -> UInt8[np.ndarray, "H W 3"]:
    """The image under a map: the darkest patch is looked at least, the brightest most."""
    from matplotlib import colormaps

    height, width = image.shape[:2]
    heat = heat.detach().float().cpu().nan_to_num()
    smooth = F.interpolate(heat[None, None], (height, width), mode="bicubic", align_corners=False)[
        0, 0
    ]
    smooth = smooth.clamp(float(heat.min()), float(heat.max()))  # a spline swings beyond its points
    low, high = smooth.min(), smooth.max()
    level = ((smooth - low) / (high - low).clamp(min=1e-12)).numpy()
    colour = colormaps["inferno"](level)[..., :3] * 255
    return ((1 - strength) * image + strength * colour).round().clip(0, 255).astype(np.uint8)


def enlarge(image: UInt8[np.ndarray, "H W 3"], side: int) -> UInt8[np.ndarray, "h w 3"]:
    """The image with so many pixels along its longer side; a small one keeps its hard edges."""
    height, width = image.shape[:2]
    share = side / max(height, width)
    size = (max(round(width * share), 1), max(round(height * share), 1))
    filters = Image.Resampling.NEAREST if share >= 2 else Image.Resampling.LANCZOS
    return np.array(Image.fromarray(image).resize(size, filters))


def draw_panel(
    image: UInt8[np.ndarray, "H W 3"],
    maps: Mapping[str, HeadMaps],
    out: Path,
    *,
    title: str,
) -> Path:
    """A row of images: the image, then each layer, the mean of its heads."""
    tiles = [Tile(name, overlay_map(image, one.on_pixels()[0])) for name, one in maps.items()]
    row = [Tile("image", image), *tiles]
    return write_png(side_by_side(row, title=title, across=len(row)), out)


def side_by_side(
    tiles: Sequence[Tile], *, title: str = "", across: int = 4
) -> UInt8[np.ndarray, "h w 3"]:
    """Pictures of one size in rows of `across`, each under its title."""
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


@torch.no_grad()
def head_maps(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    query: int | tuple[int, int] | None = None,
) -> dict[str, HeadMaps]:
    """Of every attention, by its name, where the query looks in each head: a token, or a patch of
    the first attention's grid, which is found again on coarser ones; None: what is read out.

    Weights are gone as soon as their maps are made, so that no more than one attention's are held.
    """
    first = next(iter(token_layouts(model).values())).grid
    size = (image.shape[2], image.shape[3])
    found: dict[str, HeadMaps] = {}

    def see_attention(name: str, one: AttentionMap, _: Tensor | None) -> None:
        found[name] = HeadMaps(_maps_of_query(model, one, query, first).cpu(), one.layout, size)

    with forward_hooks(model, attention=see_attention):
        model(image)
    return found


def _maps_of_query(
    model: nn.Module,
    one: AttentionMap,
    query: int | tuple[int, int] | None,
    first: tuple[int, int],
) -> Float[Tensor, "heads rows columns"]:
    if query is None:
        each = []
        for weights in one.weights.unbind(dim=-3):
            start = readout(model, one.layout, weights)
            each.append(propagate(normalise_rows(weights, one.layout), one.layout, start).grid[0])
        return torch.stack(each)
    if isinstance(query, tuple):
        (row, column), (rows, columns) = query, first
        if not (0 <= row < rows and 0 <= column < columns):
            raise UserError(
                f"query is patch {query}, but there are {rows}x{columns}, from (0, 0) on"
            )
        query = row * one.layout.grid[0] // rows, column * one.layout.grid[1] // columns
    return one.on_grid(query)[0]


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
