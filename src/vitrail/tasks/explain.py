"""`vitrail.explain`: which parts of an image drive a prediction, and how far to trust that."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from vitrail.core.errors import UserError
from vitrail.core.eval_mode import eval_mode
from vitrail.core.ranges import check_count
from vitrail.data.paths import check_paths, is_one
from vitrail.data.reader import ImageSource, is_one_image
from vitrail.explanation.auto_method import MethodChoice
from vitrail.explanation.methods import (
    check_names,
    class_index,
    select_methods,
)
from vitrail.inference.predict import iter_images
from vitrail.models.model import Model
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun, plan_images
from vitrail.tasks.explain_work import Query, Work
from vitrail.tasks.explained_together import ExplainedTogether, explained_together
from vitrail.tasks.explanation import (
    FACTS,
    MAPS,
    PAGE,
    ExplainRun,
    Explanation,
    Explanations,
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
from vitrail.tasks.names import SeveralModels, named_models
from vitrail.tasks.names import name_of as model_name
from vitrail.tasks.offline_page import OfflinePage, page_path
from vitrail.tasks.progress import OnProgress, silent
from vitrail.tasks.results import writing_results
from vitrail.tasks.threads import use_threads


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
    model: SeveralModels,
    images: "ImageSource | Iterable[ImageSource]",
    *,
    dry_run: Literal[False] = False,
    **options: Unpack[ExplainKeywords],
) -> ExplainedTogether: ...
@overload
def explain(
    model: AnyModel | SeveralModels,
    images: "ImageSource | Iterable[ImageSource]",
    *,
    dry_run: bool,
    **options: Unpack[ExplainKeywords],
) -> Explanation | Explanations | ExplainedTogether | DryRun: ...
def explain(
    model: AnyModel | SeveralModels,
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
    threads: int | None = None,
    precision: Precision = None,
    out: str | Path | None = None,
    html: str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    name: str | None = None,
    on_progress: OnProgress = silent,
) -> Explanation | Explanations | ExplainedTogether | DryRun:
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
    `dry_run` checks everything and returns what would be computed. Several models, as a list or a
    mapping from names to models, give their maps of the same images side by side.

    >>> from PIL import Image
    >>> why = explain(model, Image.new("RGB", (64, 48)), checks=0)
    >>> why.method, why.map.shape, why.overlay().size
    ('attribution', (14, 14), (448, 448))
    """
    options = dict(locals())
    del options["model"], options["images"]
    given = ExplainOptions(**options)
    with use_threads(threads):
        if isinstance(model, list | tuple | Mapping):
            return explain_each(named_models(model), images, given)
        return explain_one(model, images, given)


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """The options of `explain`."""

    method: str | Sequence[str]
    target: int | str | None
    layer: int | str | None
    head: int | None
    query: Query | None
    fusion: Literal["mean", "max", "min"] | None
    discard: float | None
    verdict: bool
    checks: int
    device: Device
    threads: int | None
    precision: Precision
    out: str | Path | None
    html: str | Path | None
    overwrite: bool
    dry_run: bool
    name: str | None
    on_progress: OnProgress

    @property
    def of_methods(self) -> dict[str, Any]:
        """Those of single methods."""
        layer = self.layer
        layer = int(layer) if isinstance(layer, str) and is_integer(layer) else layer
        one: dict[str, Any] = {"layer": layer, "head": self.head, "query": self.query}
        return one | {"fusion": self.fusion, "discard": self.discard}


def explain_one(
    model: AnyModel, images: Any, given: ExplainOptions
) -> Explanation | Explanations | DryRun:
    """The images with one model."""
    check_count("checks", given.checks, at_least=0)
    check_names(given.method)
    check_not_swapped(model, images)
    if not is_remote(model):
        refuse_without_weights(model, "explain")
    check_listed(images)
    one = is_one(str(images)) if isinstance(images, str | Path) else is_one_image(images)
    page, out = page_of(model, given.html, overwrite=given.overwrite), given.out
    how = {"overwrite": given.overwrite, "dry_run": given.dry_run}
    with writing_results(out, "explain", None, **how) as draft:
        loaded = open_model(model, device=given.device, precision=given.precision)
        called = given.name or model_name(model)
        methods, auto = methods_of(loaded, given.method, given.of_methods, called)
        passport, place = loaded.passport, None if out is None else Path(out)
        run = ExplainRun(called, passport.family, passport.preprocessing, methods, auto, place)
        run.html = page_path(page, loaded, called)
        wanted = target_index(loaded, given.target, called)
        checks = given.checks if given.verdict and loaded.config.num_classes else 0
        if given.dry_run:
            return plan(run, [images] if one else images, checks)
        work = work_of(loaded, run, wanted, given.query, checks, draft)
        work.page = page
        with eval_mode(loaded):
            found = work.explain_all(images if not one else [images], given.on_progress)
        if draft is not None:
            found.save_report(draft, FACTS)
        if page is not None:
            page.save(run, draft)
    return found[0] if one else found


def explain_each(
    models: Mapping[str, AnyModel], images: Any, given: ExplainOptions
) -> ExplainedTogether | DryRun:
    """The same images with each model, on one page."""
    if given.html is not None:
        raise UserError("html shows one model, got several: leave out html, or the other models")
    if not isinstance(images, str | Path | list | tuple) and not is_one_image(images):
        images = list(images)  # each model reads them anew
    alone, out = replace(given, out=None), given.out
    how = {"overwrite": given.overwrite, "dry_run": given.dry_run}
    with writing_results(out, "explain", None, **how) as draft:
        each = {
            name: explain_one(model, images, replace(alone, name=name))
            for name, model in models.items()
        }
        if given.dry_run:
            first = next(iter(each.values()))
            assert isinstance(first, DryRun)
            details = first.details | {"model": ", ".join(models)}
            return DryRun("explain", None if out is None else str(out), details)
        found = explained_together(each, None if out is None else Path(out))
        if draft is not None:
            found.save(draft)
    return found


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
        raise UserError(
            f"html needs the weights of the model, got the address {model_name(model)}: give the "
            "checkpoint"
        )
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
