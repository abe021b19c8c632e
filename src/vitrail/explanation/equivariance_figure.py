"""The figure of equivariance: models side by side, block by block, from first to last."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from vitrail.core.layout import format_sides, height_and_width
from vitrail.explanation.drawing import ink, new_figure
from vitrail.explanation.equivariance import FEWEST_CELLS, Equivariance, Moved
from vitrail.explanation.weight_figures import Panel

NAME, TITLE = "equivariance", "Equivariance and locality"
# Each model has a colour of its own, and without colours a pair of dash and marker: 4 x 5 of them.
COLOURS = 12
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)))
HATCHES = ("", "////", "....", "xxxx")  # of bars, in place of dashes
MARKERS = ("o", "s", "^", "D", "v")
SHIFTS = {"pixel": "shifted by one pixel", "shifted": "shifted by one patch"}
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
    for axis, (what, title) in zip(axes[0], SHIFTS.items(), strict=True):
        draw_blocks(axis, found, what, title)
    draw_locality(axes[1, 0], found)
    draw_outputs(axes[1, 1], found)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(found), 4))
    numbers = {name: {**asdict(one), "relative": relative(one)} for name, one in found.items()}
    last = {what: last_moved(found, what) for what in SHIFTS}
    rows = [HEADS, *(row_of(name, one, last) for name, one in found.items())]
    return Panel(NAME, TITLE, caption(found), figure, numbers, {}, rows)


def relative(one: Equivariance) -> dict[str, list[float | None]]:
    return {what: list(one.relative(what)) for what in ("pixel", "shifted")}


def line_style(place: int) -> dict[str, Any]:
    """How the lines and marks of a model look."""
    return {
        "color": f"C{place % COLOURS}",
        "linestyle": DASHES[place % len(DASHES)],
        "linewidth": 1.4,
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 3,
    }


def is_relative(found: Mapping[str, Equivariance]) -> bool:
    """Whether blocks are shown as shares of how far another image moves them: all or none."""
    return all(one.other is not None for one in found.values())


def blocks_moved(found: Mapping[str, Equivariance], what: str) -> dict[str, list[float]]:
    """The lines of a shift, by model; nan where nothing is known."""
    lines = {}
    for name, one in found.items():
        moved: Moved | None = getattr(one, what)
        values: Sequence[float | None] = () if moved is None else moved.blocks
        values = one.relative(what) if is_relative(found) else values
        lines[name] = [float("nan") if value is None else value for value in values]
    return lines


def last_moved(found: Mapping[str, Equivariance], what: str) -> dict[str, float]:
    """Where the line of each model ends, of those that have one."""
    lines = blocks_moved(found, what)
    return {name: line[-1] for name, line in lines.items() if line and np.isfinite(line[-1])}


def depths(count: int) -> Any:
    return np.array([1.0]) if count == 1 else np.linspace(0, 1, count)


def finish(axis: Any, title: str, label: str) -> None:
    axis.set_title(title)
    axis.set_ylabel(label)
    axis.set_ylim(0, 1.04 * axis.get_ylim()[1])
    axis.grid(axis="y", color=ink(), alpha=0.12, linewidth=0.6)
    axis.set_axisbelow(True)


def draw_blocks(axis: Any, found: Mapping[str, Equivariance], what: str, title: str) -> None:
    """How far the maps of blocks are from the shifted ones."""
    for place, (name, line) in enumerate(blocks_moved(found, what).items()):
        axis.plot(depths(len(line)), line, label=name, **line_style(place))
    axis.set_xlabel("depth, from the first block to the last")
    label = "tokens moved (1 = another image)"
    finish(axis, title, label if is_relative(found) else "tokens moved, share of their norm")


def draw_locality(axis: Any, found: Mapping[str, Equivariance]) -> None:
    """The receptive field of every block as a line, and the distance of attention as hollow marks
    of the shape that the model has elsewhere."""
    for place, one in enumerate(found.values()):
        how = line_style(place)
        line = {**how, "marker": "none"}
        axis.plot(depths(len(one.receptive_field)), one.receptive_field, **line)
        marks = {**how, "linestyle": "none", "markersize": 4.5, "markerfacecolor": "none"}
        axis.plot(attention_depths(one), list(one.attention.values()), **marks)
    axis.set_xlabel("depth, from the first block to the last")
    title = "locality: receptive field (lines), attention (hollow marks)"
    finish(axis, title, "share of the image's diagonal")


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
    for place, one in enumerate(found.values()):
        values = [output_moved(getattr(one, what)) for what in BARS]
        at = np.arange(len(BARS)) + (place - (len(found) - 1) / 2) * width
        heights = [0.0 if value is None else value for value in values]
        how = {"color": f"C{place % COLOURS}", "hatch": HATCHES[place % len(HATCHES)]}
        axis.bar(at, heights, width * 0.92, edgecolor="white", lw=0, **how)
        for where, value in zip(at, values, strict=True):
            if value is None:  # no bar looks like one of height 0
                axis.text(where, 0, " not measured", rotation=90, ha="center", va="bottom", size=7)
    axis.set_xticks(range(len(BARS)), list(BARS.values()))
    finish(axis, "output", "logits moved, share of their norm")


def output_moved(moved: Moved | None) -> float | None:
    """Of the logits; of what the head reads where there are no logits to compare."""
    if moved is None:
        return None
    return moved.pooled if moved.logits is None else moved.logits


def row_of(
    name: str, one: Equivariance, last: Mapping[str, Mapping[str, float]]
) -> tuple[str, ...]:
    """The table's row of a model; `last` is where its lines end, by shift."""
    ends = [one.receptive_field[0], one.receptive_field[-1]]
    attention = list(one.attention.values())
    ends += [attention[0], attention[-1]] if attention else []
    shares = [f"{value:.1%}" for value in ends] + ["–"] * (4 - len(ends))
    blocks = [text_of(last[what].get(name)) for what in SHIFTS]
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
    if is_relative(found):
        texts.append("1 is as far as another image moves the map.")
    if len(found) > 1:
        texts += [extremes_sentence(found, what) for what in SHIFTS]
    if len(found) <= 3:
        texts.append(permuted_sentence(found))
    texts += missing_sentences(found)
    texts.append(few_cells_sentence(found))
    texts.append(
        "Lines below: how far from its middle cell the pixels are that a block depends on, "
        "weighted by the squared gradient; hollow marks: the mean distance of attention. Both are "
        "shares of the image's diagonal: 1 would be from one corner to the opposite one."
    )
    return " ".join(text for text in texts if text)


