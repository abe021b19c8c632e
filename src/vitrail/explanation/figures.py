"""All figures of a model: what its weights show, what was seen over pictures, and their page."""

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
from vitrail.explanation.capture import AttentionMap
from vitrail.explanation.drawing import as_png, as_svg, as_svg_file, quiet
from vitrail.explanation.observe import attending_steps, layouts_of, observe
from vitrail.explanation.page import PAGE
from vitrail.explanation.page import STYLE as HOUSE
from vitrail.explanation.plates import (
    Plate,
    bias_plate,
    filter_plate,
    seen_pictures,
    similarity_plate,
)
from vitrail.explanation.positions import by_offset, position_table, shared_bias
from vitrail.explanation.seen_plates import (
    ablation_plate,
    alignment_plate,
    distance_plate,
    sink_plate,
    token_plate,
)
from vitrail.explanation.study import study
from vitrail.explanation.tokens import on_grid

SHOWN = 4  # pictures of which tokens and ablations are drawn
NEEDS = "This figure needs pictures, and none were given: give DATA."
WITH_PICTURES = {
    "distance": "Mean attention distance",
    "ablation": "Positions taken away",
    "tokens": "Principal components of tokens",
    "alignment": "Likeness of layers (CKA)",
    "sinks": "Registers and attention sinks",
}

STYLE = """
.explain .plates { color: var(--ink); }
.explain .plates .card { overflow-x: auto; }
.explain .plates svg.plate { width: 100%; height: auto; margin: 0 auto; }
.explain .plates svg.plate text { fill: currentColor; }
.explain .plates .files { font-size: .87em; }
"""

Watch = Callable[[str, int, int | None], None]  # what, how many are done, of how many


@dataclass(frozen=True)
class Figures:
    """The plates in the order of the page, and what a page says first."""

    title: str
    facts: dict[str, str]
    plates: tuple[Plate, ...]

    def numbers(self) -> dict[str, Any]:
        """What machines read."""
        plates = {
            plate.name: {
                "title": plate.title,
                "told": plate.told,
                "drawn": plate.figure is not None,
                **plate.numbers,
            }
            for plate in self.plates
        }
        return {"title": self.title, "facts": self.facts, "figures": plates}

    def write(self, out: Path) -> Path:
        """A page, and beside it every figure as SVG and PNG, the numbers as JSON, and all arrays
        as NPZ; returns the page."""
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            drawn = {}
            for plate in self.plates:
                if plate.figure is not None:
                    drawn[plate.name] = as_svg(plate.figure, plate.name)
                    file = as_svg_file(drawn[plate.name])
                    (out / f"{plate.name}.svg").write_text(file, encoding="utf-8")
                    (out / f"{plate.name}.png").write_bytes(as_png(plate.figure))
            numbers = to_json(self.numbers(), indent=1)
            (out / "figures.json").write_text(numbers + "\n", encoding="utf-8")
            arrays = {
                f"{plate.name}/{name}": array
                for plate in self.plates
                for name, array in plate.arrays.items()
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
    ablated: int = SHOWN,
    watch: Watch | None = None,
) -> Figures:
    """Draw everything that can be drawn of a model.

    `batches` are prepared images; without any, only what weights show is drawn. `ablated` is of how
    many images positions are taken away, which runs the model once for every tile of the picture.
    """
    tell = watch or (lambda what, done, total: None)
    passport = getattr(model, "passport", None)
    how: Preprocessing | None = getattr(passport, "preprocessing", None)
    seen = study(model, batches, keep=SHOWN, watch=lambda done: tell("pictures", done, None))
    with quiet(), torch.no_grad():
        flipped = how is not None and how.channel_order == "bgr"
        places = position_plate(model, seen.biases)
        plates = [filter_plate(model, flipped=flipped), places]
        if seen.pictures:
            pictures = seen_pictures(seen.images, how)
            known = places.numbers["kind"] != "none"
            away = taken_away(model, seen.images[:ablated], pictures, known=known, tell=tell)
            plates += [distance_plate(seen), away, token_plate(seen, pictures)]
            plates += [alignment_plate(seen), sink_plate(model, seen)]
        else:
            plates += [Plate(name, what, NEEDS) for name, what in WITH_PICTURES.items()]
    facts = {
        "attentions": str(len(seen.layouts)),
        "parameters": f"{sum(weight.numel() for weight in model.parameters()):,}",
        "pictures": str(seen.pictures),
    }
    return Figures(title, facts, tuple(plates))


