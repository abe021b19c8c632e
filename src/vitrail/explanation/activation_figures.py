"""The figures of what was seen while a model ran over images."""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.explanation.activation_statistics import ActivationStatistics
from vitrail.explanation.attention_sinks import OUTLIER, prefix_names
from vitrail.explanation.distance import uniform_distance
from vitrail.explanation.drawing import DASHED, by_depth, ink, key, new_figure, show
from vitrail.explanation.tokens import pca_colours
from vitrail.explanation.weight_figures import Panel

SMALL_CHANGE = 0.01  # of the answer's length
LOG_SCALE_FROM = 30  # times larger than the smallest: such lengths are drawn by their logarithm


def distance_panel(seen: ActivationStatistics) -> Panel:
    """Figure 7, right, and figure 11: how far attention reaches."""
    names = list(seen.distance)
    means = {name: seen.distance[name].double().mean(dim=0) for name in names}
    plain = {name: seen.raw_distance[name].double().mean(dim=0) for name in names}
    even = [uniform_distance(seen.layouts[name]) for name in names]
    figure = new_figure(6.4, 3.6)
    axis = figure.subplots()
    for place, name in enumerate(names):
        heads = means[name].numpy()
        label, where = "a head" if place == 0 else None, np.full(len(heads), place)
        axis.scatter(where, heads, s=16, color="C0", alpha=0.65, lw=0, label=label)
    middle = [float(means[name].mean()) for name in names]
    axis.plot(middle, color=ink(), lw=1, alpha=0.7, label="mean of the heads")
    evenly: dict[str, Any] = {"color": "C1", "ls": DASHED, "drawstyle": "steps-mid"}
    axis.plot(even, label="attention to all it can see alike", lw=1.2, **evenly)
    by_depth(axis, names, "mean attention distance, pixels")
    axis.set_ylim(0)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=3)
    closest = min((float(means[name].min()), name) for name in names)
    farthest = max((float(means[name].max()), name) for name in names)
    prefix = (
        " Prefix tokens lie nowhere: their rows and columns are left out, and what is left of a "
        "row is brought back to a sum of one."
        if seen.prefix
        else ""
    )
    windows = (
        " The dashed line has steps, because windows, strides or folds let each layer see another "
        "part of the image."
        if len({round(value, 6) for value in even}) > 1
        else ""
    )
    caption = (
        f"A dot for each head, over {seen.images} images: the distance from a patch to the patches "
        f"it attends to, weighted by attention. It goes from {closest[0]:.1f} pixels "
        f"({closest[1]}) to {farthest[0]:.1f} ({farthest[1]}). Dots near the dashed line attend "
        f"uniformly, dots below it attend locally, dots above it far away.{prefix}{windows}"
    )
    numbers = {
        name: {
            "heads": means[name].tolist(),
            "heads_without_renormalising": plain[name].tolist(),
            "even": reference,
            "stride": seen.layouts[name].stride,
        }
        for name, reference in zip(names, even, strict=True)
    }
    arrays = {f"distance.{name}": seen.distance[name].numpy() for name in names}
    table: list[tuple[str, ...]] = [
        ("layer", "mean of heads", "lowest head", "highest head", "uniform attention")
    ]
    for name, reference in zip(names, even, strict=True):
        each = means[name]
        values = (each.mean(), each.min(), each.max(), reference)
        table.append((name, *(f"{float(value):.1f}" for value in values)))
    title = "Mean attention distance"
    return Panel("distance", title, caption, figure, numbers, arrays, table)


def ablation_panel(
    changes: Float[Tensor, "B rows columns"],
    images: NDArray[np.float64],
    what: str,
) -> Panel:
    """What happens to the answer when the position of a tile is replaced by the mean."""
    values = changes.double().numpy()
    top = max(float(values.max()), 1e-12)
    count = len(values)
    width = 1.6 if images.shape[1] >= images.shape[2] / 2 else 3.2
    high = width * images.shape[1] / images.shape[2]
    many = count > 1
    figure = new_figure(width * (count + many) + 0.8, 2 * high + 0.5)
    axes = figure.subplots(2, count + many, squeeze=False)
    for place in range(count):
        show(axes[0, place], images[place])
        here = image_extent(images[place])
        drawn = show(axes[1, place], values[place], cmap="magma", vmin=0, vmax=top, extent=here)
    if many:
        axes[0, count].set_axis_off()
        mean = values.mean(axis=0)
        show(axes[1, count], mean, cmap="magma", vmin=0, vmax=top, extent=image_extent(images[0]))
        axes[1, count].set_xlabel("mean")
    key(figure, drawn, list(axes.flat), f"change of the {what}")
    rows, columns = values.shape[1:]
    caption = (
        f"For each of {rows}x{columns} tiles in turn, its position embedding is replaced by the "
        "mean of all, and so are the biases of attention between it and the rest. The colour is by "
        f"how much the {what} change then, as a share of their length: on average by "
        f"{format_percent(values.mean())}, at most by {format_percent(values.max())}. Bright tiles "
        "are places whose position the model uses for this image."
    )
    if values.max() < SMALL_CHANGE:
        caption += " That is very little: the model hardly uses position."
    if what == "features":
        caption += " The model has no trained head, so its features are compared, not its logits."
    numbers = {"mean": float(values.mean()), "largest": float(values.max()), "of": what}
    arrays = {"ablation": values}
    table: list[tuple[str, ...]] = [("image", "mean change", "largest change")]
    for place, each in enumerate(values):
        table.append((str(place + 1), format_percent(each.mean()), format_percent(each.max())))
    return Panel("ablation", "Position ablation", caption, figure, numbers, arrays, table)


