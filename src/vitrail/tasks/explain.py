"""`vitrail.explain`: which parts of an image drive a prediction, and how far to trust that."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Unpack, overload
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.core.errors import UserError, writing
from vitrail.core.eval_mode import eval_mode
from vitrail.core.ranges import check_count
from vitrail.data.images import BadImage
from vitrail.data.paths import check_paths, is_address, is_one
from vitrail.data.preprocess import prepare
from vitrail.data.reader import ImageSource, Item, is_one_image, name_of, read_pixels
from vitrail.explanation.auto_method import MethodChoice
from vitrail.explanation.head_maps import HeadMaps, head_maps, query_maps
from vitrail.explanation.integrated import IncompleteWarning
from vitrail.explanation.methods import (
    METHODS,
    bind_method,
    check_names,
    class_index,
    select_methods,
)
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
from vitrail.models.model import Model
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun, plan_images
from vitrail.tasks.explanation import (
    FACTS,
    MAPS,
    PAGE,
    ExplainRun,
    Explanation,
    Explanations,
    HeadDetails,
    Pixels,
    visible_part,
)
from vitrail.tasks.keywords import ExplainKeywords
from vitrail.tasks.models import (
    AnyModel,
    Device,
    Precision,
    is_remote,
    open_model,
    refuse_without_weights,
)
from vitrail.tasks.names import name_of as model_name
from vitrail.tasks.offline_page import OfflinePage
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.results import writing_results

MAX_STEM = 60  # letters: of four bytes each, and with a method's name, still a file's name
MAX_DETAILED = 4  # images whose layers and heads the page shows

Query = int | tuple[int, int]


@overload
def explain(
    model: AnyModel,
    images: "ImageSource | Iterable[ImageSource]",
    *,
    dry_run: Literal[False] = False,
    **options: Unpack[ExplainKeywords],
) -> Explanation | Explanations: ...
@overload
def explain(
    model: AnyModel,
    images: "ImageSource | Iterable[ImageSource]",
    *,
    dry_run: bool,
    **options: Unpack[ExplainKeywords],
) -> Explanation | Explanations | DryRun: ...
def explain(
    model: AnyModel,
    images: "ImageSource | Iterable[ImageSource]",
    *,
    method: str | Sequence[str] = "auto",
    target: int | str | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    query: Query | None = None,
    fusion: Literal["mean", "max", "min"] | None = None,
    discard: float | None = None,
    verdict: bool = True,
    checks: int = 4,
    device: Device = "auto",
    precision: Precision = None,
    out: str | Path | None = None,
    html: str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    name: str | None = None,
    on_progress: OnProgress = silent,
) -> Explanation | Explanations | DryRun:
    """Explain predictions: which parts of an image drive them. One image gives an `Explanation`; a
    directory, a pattern or an iterable gives `Explanations`, one for each image that can be read.

    `method` is one of attention, rollout, relevance, attribution, gradcam, hirescam, saliency,
    smoothgrad, integrated and occlusion, several of them, "all", or "auto", which chooses by how
    the model is built. `target` is the class to explain, by its label or number; by default the
    predicted one. `layer` is for attention, gradcam and hirescam, `head` and `query` (a patch as
    (row, column), or the number of a token) are for attention, `fusion` and `discard` for rollout.
    With `verdict` the maps of the first `checks` images are tested: whether they track the model.
    `out` gets report.html, explain.json, maps.npz, and overlays as PNG; `html` is a file for the
    Attention view of the web page, with every head of every layer, that opens without a server.
    `dry_run` checks everything and returns what would be computed.

    >>> why = explain(model, Image.new("RGB", (64, 48)), checks=0)
    >>> why.method, why.map.shape, why.overlay().size
    ('attribution', (14, 14), (448, 448))
    """
    check_count("checks", checks, at_least=0)
    check_names(method)
    check_not_swapped(model, images)
    if not is_remote(model):
        refuse_without_weights(model, "explain")
    check_listed(images)
    one = is_one(str(images)) if isinstance(images, str | Path) else is_one_image(images)
    page = page_of(model, html, overwrite=overwrite)
    with writing_results(out, "explain", None, overwrite=overwrite, dry_run=dry_run) as draft:
        loaded = open_model(model, device=device, precision=precision)
        called = name or model_name(model)
        layer = int(layer) if isinstance(layer, str) and is_integer(layer) else layer
        options: dict[str, Any] = {"layer": layer, "head": head, "query": query}
        options |= {"fusion": fusion, "discard": discard}
        methods, auto = methods_of(loaded, method, options, called)
        passport, place = loaded.passport, None if out is None else Path(out)
        run = ExplainRun(called, passport.family, passport.preprocessing, methods, auto, place)
        run.html = None if page is None else page.path
        wanted = target_index(loaded, target, called)
        checks = checks if verdict and loaded.config.num_classes else 0
        if dry_run:
            return plan(run, [images] if one else images, checks)
        work = work_of(loaded, run, wanted, query, checks, draft)
        work.page = page
        with eval_mode(loaded):
            found = work.explain_all(images if not one else [images], on_progress)
        if draft is not None:
            found.save_report(draft, FACTS)
        if page is not None:
            page.save(run, draft)
    return found[0] if one else found


def methods_of(
    model: Model, names: str | Sequence[str], options: Mapping[str, Any], called: str
) -> tuple[dict[str, dict[str, Any]], MethodChoice | None]:
    """Each method with its options, and what auto chose; a service chooses for itself."""
    if not is_remote(model):
        return select_methods(names, model, options, called)
    from vitrail.tasks.explain_remote import select_remote

    return select_remote(names, options), None


def target_index(model: Model, target: int | str | None, called: str) -> int | None:
    """The class to explain, if one was given."""
    if target is not None and not model.config.num_classes:
        raise UserError(f"{called} has no classification head: leave out target")
    return None if target is None else class_index(model, target)


def page_of(model: AnyModel, html: str | Path | None, *, overwrite: bool) -> OfflinePage | None:
    """The offline page that is wanted, if any, refused where it cannot be written."""
    if html is None:
        return None
    if is_remote(model):
        raise UserError(f"html needs the weights of the model, got the address {model}")
    page = OfflinePage(Path(html), overwrite)
    page.check()
    return page


def plan(run: ExplainRun, images: Any, checks: int) -> DryRun:
    """What would be explained; an iterator is not read ahead."""
    listed = [images] if isinstance(images, str | Path) else images
    counts = {}
    if isinstance(listed, list | tuple):
        found = sum(1 for _ in iter_images(listed))
        counts = {"explained": found, "tested": min(checks, found)}
    names = (run.model, ", ".join(map(str, listed)) if counts else "images")
    files, how = (PAGE, FACTS, MAPS, "*.png"), dict[str, Any](methods=list(run.methods))
    if run.html is not None:
        how["html"] = str(run.html)
    return plan_images(
        "explain", names, counts, batch_size=1, out=run.out, files=files, details=how
    )


def check_listed(images: Any) -> None:
    """Refuse paths that cannot mean an image before a model is loaded; an iterator is not read."""
    images = [images] if isinstance(images, str | Path) else images
    if not isinstance(images, list | tuple):
        return
    paths = [str(image) for image in images if isinstance(image, str | Path)]
    if paths or not images:
        check_paths(paths)


def is_integer(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


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
                f"no image could be read: {reasons[0] if reasons else 'none was given'}"
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
        target, answer = self.predict(image)
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
        if detailed or self.out is not None:
            heads = head_maps(self.model, image, self.query)
            title = f"{Path(name).name}: where each head looks, {describe_query(self.query)}"
            sheet = layers_and_heads(visible, heads, title=title)
            if detailed:
                explanation = replace(explanation, heads=self.details(image, heads, sheet))
        if len(self.tested) < self.checks and target is not None:
            self.tested.append((image, target, maps))
        return self.write(explanation, visible, sheet)

    def predict(self, image: Tensor) -> tuple[int | None, dict[str, Any]]:
        """The class to explain, and the prediction."""
        passport, classes = self.model.passport, self.model.config.num_classes
        with torch.inference_mode():
            logits = self.model(image)[0].float().cpu()
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


def work_of(
    model: Model,
    run: ExplainRun,
    target: int | None,
    query: Query | None,
    checks: int,
    out: Path | None,
) -> Work:
    """What goes through the images; maps of a model behind an address come from its service."""
    if not is_remote(model):
        return Work(model, run, target, query, checks, out)
    from vitrail.tasks.explain_remote import UNTESTED, RemoteWork

    if checks:
        run.notes["verdict"] = UNTESTED
    return RemoteWork(model, run, target, query, 0, out)


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


def append_maps(
    file: Path, stem: str, maps: Mapping[str, np.ndarray[Any, Any]], *, first: bool
) -> None:
    """One more image in an .npz, which is a zip of arrays."""
    with ZipFile(file, "w" if first else "a", compression=ZIP_DEFLATED) as archive:
        for name, one in maps.items():
            with archive.open(f"{stem}/{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, one)


def encode_image(pixels: Pixels, quality: int = 92) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=0)
    return file.getvalue()


def describe_query(query: Query | None) -> str:
    if query is None:
        return "weighted by the tokens the head uses"
    if isinstance(query, int):
        return f"seen from token {query}"
    return f"seen from the patch in row {query[0]}, column {query[1]}"


def safe_stem(name: str) -> str:
    """The name of a file without its suffix, as any file system can hold it.

    >>> safe_stem("https://example.org/a%20cat.jpg?width=90")
    'a_20cat'
    """
    return re.sub(r"[^\w.-]", "_", Path(name).stem)[:MAX_STEM] or "image"


def free_name(stem: str, taken: Sequence[str]) -> str:
    """A name for files that no other image has.

    >>> free_name("cat", ["cat", "cat-2"])
    'cat-3'
    """
    number, name = 2, stem
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
