"""Several models explain the same images: maps side by side, with predictions, on one page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from vitrail.core.errors import printable
from vitrail.core.json_text import plain_values
from vitrail.explanation.overlays import (
    LEGEND,
    Tile,
    heat_colours,
    overlay_map,
    side_by_side,
    write_png,
)
from vitrail.pages.render import HOLE, Section, page_around, render
from vitrail.pages.thumbnails import data_uri, overlay_uri
from vitrail.pages.translation import count, page_text, translated_sentence
from vitrail.tasks.explain_files import free_name, safe_stem
from vitrail.tasks.explanation import FACTS, PAGE, SIDE, Explanation, Explanations
from vitrail.tasks.html_record import HtmlRecord

MAX_LETTERS = 24  # of a name above an image
HEAT_SIDE = 128  # pixels of a map in the page: the browser smooths it


@dataclass(frozen=True, repr=False)
class ExplainedTogether(HtmlRecord):
    """The explanations of each model by its name, of the same images in the same order."""

    models: dict[str, Explanations]
    out: Path | None = None
    files: list[str] = field(default_factory=list)  # an image each: the maps of all models

    def __getitem__(self, model: str) -> Explanations:
        return self.models[model]

    def __len__(self) -> int:
        return min(len(one) for one in self.models.values())

    def images(self) -> Iterator[dict[str, Explanation]]:
        """One image after another, as each model explains it."""
        for each in zip(*self.models.values(), strict=False):
            yield dict(zip(self.models, each, strict=True))

    def facts(self) -> dict[str, Any]:
        """As JSON holds it: what `vitrail explain --json` prints."""
        written = {} if self.out is None else {"report": str(self.out / PAGE)}
        models = {name: one.facts() for name, one in self.models.items()}
        images = [
            {
                "name": next(iter(each.values())).name,
                "predictions": {
                    name: {"label": one.label, "score": one.score, "method": one.method}
                    for name, one in each.items()
                },
                "file": self.files[number] if self.files else None,
            }
            for number, each in enumerate(self.images())
        ]
        return dict(plain_values({**written, "images": images, "models": models}))

    def save(self, draft: Path) -> None:
        """Write the page, the facts, and one sheet for each image."""
        stems: list[str] = []
        for each in self.images():
            first = next(iter(each.values()))
            stems.append(free_name(safe_stem(first.name), stems))
            name = write_png(sheet_of(each), draft / f"{stems[-1]}.models.png").name
            self.files.append(str((self.out or draft) / name))
        self.save_report(draft, FACTS)

    def html_pieces(self) -> Iterator[str]:
        """The page, one image at a time."""
        sections = [
            Section("images", "Images", HOLE),
            Section("verdict", "Can the maps be trusted?", verdicts(self.models)),
        ]
        facts = {
            name: f"{one.run.family}, {', '.join(one.run.methods)}"
            for name, one in self.models.items()
        }
        lead = render("facts.html", facts=facts)
        title = page_text("{} explained", count(len(self.models), "model"))
        before, after = page_around(title, sections, kind="explanation", lead=lead)
        yield before
        for each in self.images():
            yield str(image_block(each))
        yield after

    def __repr__(self) -> str:
        return f"ExplainedTogether({len(self)} images by {', '.join(self.models)})"


def explained_together(each: Mapping[str, Any], out: Path | None) -> ExplainedTogether:
    """One image or several of each model; an image that only some can read is left out."""
    models = {
        name: Explanations(tuple(one), one.run)  # an explanation is a sequence of itself
        for name, one in each.items()
    }
    common = set.intersection(*({one.name for one in found} for found in models.values()))
    kept = {
        name: replace(found, images=tuple(one for one in found if one.name in common))
        for name, found in models.items()
    }
    return ExplainedTogether(kept, out)


def sheet_of(each: Mapping[str, Explanation]) -> Any:
    """The image, and the map of each model over it."""
    first = next(iter(each.values()))
    tiles = [Tile("image", first.image)]
    for name, one in each.items():
        seen = same_size(one.image, first.image)
        score = "" if one.score is None else f": {short(one.label or '')} {one.score:.0%}"
        tiles.append(Tile(short(name) + score, overlay_map(seen, one.heat())))
    return side_by_side(tiles, title=LEGEND)


def short(text: str) -> str:
    """Letters that a font can draw, and few enough to stand above an image."""
    text = printable(text)
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS - 1]}…"


def same_size(image: Any, like: Any) -> Any:
    """Models may see other parts of an image."""
    if image.shape == like.shape:
        return image
    height, width = like.shape[:2]
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))


def image_block(each: Mapping[str, Explanation]) -> Markup:
    """One image: the prediction and the map of each model, by each method."""
    first = next(iter(each.values()))
    maps = []
    for name, one in each.items():
        pixels = one.image
        size = tuple(
            max(round(HEAT_SIDE * side / max(pixels.shape[:2])), 1) for side in pixels.shape[:2]
        )
        image = data_uri(pixels, SIDE, quality=88)
        for method in one.maps:
            heat = overlay_uri(heat_colours(one.heat(method), size))
            maps.append(
                {
                    "model": name,
                    "method": method,
                    "image": image,
                    "heat": heat,
                    "answer": one.answer,
                }
            )
    return render(
        "explain_together.html",
        path=first.name,
        title=PurePath(first.name).name or first.name,
        image=data_uri(first.image, SIDE, quality=88),
        maps=maps,
    )


def verdicts(models: Mapping[str, Explanations]) -> Markup:
    """A sentence for each model and method that was tested."""
    rows = [
        [name, method, translated_sentence(check.verdict.sentence)]
        for name, found in models.items()
        for method, check in found.run.checks.items()
    ]
    return render("comparison_table.html", heads=["model", "method", "verdict"], rows=rows)