def position_plate(model: nn.Module, biases: dict[str, Float[Tensor, "h down across"]]) -> Plate:
    """What the model knows of places: its table, else its biases, else what edges tell."""
    layouts = layouts_of(model)
    table = position_table(model, next(iter(layouts.values())))
    if table is not None:
        return similarity_plate(table)
    found, tokens = dict(biases), dict[str, Tensor]()

    def see(name: str, one: AttentionMap, bias: Tensor | None) -> None:
        if bias is not None and name not in found:
            side = one.layout.window or one.layout.grid
            found[name] = by_offset(shared_bias(bias, one.layout).float(), side).cpu()

    def step(name: str, output: Tensor) -> None:
        tokens[name] = output

    blank = blank_image(model)
    with observe(model.eval(), attention=see, step=step):
        model.encode(blank)  # type: ignore[operator]
    if found:
        return bias_plate(found)
    first = attending_steps(model)[0]
    size = (blank.shape[2], blank.shape[3])
    return similarity_plate(on_grid(tokens[first], layouts.values(), size).grid[0], blank=True)


def blank_image(model: nn.Module) -> Float[Tensor, "1 C H W"]:
    """A picture of one colour that is not zero, so that the zeros around it can be told from it."""
    config: Any = model.config
    weight = next(model.parameters())
    return weight.new_full((1, config.channels, *config.image_size), 0.5)


def taken_away(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    pictures: Float[np.ndarray, "K H W 3"],
    *,
    known: bool,
    tell: Watch,
) -> Plate:
    title = WITH_PICTURES["ablation"]
    if not known:
        return Plate(
            "ablation",
            title,
            "There is nothing to take away: this model has no positions and no bias by offset.",
        )
    if not len(images):
        return Plate("ablation", title, "No picture was chosen for this figure.")
    changes, what = position_ablation(
        model, images, watch=lambda done, total: tell("tiles", done, total)
    )
    return ablation_plate(changes, pictures[: len(images)], what)


def figures_page(told: Figures, drawn: dict[str, str]) -> str:
    """One file with its drawings inside, and nothing that must run."""
    facts = "".join(
        f"<div><dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd></div>"
        for name, value in told.facts.items()
    )
    links = "".join(f'<a href="#{each.name}">{escape_html(each.title)}</a>' for each in told.plates)
    sections = "".join(section(plate, drawn.get(plate.name)) for plate in told.plates)
    body = (
        f"<header><h1>{escape_html(told.title)}</h1>\n<p>What the model has learnt, drawn from its "
        f'weights and from what it does with pictures.</p><dl class="facts">{facts}</dl>\n'
        f'<nav>{links}</nav></header>\n<div class="plates">{sections}</div>'
    )
    return PAGE.format(title=f"{escape_html(told.title)}: figures", style=HOUSE + STYLE, body=body)


def section(plate: Plate, drawing: str | None) -> str:
    body = f"<p>{escape_html(plate.told)}</p>\n"
    if drawing is not None:
        files = " ".join(
            f'<a href="{plate.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png")
        )
        named = drawing.replace(
            'role="img"', f'role="img" aria-label="{escape_html(plate.title)}"', 1
        )
        body += f'<figure class="card">{named}</figure><p class="soft files">{files}</p>\n'
    return f'<section id="{plate.name}"><h2>{escape_html(plate.title)}</h2>\n{body}</section>\n'