def extremes_sentence(found: Mapping[str, Equivariance], what: str) -> str:
    """Which models a shift moves least and most, by the numbers of the axis."""
    last = last_moved(found, what)
    if len(last) < 2:
        return ""
    least, most = min(last, key=lambda n: last[n]), max(last, key=lambda n: last[n])
    lowest = f"{last[least]:.2g}" if is_relative(found) else f"{last[least]:.2g} of its norm"
    return (
        f"{SHIFTS[what].capitalize()}, the last block moves least in {least} ({lowest}) and most "
        f"in {most} ({last[most]:.2g})."
    )


def permuted_sentence(found: Mapping[str, Equivariance]) -> str:
    moved = {name: output_moved(one.permuted) for name, one in found.items()}
    each = ", ".join(f"{one:.2g} ({name})" for name, one in moved.items() if one is not None)
    if not each:
        return ""
    return (
        f"With patches permuted, the output moves by {each} of its norm; that of a ViT without "
        "positions would not move."
    )


def missing_sentences(found: Mapping[str, Equivariance]) -> list[str]:
    """The models that a shift by a patch or a permutation has no numbers of, and why."""
    models: dict[tuple[str, str], list[str]] = {}
    for name, one in found.items():
        changes = {SHIFTS["shifted"]: one.shifted, BARS["permuted"]: one.permuted}
        absent = " and ".join(f"“{what}”" for what, moved in changes.items() if moved is None)
        size, patch = format_sides(one.image_size), format_sides(one.patch)
        reason = f"an image of {size} pixels has fewer than two patches of {patch} a side"
        if absent:
            models.setdefault((absent, reason), []).append(name)
    return [
        f"Missing from {absent}: {', '.join(names)}, because {reason}."
        for (absent, reason), names in models.items()
    ]


def few_cells_sentence(found: Mapping[str, Equivariance]) -> str:
    """A warning that names the models whose coarsest maps are too small."""
    few = {
        name: " x ".join(map(str, height_and_width(one.fewest_cells)))
        for name, one in found.items()
        if min(height_and_width(one.fewest_cells)) < FEWEST_CELLS
    }
    if not few:
        return ""
    each = ", ".join(f"{name} ({cells})" for name, cells in few.items())
    return (
        f"Warning: maps of fewer than {FEWEST_CELLS} cells a side are nearly all border, so their "
        f"shifts are not to be trusted: {each}. Use larger images."
    )