def format_percent(share: float) -> str:
    """
    >>> format_percent(0.1234), format_percent(0.0000123)
    ('12%', '0.0012%')
    """
    return f"{100 * share:.2g}%"


def token_panel(seen: ActivationStatistics, images: NDArray[np.float64]) -> Panel:
    """Tokens by their principal components, as DINOv2 shows them."""
    names = list(seen.tokens)
    names = [*(name for name in names if name != "encode"), "encode"]
    count = len(images)
    high = 1.5 * images.shape[1] / images.shape[2]
    figure = new_figure(1.5 * (len(names) + 1), (high + 0.12) * count + 0.25)
    axes = figure.subplots(count, len(names) + 1, squeeze=False)
    shares = {}
    arrays = {}
    for column, name in enumerate(names):
        colours, parts = pca_colours(seen.tokens[name])
        shares[name] = float(parts.sum(dim=1).mean())
        arrays[f"colours.{name}"] = colours.numpy()
        for row in range(count):
            show(axes[row, column + 1], colours[row].numpy(), extent=image_extent(images[row]))
        axes[0, column + 1].set_title("what is pooled" if name == "encode" else name)
    for row in range(count):
        show(axes[row, 0], images[row])
    axes[0, 0].set_title("image")
    caption = (
        "The patches of each image after some of the steps, coloured by the first three "
        "principal components of their features: red, green and blue. Patches that the model finds "
        "alike have like colours. The components are each image's own, so colours cannot be "
        f"compared between images or steps. They hold at least {min(shares.values()):.0%} of the "
        "variance."
    )
    title, numbers = "Principal components of tokens", {"variance": shares}
    table = [("block", "variance"), *((name, f"{share:.1%}") for name, share in shares.items())]
    return Panel("tokens", title, caption, figure, numbers, arrays, table)


def image_extent(image: NDArray[Any]) -> tuple[float, float, float, float]:
    """Left, right, bottom, top, so that a map covers what its image does."""
    return 0, image.shape[1], image.shape[0], 0


