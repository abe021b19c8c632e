"""The figure of equivariance: models side by side, block by block, from first to last."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from vitrail.core.layout import format_sides
from vitrail.explanation.drawing import ink, new_figure
from vitrail.explanation.equivariance import Equivariance, Moved
from vitrail.explanation.weight_figures import Panel

NAME, TITLE = "equivariance", "Equivariance and locality"
COLOURS, DASHES = 6, ("-", (0, (4, 2)), (0, (1, 1.5)))
BARS = {"pixel": "1 pixel", "shifted": "1 patch", "permuted": "patches permuted"}
HEADS = (
    "model", "patch", "1 pixel, last block", "1 patch, last block", "output, 1 pixel",
    "output, 1 patch", "output, permuted", "same label, permuted", "receptive field, first block",
    "receptive field, last block", "attention, first", "attention, last",
)  # fmt: skip


def equivariance_panel(found: Mapping[str, Equivariance]) -> Panel:
    """One figure for one model or several."""
    figure = new_figure(9.6, 6.4 + 0.16 * (len(found) // 4))
    axes = figure.subplots(2, 2)
    titles = {"pixel": "shifted by one pixel", "shifted": "shifted by one patch"}
    for axis, (what, title) in zip(axes[0], titles.items(), strict=True):
        draw_blocks(axis, found, what, title)
    draw_locality(axes[1, 0], found)
    draw_outputs(axes[1, 1], found)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(found), 4))
    numbers = {name: {**asdict(one), "relative": relative(one)} for name, one in found.items()}
    rows = [HEADS, *(row_of(name, one) for name, one in found.items())]
    return Panel(NAME, TITLE, caption(found), figure, numbers, {}, rows)


def relative(one: Equivariance) -> dict[str, list[float | None]]:
    return {what: list(one.relative(what)) for what in ("pixel", "shifted")}


def line_style(place: int) -> dict[str, Any]:
    """A colour and a dash of its own for each of eighteen models."""
    return {
        "color": f"C{place % COLOURS}",
        "linestyle": DASHES[place // COLOURS % len(DASHES)],
        "linewidth": 1.4,
    }


def depths(count: int) -> Any:
    return np.array([1.0]) if count == 1 else np.linspace(0, 1, count)


def finish(axis: Any, title: str, label: str) -> None:
    axis.set_title(title)
    axis.set_ylabel(label)
    axis.set_ylim(0)
    axis.grid(axis="y", color=ink(), alpha=0.12, linewidth=0.6)
    axis.set_axisbelow(True)


def draw_blocks(axis: Any, found: Mapping[str, Equivariance], what: str, title: str) -> None:
    """How far the maps of blocks are from the shifted ones."""
    measured = all(one.other is not None for one in found.values())
    for place, (name, one) in enumerate(found.items()):
        moved: Moved | None = getattr(one, what)
        values: Sequence[float | None] = () if moved is None else moved.blocks
        values = one.relative(what) if measured else values
        known = [float("nan") if value is None else value for value in values]
        axis.plot(
            depths(len(known)), known, label=name, marker=".", markersize=4, **line_style(place)
        )
    axis.set_xlabel("depth, from the first block to the last")
    finish(axis, title, "tokens moved (1 = another image)" if measured else "tokens moved")


def draw_locality(axis: Any, found: Mapping[str, Equivariance]) -> None:
    """The receptive field of every block, and the distance of attention as rings."""
    for place, (_, one) in enumerate(found.items()):
        how = line_style(place)
        axis.plot(depths(len(one.receptive_field)), one.receptive_field, **how)
        rings: dict[str, Any] = {"marker": "o", "markersize": 3.5, "markerfacecolor": "none"}
        at, colour = attention_depths(one), how["color"]
        values = list(one.attention.values())
        axis.plot(at, values, linestyle="none", color=colour, **rings)
    axis.set_xlabel("depth, from the first block to the last")
    finish(axis, "locality: receptive field (lines), attention (rings)", "share of the diagonal")


def attention_depths(one: Equivariance) -> list[float]:
    """Where the block of each attention lies."""
    places = depths(len(one.blocks)).tolist()
    known = dict(zip(one.blocks, places, strict=True))
    return [
        next((place for block, place in known.items() if f"{name}.".startswith(f"{block}.")), 1.0)
        for name in one.attention
    ]


def draw_outputs(axis: Any, found: Mapping[str, Equivariance]) -> None:
    """How far the output moves: a group of bars for each change, a bar for each model."""
    width = 0.8 / len(found)
    for place, (_, one) in enumerate(found.items()):
        values = [output_moved(getattr(one, what)) for what in BARS]
        at = np.arange(len(BARS)) + (place - (len(found) - 1) / 2) * width
        heights = [0.0 if value is None else value for value in values]
        hatch = ("", "////", "....")[place // COLOURS % 3]
        colour = f"C{place % COLOURS}"
        axis.bar(at, heights, width * 0.92, color=colour, hatch=hatch, edgecolor="white", lw=0)
    axis.set_xticks(range(len(BARS)), list(BARS.values()))
    finish(axis, "output", "logits moved, share of their norm")


def output_moved(moved: Moved | None) -> float | None:
    """Of the logits; of what the head reads where there are no logits to compare."""
    if moved is None:
        return None
    return moved.pooled if moved.logits is None else moved.logits


def row_of(name: str, one: Equivariance) -> tuple[str, ...]:
    ends = [one.receptive_field[0], one.receptive_field[-1]]
    attention = list(one.attention.values())
    ends += [attention[0], attention[-1]] if attention else []
    shares = [f"{value:.1%}" for value in ends] + ["–"] * (4 - len(ends))
    blocks = [
        "–" if moved is None or not moved.blocks else f"{moved.blocks[-1]:.3g}"
        for moved in (one.pixel, one.shifted)
    ]
    outputs = [text_of(output_moved(getattr(one, what))) for what in BARS]
    same = None if one.permuted is None else one.permuted.same_label
    label = "–" if same is None else f"{same:.0%}"
    return (name, format_sides(one.patch), *blocks, *outputs, label, *shares)


def text_of(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def caption(found: Mapping[str, Equivariance]) -> str:
    images = next(iter(found.values())).images
    texts = [
        f"Over {images} image{'' if images == 1 else 's'}: each is rolled down and to the right by "
        "one pixel and by one patch (a cell of the coarsest map), and the map of every block is "
        "compared with the map before, moved by as many cells, away from the border. 0 is exactly "
        "equivariant."
    ]
    if len(found) > 1:
        for what, words in (("pixel", "one pixel"), ("shifted", "one patch")):
            last = {
                name: moved.blocks[-1]
                for name, one in found.items()
                if (moved := getattr(one, what)) is not None and moved.blocks
            }
            if last:
                least, most = min(last, key=lambda n: last[n]), max(last, key=lambda n: last[n])
                texts.append(
                    f"Shifted by {words}, the last block moves least in {least} "
                    f"({last[least]:.2g} of its norm) and most in {most} ({last[most]:.2g})."
                )
    permuted = {
        name: moved
        for name, one in found.items()
        if (moved := output_moved(one.permuted)) is not None
    }
    if permuted and len(found) <= 3:
        each = ", ".join(f"{moved:.2g} ({name})" for name, moved in permuted.items())
        texts.append(
            f"With patches permuted, the output moves by {each} of its norm; that of a ViT without "
            "positions would not move."
        )
    texts.append(
        "Lines below: how far from its middle cell the pixels are that a block depends on, "
        "weighted by the squared gradient; rings: the mean distance of attention."
    )
    return " ".join(texts)
