"""All figures of a model: what its weights show, what was seen over images, and their page."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import writing
from vitrail.core.html_text import escape_html
from vitrail.core.json_text import to_json
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
from vitrail.explanation.drawing import as_png, as_svg, as_svg_file, quiet
from vitrail.explanation.hooks import attention_blocks, forward_hooks, token_layouts
from vitrail.explanation.page import PAGE
from vitrail.explanation.page import STYLE as HOUSE
from vitrail.explanation.positions import bias_by_offset, position_table, shared_bias
from vitrail.explanation.tokens import tokens_on_grid
from vitrail.explanation.weight_figures import (
    Panel,
    bias_panel,
    denormalise,
    filter_panel,
    similarity_panel,
)

EXAMPLES = 4  # images of which tokens and ablations are drawn
NEEDS_IMAGES = "This figure needs images, and none were given: give DATA."
ACTIVATION_TITLES = {
    "distance": "Mean attention distance",
    "ablation": "Positions taken away",
    "tokens": "Principal components of tokens",
    "cka": "Likeness of layers (CKA)",
    "sinks": "Registers and attention sinks",
}

STYLE = """
.explain .panels { color: var(--ink); }
.explain .panels .card { overflow-x: auto; }
.explain .panels svg.plate { width: 100%; height: auto; margin: 0 auto; }
.explain .panels svg.plate text { fill: currentColor; }
.explain .panels .files { font-size: .87em; }
"""

Watch = Callable[[str, int, int | None], None]  # what, how many are done, of how many


@dataclass(frozen=True)
class Figures:
    """The panels in the order of the page, and what a page says first."""

    title: str
    facts: dict[str, str]
    panels: tuple[Panel, ...]

    def numbers(self) -> dict[str, Any]:
        """What machines read."""
        panels = {
            panel.name: {
                "title": panel.title,
                "caption": panel.caption,
                "drawn": panel.figure is not None,
                **panel.numbers,
            }
            for panel in self.panels
        }
        return {"title": self.title, "facts": self.facts, "figures": panels}

    def write(self, out: Path) -> Path:
        """A page, and beside it every figure as SVG and PNG, the numbers as JSON, and all arrays
        as NPZ; returns the page."""
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            drawn = {}
            for panel in self.panels:
                if panel.figure is not None:
                    drawn[panel.name] = as_svg(panel.figure, panel.name)
                    file = as_svg_file(drawn[panel.name])
                    (out / f"{panel.name}.svg").write_text(file, encoding="utf-8")
                    (out / f"{panel.name}.png").write_bytes(as_png(panel.figure))
            numbers = to_json(self.numbers(), indent=1)
            (out / "figures.json").write_text(numbers + "\n", encoding="utf-8")
            arrays = {
                f"{panel.name}/{name}": array
                for panel in self.panels
                for name, array in panel.arrays.items()
            }
            np.savez_compressed(out / "figures.npz", **arrays)  # type: ignore[arg-type]
            page = out / "figures.html"
            page.write_text(figures_page(self, drawn), encoding="utf-8")
        return page


def figures(
    model: nn.Module,
    batches: Iterable[Float[Tensor, "B C H W"]],
    *,
    title: str,
    ablated: int = EXAMPLES,
    watch: Watch | None = None,
) -> Figures:
    """Draw everything that can be drawn of a model.

    `batches` are prepared images; without any, only what weights show is drawn. `ablated` is of how
    many images positions are taken away, which runs the model once for every tile of the image.
    """
    tell = watch or (lambda what, done, total: None)
    passport = getattr(model, "passport", None)
    how: Preprocessing | None = getattr(passport, "preprocessing", None)
    seen = collect_statistics(
        model, batches, keep=EXAMPLES, watch=lambda done: tell("images", done, None)
    )
    with quiet(), torch.no_grad():
        flipped = how is not None and how.channel_order == "bgr"
        places = position_panel(model, seen.biases)
        panels = [filter_panel(model, flipped=flipped), places]
        if seen.images:
            pixels = denormalise(seen.examples, how)
            known = places.numbers["kind"] != "none"
            away = position_ablation_panel(
                model, seen.examples[:ablated], pixels, known=known, tell=tell
            )
            panels += [distance_panel(seen), away, token_panel(seen, pixels)]
            panels += [cka_panel(seen), sink_panel(model, seen)]
        else:
            panels += [Panel(name, what, NEEDS_IMAGES) for name, what in ACTIVATION_TITLES.items()]
    facts = {
        "attentions": str(len(seen.layouts)),
        "parameters": f"{sum(weight.numel() for weight in model.parameters()):,}",
        "images": str(seen.images),
    }
    return Figures(title, facts, tuple(panels))


def position_panel(model: nn.Module, biases: dict[str, Float[Tensor, "h down across"]]) -> Panel:
    """What the model knows of places: its table, else its biases, else what edges tell."""
    layouts = token_layouts(model)
    table = position_table(model, next(iter(layouts.values())))
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
    with forward_hooks(model.eval(), attention=see_attention, block=see_block):
        model.encode(blank)  # type: ignore[operator]
    if found:
        return bias_panel(found)
    first = attention_blocks(model)[0]
    size = (blank.shape[2], blank.shape[3])
    return similarity_panel(
        tokens_on_grid(tokens[first], layouts.values(), size).grid[0], blank=True
    )


def blank_image(model: nn.Module) -> Float[Tensor, "1 C H W"]:
    """An image of one colour that is not zero, so that the zeros around it can be told from it."""
    config: Any = model.config
    weight = next(model.parameters())
    return weight.new_full((1, config.channels, *config.image_size), 0.5)


def position_ablation_panel(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    pixels: Float[np.ndarray, "K H W 3"],
    *,
    known: bool,
    tell: Watch,
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
        model, images, watch=lambda done, total: tell("tiles", done, total)
    )
    return ablation_panel(changes, pixels[: len(images)], what)


def figures_page(found: Figures, drawn: dict[str, str]) -> str:
    """One file with its drawings inside, and nothing that must run."""
    facts = "".join(
        f"<div><dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd></div>"
        for name, value in found.facts.items()
    )
    links = "".join(
        f'<a href="#{each.name}">{escape_html(each.title)}</a>' for each in found.panels
    )
    sections = "".join(section(panel, drawn.get(panel.name)) for panel in found.panels)
    body = (
        f"<header><h1>{escape_html(found.title)}</h1>\n<p>What the model has learnt, drawn from "
        f'its weights and from what it does with images.</p><dl class="facts">{facts}</dl>\n'
        f'<nav>{links}</nav></header>\n<div class="panels">{sections}</div>'
    )
    return PAGE.format(title=f"{escape_html(found.title)}: figures", style=HOUSE + STYLE, body=body)


def section(panel: Panel, drawing: str | None) -> str:
    body = f"<p>{escape_html(panel.caption)}</p>\n"
    if drawing is not None:
        files = " ".join(
            f'<a href="{panel.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png")
        )
        named = drawing.replace(
            'role="img"', f'role="img" aria-label="{escape_html(panel.title)}"', 1
        )
        body += f'<figure class="card">{named}</figure><p class="soft files">{files}</p>\n'
    return f'<section id="{panel.name}"><h2>{escape_html(panel.title)}</h2>\n{body}</section>\n'