def cka_panel(seen: ActivationStatistics) -> Panel:
    """How alike any two steps see the images."""
    title = "Similarity of layers (CKA)"
    matrix, names = seen.cka.matrix(), seen.cka.names
    if matrix is None:
        caption = (
            f"The likeness of layers is not shown: it needs batches of at least 4 images, and "
            f"there were {seen.images}. Give data, more images or larger batches."
        )
        return Panel("cka", title, caption)
    values = matrix.numpy()
    side = min(max(0.24 * len(names) + 2.4, 4.2), 7.2)
    figure = new_figure(side + 0.7, side)
    axis = figure.subplots()
    drawn = show(axis, values, cmap="magma", vmin=0, vmax=1, origin="lower")
    places = range(0, len(names), -(-len(names) // 24))
    axis.set_xticks(list(places), [names[place] for place in places], rotation=90)
    axis.set_yticks(list(places), [names[place] for place in places])
    key(figure, drawn, axis, "CKA")
    side_by_side = np.diagonal(values, 1)
    jump = int(side_by_side.argmin()) if len(side_by_side) else 0
    change = (
        f" From one step to the next most changes between {names[jump]} and {names[jump + 1]} "
        f"({side_by_side[jump]:.2f})."
        if len(side_by_side)
        else ""
    )
    few = seen.cka.images < 32
    doubt = (
        f" {seen.cka.images} images are few, so these numbers are rough: use at least 32."
        if few
        else ""
    )
    caption = (
        "Linear centred kernel alignment of every two steps, unbiased, over "
        f"{seen.cka.images} images: 1 where both find the same images alike, 0 where "
        f"they have nothing to do with each other. The first and the last step: "
        f"{values[0, -1]:.2f}.{change}{doubt}"
    )
    numbers = {"steps": list(names), "images": seen.cka.images, "cka": values.tolist()}
    table: list[tuple[str, ...]] = [("", *names)]
    table += [(n, *(f"{v:.2f}" for v in row)) for n, row in zip(names, values, strict=True)]
    return Panel("cka", title, caption, figure, numbers, {"cka": values}, table)


def sink_panel(model: nn.Module, seen: ActivationStatistics) -> Panel:
    """Whether a few tokens get all attention, or have features far too large."""
    names, steps = list(seen.strongest), list(seen.norms)
    tokens = prefix_names(model, seen.prefix)
    figure = new_figure(9.6 if tokens else 6.6, 3.3)
    axes = list(figure.subplots(1, 3 if tokens else 2))
    shares: dict[str, list[float]] = {}
    if tokens:
        axis = axes.pop(0)
        table = np.array([seen.to_prefix[n].double().mean(dim=(0, 1)).tolist() for n in names])
        for number, token in enumerate(tokens):
            shares[token] = table[:, number].tolist()
            colour = f"C{number}"
            axis.plot(100 * table[:, number], color=colour, label=token, marker=".", ms=4)
        evenly = [100 / layout.tokens for layout in seen.layouts.values()]
        axis.plot(evenly, color=ink(), ls=DASHED, lw=1, alpha=0.7, label="uniform weight")
        by_depth(axis, names, "% of the patches' attention")
        axis.set_ylim(0)
        legend_above(axis)
    times = {name: float(seen.strongest[name].double().mean()) for name in names}
    axes[0].plot(list(times.values()), color="C0", marker=".", ms=4)
    by_depth(axes[0], names, "most attended patch (1 = uniform)")
    axes[0].set_ylim(0)
    norms = {name: norm_numbers(seen, name) for name in steps}
    draw_norms(axes[1], norms, steps)
    worst = max(steps, key=lambda name: norms[name]["outliers"])
    caption = sink_caption(tokens, shares, times, norms, worst)
    numbers = {"attention_to": shares, "strongest_patch": times, "norms": norms}
    rows: list[tuple[str, ...]] = [("block", "median norm", "largest norm", "outliers")]
    for name, norm in norms.items():
        texts = (f"{norm['median']:.3g}", f"{norm['largest']:.3g}", f"{norm['outliers']:.2%}")
        rows.append((name, *texts))
    title = "Registers and attention sinks"
    return Panel("sinks", title, caption, figure, numbers, table=rows)


def norm_numbers(seen: ActivationStatistics, name: str) -> dict[str, Any]:
    one = seen.norms[name]
    return {
        "median": float(one.median.mean()),
        "99%": float(one.high.mean()),
        "largest": float(one.most.max()),
        "outliers": float(one.outliers.mean()),
        "prefix": one.prefix.mean(dim=0).tolist(),
    }


def draw_norms(axis: Any, norms: dict[str, dict[str, Any]], steps: list[str]) -> None:
    lines = {"largest": ("C1", "the longest"), "99%": ("C4", "1 in 100 is longer")}
    for which, (colour, label) in lines.items():
        axis.plot([norms[name][which] for name in steps], color=colour, label=label, lw=1)
    axis.plot([norms[name]["median"] for name in steps], color="C0", label="median")
    limit = [OUTLIER * norms[name]["median"] for name in steps]
    axis.plot(limit, color=ink(), ls=DASHED, lw=1, alpha=0.7, label=f"{OUTLIER:g} medians")
    by_depth(axis, steps, "norm of the patches")
    if max(limit) > LOG_SCALE_FROM * min(limit) > 0:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0)
    legend_above(axis)


def legend_above(axis: Any) -> None:
    """A legend where no line is."""
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, columnspacing=1.2)


def sink_caption(
    tokens: tuple[str, ...],
    shares: dict[str, list[float]],
    times: dict[str, float],
    norms: dict[str, dict[str, Any]],
    worst: str,
) -> str:
    if tokens:
        most, where, layer = max(
            (share, token, place)
            for token, row in shares.items()
            for place, share in enumerate(row)
        )
        first = (
            f"Left: how much of their attention patches give to each prefix token; at most "
            f"{most:.1%}, to the {where}, at depth {layer + 1}. "
        )
    else:
        first = "There is no prefix token, so attention can rest on patches alone. "
    name = max(times, key=lambda each: times[each])
    second = (
        f"The most attended patch receives {times[name]:.1f} times the uniform weight in {name}. "
    )
    share = norms[worst]["outliers"]
    if share == 0:
        third = (
            f"No patch norm exceeds {OUTLIER:g} times the median of its image: there are no "
            "norm outliers."
        )
    else:
        third = (
            f"After {worst}, {share:.2%} of the patch norms exceed {OUTLIER:g} times the "
            "median of their image. Where these show plain background and many attend to them, "
            "they are the attention sinks that registers are made for (arXiv:2309.16588)."
        )
    return first + second + third
