"""The figures of a model's weights, each with a drawing, a caption and its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.core.passport import Preprocessing
from vitrail.explanation.drawing import (
    evenly_spaced,
    in_rows,
    key,
    mosaic,
    new_figure,
    show,
    with_holes,
)
from vitrail.explanation.filters import (
    first_filters,
    kernels_to_rgb,
    largest_kernels,
    principal_components,
)
from vitrail.explanation.positions import position_similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

APART = ("side by side", "half the grid apart")  # patches whose cosines are compared
FINE = 60  # pixels a side of a tile of biases
MAX_KERNELS, MAX_TILES, MAX_LAYERS, MAX_HEADS = 64, 14, 12, 8


@dataclass(frozen=True)
class Panel:
    """One figure: its drawing, what a reader sees in it, and the numbers behind it. Without a
    drawing the text says why there is none."""

    name: str
    title: str
    caption: str
    figure: "Figure | None" = None
    numbers: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    table: Sequence[Sequence[str]] = ()  # the drawing in numbers: a row of heads, then the rows
    model: str = ""  # that the title ends in, where several are drawn


def filter_panel(model: nn.Module, *, flipped: bool = False) -> Panel:
    """Figure 7, left: what the first layer looks for."""
    found = first_filters(model)
    size = f"{found.kernels.shape[2]}x{found.kernels.shape[3]}"
    count = len(found.kernels)
    if found.patches:
        shown, shares = principal_components(found.kernels)
        images, how = kernels_to_rgb(shown, flipped=flipped)
        title = "Filters of the patch embedding"
        caption = (
            f"The first {len(shown)} principal components of the {count} filters of {size} pixels "
            f"by which patches are embedded, the one with most variance first, each {how}. They "
            f"hold {shares.sum():.0%} of the filters' variance. Trained on photos they look like "
            "the smooth waves of a basis for small patches; noise means that the filters have "
            "learnt little."
        )
        columns = 7
        table = [("component", "share of the variance")]
        table += [(str(i + 1), f"{share:.2%}") for i, share in enumerate(shares.tolist())]
        numbers = {"filters": count, "components": len(shown), "variance": shares.tolist()}
    else:
        shown = largest_kernels(found.kernels, MAX_KERNELS)
        images, how = kernels_to_rgb(shown, flipped=flipped)
        title = "Kernels of the stem"
        caption = (
            "This model does not cut its image into patches by one layer: it begins with "
            f"convolutions, whose kernels overlap (stride {found.stride}). So there are no patch "
            f"filters. These are the kernels of its first layer, {found.name}, {size} pixels: "
            f"{len(shown)} of {count}, those of the largest norm first, each {how}."
        )
        columns = 16
        table = [("kernels", "size"), (str(count), size)]
        numbers = {"kernels": count}
    larger = max(1, round(12 / images.shape[1]))  # so that the gaps look alike
    pixels = images.cpu().double().numpy().repeat(larger, axis=1).repeat(larger, axis=2)
    image = with_holes(mosaic(in_rows(pixels, columns)))
    height = 6.4 * image.shape[0] / image.shape[1]
    figure = new_figure(6.4, max(height, 0.9))
    show(figure.subplots(), image)
    numbers |= {"layer": found.name, "size": list(found.kernels.shape[1:]), "stride": found.stride}
    arrays = {"shown": shown.cpu().numpy(), "kernels": found.kernels.cpu().numpy()}
    return Panel("filters", title, caption, figure, numbers, arrays, table)


def similarity_panel(
    vectors: Float[Tensor, "rows columns D"], *, blank: bool = False, convolved: str | None = None
) -> Panel:
    """Figure 7, centre: how alike the positions are; or, of a model that has none, how alike the
    tokens of an empty image; `convolved` is the block of a convolutional network that gave them."""
    tiles = position_similarity(vectors).cpu().numpy()
    rows, columns = tiles.shape[:2]
    down = evenly_spaced(rows, MAX_TILES if rows <= 2 * columns else 7)
    # of a broad image fewer, so that the figure is at most twice as wide as high
    across = evenly_spaced(columns, min(MAX_TILES, max(2 * len(down) * rows // columns, 3)))
    shown = tiles[np.ix_(down, across)]
    image = mosaic(shown, gap=max(1, round(max(rows, columns) / 12)))
    width = 5.6
    figure = new_figure(width, max(width * 0.88 * image.shape[0] / image.shape[1], 1.6))
    axis = figure.subplots()
    low = -1.0 if not blank else min(float(tiles.min()), 0.999)
    drawn = show(axis, image, cmap="viridis", vmin=low, vmax=1)
    step = [(image.shape[0] + 1) / len(down), (image.shape[1] + 1) / len(across)]
    label_tiles(axis.yaxis, down, step[0])
    label_tiles(axis.xaxis, across, step[1])
    axis.set_xlabel("column of the patch")
    axis.set_ylabel("row of the patch")
    key(figure, drawn, axis, "cosine")
    near, far = neighbour_cosines(tiles)
    compared = (
        f"Neighbours have a mean cosine of {near:.2f}, patches half the grid away {far:.2f}. "
        if near is not None and far is not None
        else ""
    )
    some = (
        ""
        if len(down) * len(across) == rows * columns
        else (f" Of {rows}x{columns} tiles {len(down)}x{len(across)} are shown.")
    )
    if convolved is not None:
        title = "Positions: none, but for the edges"
        caption = (
            "A convolutional network has no positions: what it computes of a place does not depend "
            "on where that is, but for the zeros around the image. A tile for each cell: how alike "
            f"are the cells that {convolved} gives for an image of one colour. Were they all "
            "alike, nothing would be known of places."
        )
    elif blank:
        title = "Positions: none, but for the edges"
        caption = (
            "This model has no table of positions and no bias by offset: its attention does not "
            "know where a patch is. Convolutions may tell it, by the zeros around the image. A "
            "tile for each patch: how alike are the tokens that the first transformer block gives "
            "for an image of one colour. Were they all alike, nothing would be known of places."
        )
    else:
        title = "Similarity of positions"
        caption = (
            "A tile for each patch: the cosine between its position and that of every other patch. "
            f"{compared}"
            "Trained models show a bright spot where the patch is, and its row and column; noise "
            "around a single bright patch is what training begins with."
        )
    kind = "none" if blank else "table"
    numbers = {"kind": kind, "grid": [rows, columns], "neighbours": near, "half_the_grid": far}
    table = [("patches", "mean cosine")]
    for apart, cosine in zip(APART, (near, far), strict=True):
        table.append((apart, "–" if cosine is None else f"{cosine:.3f}"))
    arrays = {"similarity": tiles}
    return Panel("positions", title, caption + some, figure, numbers, arrays, table)


def label_tiles(axis: Any, numbers: list[int], step: float) -> None:
    every = max(1, round(len(numbers) / 7))
    places = range(0, len(numbers), every)
    axis.set_ticks([place * step + step / 2 - 1 for place in places])
    axis.set_ticklabels([str(numbers[place] + 1) for place in places])
    axis.set_tick_params(length=0)


def neighbour_cosines(tiles: NDArray[Any]) -> tuple[float | None, float | None]:
    """Mean cosine of patches side by side, and of those half of the grid apart, if there are."""
    rows, columns = tiles.shape[:2]
    place = np.arange(rows * columns)
    apart = np.hypot(
        place[:, None] // columns - place // columns, place[:, None] % columns - place % columns
    )
    flat = tiles.reshape(rows * columns, rows * columns)
    half = max(rows, columns) / 2
    values: list[float | None] = []
    for chosen in (apart == 1, np.abs(apart - half) < 0.5):
        values.append(float(flat[chosen].mean()) if chosen.any() else None)
    return values[0], values[1]


def enlarge_tile(tile: NDArray[Any], high: int, wide: int) -> NDArray[Any]:
    """The tile enlarged to `high` x `wide` cells by nearest neighbours."""
    down = np.arange(high) * tile.shape[0] // high
    return tile[np.ix_(down, np.arange(wide) * tile.shape[1] // wide)]


def bias_panel(biases: dict[str, Float[Tensor, "h down across"]]) -> Panel:
    """The nearest thing to positions that models with relative biases have."""
    names = list(biases)
    chosen = [names[place] for place in evenly_spaced(len(names), MAX_LAYERS)]
    heads = min(MAX_HEADS, max(len(bias) for bias in biases.values()))
    high, wide = (max(bias.shape[axis] for bias in biases.values()) for axis in (1, 2))
    fine = -(-FINE // max(high, wide))  # cells of smaller windows come out about square
    high, wide = fine * high, fine * wide
    reach, tiles = {}, np.full((len(chosen), heads, high, wide), np.nan)
    for row, name in enumerate(chosen):
        bias = biases[name].double().numpy()
        bias = bias - bias.mean(axis=(1, 2), keepdims=True)  # a softmax does not see its mean
        reach[name] = max(float(np.abs(bias).max()), 1e-12)
        for head, tile in enumerate(bias[:heads] / reach[name]):
            tiles[row, head] = enlarge_tile(tile, high, wide)
    gap = max(1, round(wide / 12))
    image = mosaic(tiles, gap=gap)
    figure = new_figure(6.4, max(5.2 * image.shape[0] / image.shape[1], 1.4) + 0.3)
    axis = figure.subplots()
    drawn = show(axis, image, cmap="RdBu_r", vmin=-1, vmax=1)
    labels = [f"{names.index(name) + 1}: ±{reach[name]:.2g}" for name in chosen]
    axis.set_yticks([row * (high + gap) + high / 2 for row in range(len(chosen))], labels)
    axis.set_xticks([head * (wide + gap) + wide / 2 for head in range(heads)])
    axis.set_xticklabels([str(head + 1) for head in range(heads)])
    axis.tick_params(length=0)
    axis.set_xlabel("head")
    key(figure, drawn, axis, "bias, as a share of the layer's largest")
    some = "" if len(chosen) == len(names) else f" Of {len(names)} layers {len(chosen)} are shown."
    caption = (
        "This model has no table of positions: its attention knows how far apart two patches are. "
        "A tile for each head, a row for each layer: what is added to the logits for a patch that "
        "lies above, below, left or right of the one that asks, which is in the middle. The mean "
        "of a head is taken away, because attention does not see it; beside a row is its number "
        f"and its largest bias.{some}"
    )
    numbers = {"kind": "bias", "layers": {name: len(biases[name]) for name in names}}
    numbers["largest"] = reach
    arrays = {f"bias.{name}": bias.numpy() for name, bias in biases.items()}
    table = [("layer", "largest bias"), *((name, f"{value:.3g}") for name, value in reach.items())]
    return Panel("positions", "Biases by offset", caption, figure, numbers, arrays, table)


def denormalise(
    images: Float[Tensor, "B C H W"], how: Preprocessing | None
) -> Float[np.ndarray, "B H W 3"]:
    """Prepared images as the model sees them, in colours between 0 and 1."""
    pixels = images.detach().cpu().double()
    if how is not None:
        mean, std = pixels.new_tensor(how.mean), pixels.new_tensor(how.std)
        pixels = pixels * std[:, None, None] + mean[:, None, None]
        pixels = pixels.flip(1) if how.channel_order == "bgr" else pixels
    if pixels.shape[1] != 3:
        pixels = pixels.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    return pixels.clamp(0, 1).movedim(1, -1).numpy()
