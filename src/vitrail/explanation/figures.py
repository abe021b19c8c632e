"""All figures of a model: what its weights show, and what it does with images."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.passport import Preprocessing
from vitrail.explanation.ablation import position_ablation
from vitrail.explanation.activation_figures import (
    ablation_panel,
    cka_panel,
    distance_panel,
    sink_panel,
    token_panel,
)
from vitrail.explanation.activation_statistics import collect_statistics
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.hooks import attention_blocks, forward_hooks, token_layouts
from vitrail.explanation.positions import bias_by_offset, position_table, shared_bias
from vitrail.explanation.tokens import tokens_on_grid
from vitrail.explanation.weight_figures import (
    Panel,
    bias_panel,
    denormalise,
    filter_panel,
    similarity_panel,
)

MIN_CELLS = 7  # a side, of the map whose cells are compared where no attention has any
EXAMPLES = 4  # images of which tokens and ablations are drawn
FIGURES = ("filters", "positions", "distance", "ablation", "tokens", "cka", "sinks")
NEEDS_ATTENTION = "This figure shows attention, and this model has none: it is convolutional."
NEEDS_IMAGES = "This figure needs images, and none were given: give DATA."
ACTIVATION_TITLES = {
    "distance": "Mean attention distance",
    "ablation": "Position ablation",
    "tokens": "Principal components of tokens",
    "cka": "Similarity of layers (CKA)",
    "sinks": "Registers and attention sinks",
}

OnProgress = Callable[[str, int, int | None], None]  # what, how many are done, of how many


def draw_figures(
    model: nn.Module,
    batches: Iterable[Float[Tensor, "B C H W"]],
    *,
    ablated: int = EXAMPLES,
    on_progress: OnProgress | None = None,
) -> tuple[dict[str, int], tuple[Panel, ...]]:
    """Draw everything that can be drawn of a model, in the style that matplotlib is set to: a few
    facts, and the panels.

    `batches` are prepared images; without any, only what weights show is drawn. `ablated` is of how
    many images positions are taken away, which runs the model once for every tile of the image.
    """
    progress = on_progress or (lambda what, done, total: None)
    passport = getattr(model, "passport", None)
    how: Preprocessing | None = getattr(passport, "preprocessing", None)
    seen = collect_statistics(
        model, batches, keep=EXAMPLES, on_progress=lambda done: progress("images", done, None)
    )
    with torch.no_grad():
        flipped = how is not None and how.channel_order == "bgr"
        places = position_panel(model, seen.biases)
        panels = [filter_panel(model, flipped=flipped), places]
        if seen.images:
            pixels = denormalise(seen.examples, how)
            known = places.numbers["kind"] != "none"
            away = position_ablation_panel(
                model, seen.examples[:ablated], pixels, known=known, progress=progress
            )
            attends = bool(seen.layouts)
            panels += [distance_panel(seen) if attends else without_attention("distance"), away]
            panels += [token_panel(seen, pixels), cka_panel(seen)]
            panels += [sink_panel(model, seen) if attends else without_attention("sinks")]
        else:
            panels += [Panel(name, what, NEEDS_IMAGES) for name, what in ACTIVATION_TITLES.items()]
    facts = {
        "attentions": len(seen.layouts),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "images": seen.images,
    }
    return facts, tuple(panels)


def without_attention(name: str) -> Panel:
    return Panel(name, ACTIVATION_TITLES[name], NEEDS_ATTENTION)


def position_panel(model: nn.Module, biases: dict[str, Float[Tensor, "h down across"]]) -> Panel:
    """What the model knows of places: its table, else its biases, else what edges tell."""
    layouts = token_layouts(model)
    first_layout = next(iter(layouts.values()), None)
    table = None if first_layout is None else position_table(model, first_layout)
    if table is not None:
        return similarity_panel(table)
    found, tokens = dict(biases), dict[str, Tensor]()

    def see_attention(name: str, one: AttentionMap, bias: Tensor | None) -> None:
        if bias is not None and name not in found:
            side = one.layout.window or one.layout.grid
            found[name] = bias_by_offset(shared_bias(bias, one.layout).float(), side).cpu()

    def see_block(name: str, output: Tensor) -> None:
        tokens[name] = output

    blank = blank_image(model)
    attend = see_attention if layouts else None
    with forward_hooks(model.eval(), attention=attend, block=see_block):
        model.encode(blank)  # type: ignore[operator]
    if found:
        return bias_panel(found)
    first = attention_blocks(model)[0] if layouts else coarsest_block(tokens)
    size = (blank.shape[2], blank.shape[3])
    grid = tokens_on_grid(tokens[first], layouts.values(), size).grid[0]
    return similarity_panel(grid, blank=True, convolved=None if layouts else first)


def coarsest_block(maps: dict[str, Tensor]) -> str:
    """The deepest block of a convolutional network whose map still has a few cells a side."""
    large = [name for name, one in maps.items() if min(one.shape[2:]) >= MIN_CELLS]
    return large[-1] if large else next(iter(maps))


def blank_image(model: nn.Module) -> Float[Tensor, "1 C H W"]:
    """An image of one colour that is not zero, so that it differs from the zeros around it."""
    config: Any = model.config
    weight = next(model.parameters())
    return weight.new_full((1, config.channels, *config.image_size), 0.5)


def position_ablation_panel(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    pixels: Float[np.ndarray, "K H W 3"],
    *,
    known: bool,
    progress: OnProgress,
) -> Panel:
    title = ACTIVATION_TITLES["ablation"]
    if not known:
        return Panel(
            "ablation",
            title,
            "There is nothing to take away: this model has no positions and no bias by offset.",
        )
    if not len(images):
        return Panel("ablation", title, "No image was chosen for this figure.")
    changes, what = position_ablation(
        model, images, on_progress=lambda done, total: progress("tiles", done, total)
    )
    return ablation_panel(changes, pixels[: len(images)], what)
