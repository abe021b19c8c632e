"""The work of `explain`: one image after another, its maps, overlays and verdict."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError, writing
from vitrail.data.images import BadImage
from vitrail.data.paths import is_address
from vitrail.data.preprocess import prepare
from vitrail.data.reader import Item, name_of, read_pixels
from vitrail.explanation.head_maps import HeadMaps, head_maps, query_maps
from vitrail.explanation.integrated import IncompleteWarning
from vitrail.explanation.methods import METHODS, bind_method
from vitrail.explanation.overlays import (
    LEGEND,
    Tile,
    layers_and_heads,
    overlay_map,
    side_by_side,
    write_png,
)
from vitrail.explanation.readout import Relevance
from vitrail.explanation.verdict import MethodCheck, check_methods
from vitrail.inference.predict import iter_images
from vitrail.inference.prediction import NOT_FINITE
from vitrail.models.model import Model
from vitrail.tasks.explain_files import append_maps, encode_image, free_name, safe_stem
from vitrail.tasks.explanation import (
    MAPS,
    ExplainRun,
    Explanation,
    Explanations,
    HeadDetails,
    Pixels,
    visible_part,
)
from vitrail.tasks.offline_page import OfflinePage
from vitrail.tasks.progress import OnProgress

MAX_DETAILED = 4  # images whose layers and heads the page shows

Query = int | tuple[int, int]


@dataclass
class Work:
    """Goes through the images. Overlays are written as they come: what is kept of an image is its
    maps; of the first few also what the verdict and the page need."""

    model: Model
    run: ExplainRun
    target: int | None
    query: Query | None
    checks: int  # images that the verdict is computed on
    out: Path | None  # where files are written
    page: OfflinePage | None = None  # of the web page's Attention view
    stems: list[str] = field(default_factory=list)
    tested: list[tuple[Tensor, int, dict[str, Relevance]]] = field(default_factory=list)

    def explain_all(self, images: Any, on_progress: OnProgress) -> Explanations:
        items: Iterable[Item] = iter_images([images] if isinstance(images, str | Path) else images)
        if isinstance(images, str | Path | list | tuple):
            items = list(items)
        total = len(items) if isinstance(items, list) else None
        found = []
        for number, item in enumerate(items):
            on_progress("explaining images", number, total)
            explanation = self.explain_item(item)
            if explanation is not None:
                found.append(explanation)
        if not found:
            reasons = [f"{name}: {reason}" for name, reason in self.run.problems.items()]
            raise UserError(
                f"no image could be explained: {reasons[0] if reasons else 'none was given'}"
            )
        on_progress("testing maps", 0, 1)
        self.run.checks.update(self.check_maps())
        return Explanations(tuple(found), self.run)

    def explain_item(self, item: Item) -> Explanation | None:
        """One image, or nothing where it cannot be read, which `problems` says."""
        run, how, name = self.run, self.run.preprocessing, name_of(item)
        try:
            pixels = read_pixels(item, channels=len(how.mean), bits=how.bits)
        except BadImage as problem:
            run.problems[name] = problem.reason
            return None
        image = prepare(pixels, how)[None].to(next(self.model.parameters()))
        predicted = self.predict(image)
        if predicted is None:
            run.problems[name] = NOT_FINITE
            return None
        target, answer = predicted
        wanted = None if target is None else torch.tensor([target], device=image.device)
        with incomplete_noted(name, run.notes):
            maps = {
                method: METHODS[method](self.model, image, wanted, **options)
                for method, options in run.methods.items()
            }
        run.layouts.update({method: one.layout for method, one in maps.items()})
        visible = visible_part(pixels, how)
        keep_path = isinstance(item, str) and not is_address(item)
        explanation = Explanation(
            name=name,
            **answer,
            maps={method: one.map[0].float().cpu().numpy() for method, one in maps.items()},
            run=run,
            source=str(item) if keep_path else encode_image(visible),
        )
        if self.page is not None:
            self.page.add(self.model, pixels, explanation)
        detailed = len(self.stems) < MAX_DETAILED
        sheet = None
        if self.model.has_attention and (detailed or self.out is not None):
            heads = head_maps(self.model, image, self.query)
            title = f"{Path(name).name}: where each head looks, {describe_query(self.query)}"
            sheet = layers_and_heads(visible, heads, title=title)
            if detailed:
                explanation = replace(explanation, heads=self.details(image, heads, sheet))
        if len(self.tested) < self.checks and target is not None:
            self.tested.append((image, target, maps))
        return self.write(explanation, visible, sheet)

    def predict(self, image: Tensor) -> tuple[int | None, dict[str, Any]] | None:
        """The class to explain, and the prediction; None where that is not finite."""
        passport, classes = self.model.passport, self.model.config.num_classes
        with torch.inference_mode():
            logits = self.model(image)[0].float().cpu()
        if not logits.isfinite().all():
            return None
        if not classes:
            return None, dict.fromkeys(("label", "score", "target", "target_score"))
        scores = logits.sigmoid() if passport.multi_label else logits.softmax(dim=0)
        best = int(scores.argmax())
        target = best if self.target is None else self.target
        labels = passport.labels or tuple(f"class {number}" for number in range(classes))
        return target, {
            "label": labels[best],
            "score": float(scores[best]),
            "target": labels[target],
            "target_score": float(scores[target]),
        }

    def details(self, image: Tensor, heads: Mapping[str, HeadMaps], sheet: Pixels) -> HeadDetails:
        counts = {name: len(one.heat) for name, one in heads.items()}
        grid, maps = query_maps(self.model, image, counts)
        return HeadDetails(encode_image(sheet, quality=85), grid, maps)

    def write(self, found: Explanation, visible: Pixels, sheet: Pixels | None) -> Explanation:
        """Write overlays and maps, where files are wanted; the record then names them."""
        stem = free_name(safe_stem(found.name), self.stems)
        self.stems.append(stem)
        if self.out is None or self.run.out is None:
            return found
        overlays = {name: overlay_map(visible, found.heat(name)) for name in found.maps}
        sheets = dict(overlays)
        if len(overlays) > 1:
            tiles = [Tile("image", visible), *(Tile(name, one) for name, one in overlays.items())]
            sheets["methods"] = side_by_side(tiles, title=LEGEND)
        if sheet is not None:
            sheets["layers"] = sheet
        with writing(self.out):
            append_maps(self.out / MAPS, stem, found.maps, first=len(self.stems) == 1)
            files = {
                name: str(self.run.out / write_png(pixels, self.out / f"{stem}.{name}.png").name)
                for name, pixels in sheets.items()
            }
        return replace(found, files=files)

    def check_maps(self) -> dict[str, MethodCheck]:
        """The verdict on each method, on the first few images."""
        if not self.tested:
            return {}
        images = torch.cat([image for image, _, _ in self.tested])
        target = torch.tensor([target for _, target, _ in self.tested], device=images.device)
        with incomplete_noted("", {}):
            return check_methods(
                {
                    name: bind_method(name, self.model, target, **options)
                    for name, options in self.run.methods.items()
                },
                self.model,
                images,
                target,
                multi_label=self.model.passport.multi_label,
                maps={
                    name: join_maps([maps[name] for _, _, maps in self.tested])
                    for name in self.run.methods
                },
            )


def join_maps(maps: Sequence[Relevance]) -> Relevance:
    """The maps of one method on several images, as if they had been computed at once."""
    return replace(maps[0], map=torch.cat([one.map for one in maps]), target=None, delta=None)


@contextmanager
def incomplete_noted(name: str, notes: dict[str, str]) -> Iterator[None]:
    """A map that is not complete is a note about its image, not a warning of Python."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", IncompleteWarning)
        yield
    for one in caught:
        if issubclass(one.category, IncompleteWarning):
            notes[name] = str(one.message)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def describe_query(query: Query | None) -> str:
    if query is None:
        return "weighted by the tokens the head uses"
    if isinstance(query, int):
        return f"seen from token {query}"
    return f"seen from the patch in row {query[0]}, column {query[1]}"
