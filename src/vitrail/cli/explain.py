"""`vitrail explain`: which parts of an image drive a prediction, and how far to trust that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Literal, TextIO
from zipfile import ZIP_DEFLATED, ZipFile

from vitrail.cli.methods import choose_auto, known_methods, parse_query, parse_target, with_options
from vitrail.cli.options import ComputeOptions, ModelOptions, OutputOptions, load_model, use_threads
from vitrail.cli.output import say, say_json
from vitrail.cli.predict import pictures
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError, writing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from vitrail.core.passport import Preprocessing
    from vitrail.explanation.auto_method import MethodChoice
    from vitrail.explanation.readout import Relevance
    from vitrail.explanation.verdict import MethodCheck
    from vitrail.models.model import Model

SIDE = 448  # pixels of the longer side of an overlay
LONGEST_STEM = 60  # letters: of four bytes each, and with a method's name, still a file's name
MOST_PANELS = 8  # images that the page shows layer by layer
MAPS = "maps.npz"


@dataclass(frozen=True)
class Explain(ModelOptions, ComputeOptions, OutputOptions):
    """Which model to look into, over which images, and how."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    paths: tuple[str, ...]
    """Files, directories, patterns or http addresses; - reads names from standard input, one a
    line."""
    _: KW_ONLY
    method: tuple[str, ...] = ()
    """auto, attention, rollout, relevance, attribution, gradcam, hirescam, saliency, smoothgrad,
    integrated, occlusion, or all. May be repeated; by default auto, which takes attribution where
    only attention carries patches to the answer, and smoothgrad elsewhere."""
    target: str | None = None
    """The class to explain, by its label or number; by default what the model says."""
    layer: str | None = None
    """For attention, gradcam and hirescam: a layer, by its name or its number from 0 on; by
    default the last."""
    head: int | None = None
    """For attention: one head; by default the mean of all."""
    query: str | None = None
    """For attention: which token looks, a patch as row,column or a token's number; by default what
    the model reads out."""
    fusion: Literal["mean", "max", "min"] | None = None
    """For rollout: how the heads of a layer become one; by default their mean."""
    discard: float | None = None
    """For rollout: the share of each map, its lowest weights, that is set to nothing: 0.9."""
    checks: int = 4
    """On how many of the images the maps are tested."""
    no_verdict: bool = False
    """Leave out the test of whether the maps track the model, about sixty forward passes."""
    out: str = "explained"
    """The directory for overlays, panels, maps.npz and index.html."""
    overwrite: bool = False
    """Replace what an earlier run has written to OUT, all of it."""


@dataclass
class ExplainRun:
    """What is found on the way through the images. Overlays and maps are written as they come:
    what is kept does not grow with them."""

    model: Model
    methods: dict[str, dict[str, Any]]  # with their options
    sections: TextIO  # of the page, one for each image
    checks: int  # images that are kept for the verdict
    auto: MethodChoice | None  # what auto took, where it was asked for
    panels: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    images: list[Tensor] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    maps: list[dict[str, Relevance]] = field(default_factory=list)  # of these images
    facts: list[dict[str, Any]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def explain(asked: Explain) -> None:
    """Explain predictions: which parts of an image drive them, layers and heads, and a verdict on
    whether the maps track the model."""

    from vitrail.data.paths import check_paths
    from vitrail.weights.results import Results

    check_paths(asked.paths)
    if asked.checks < 0:
        raise UserError(f"--checks is {asked.checks}, but must not be negative")
    names = known_methods(asked.method)
    use_threads(asked.threads)
    model = load_model(asked)
    auto = choose_auto(names, model)
    methods = with_options(asked, names, model, auto)
    every = list(pictures(asked.paths))
    where = Results(Path(asked.out), "explain", asked.overwrite)
    where.check(alone=True)
    with (
        where.draft() as out,
        TemporaryFile("w+", encoding="utf-8") as sections,
        progress() as watch,
    ):
        checked = 0 if asked.no_verdict else asked.checks
        run = ExplainRun(model, methods, sections, checked, auto)
        for number, path in enumerate(every):
            watch("explaining images", number, len(every))
            explain_image(asked, run, path, out)
        if not run.names:
            reasons = [f"{path}: {reason}" for path, reason in run.problems.items()]
            raise UserError(f"none of the images can be read: {reasons[0]}")
        watch("testing maps", 0, 1)
        checks = check(run)
        page = where.out / write(asked, run, checks, out).name
    for facts in run.facts:
        facts["files"] = {name: str(where.out / file) for name, file in facts["files"].items()}
    report(asked, run, checks, page)


# One image


def explain_image(asked: Explain, run: ExplainRun, path: str, out: Path) -> None:
    """Everything about one image, or why it cannot be read."""
    import torch

    from vitrail.data.images import BadImage
    from vitrail.data.preprocess import prepare
    from vitrail.data.reader import read_pixels
    from vitrail.explanation.methods import METHODS
    from vitrail.explanation.overlays import head_maps, layers_and_heads
    from vitrail.explanation.page import image_section, panel_section

    model, how = run.model, run.model.passport.preprocessing
    try:
        pixels = read_pixels(path, channels=len(how.mean))
    except BadImage as problem:
        run.problems[path] = problem.reason
        return
    weights = next(model.parameters())
    image = prepare(pixels, how)[None].to(weights)
    with torch.inference_mode():
        logits = model(image)[0].float().cpu()
    target, said, facts = answer(asked, model, logits)
    asked_for = None if target is None else torch.tensor([target], device=image.device)
    with noted(path, run.notes):
        found = {
            name: METHODS[name](model, image, asked_for, **options)
            for name, options in run.methods.items()
        }
    query = parse_query(asked.query)
    seen = seen_part(pixels, how)
    panel = layers_and_heads(
        seen,
        head_maps(model, image, query),
        title=f"{Path(path).name}: where each head looks, {told_query(query)}",
    )
    overlays = {name: laid_over(seen, one, how) for name, one in found.items()}
    stem = free_name(safe_stem(path), run.names)
    files = write_pictures(out, stem, seen, overlays, panel)
    with writing(out):
        append_maps(out / MAPS, stem, found, first=not run.names)
    run.sections.write(image_section(path, said, {"photo": seen, **overlays}))
    if len(run.panels) < MOST_PANELS:
        run.panels.append(panel_section(path, panel))
    if len(run.images) < run.checks and target is not None:
        run.images.append(image)
        run.targets.append(target)
        run.maps.append(found)
    run.names.append(stem)
    run.facts.append({"name": path, "said": said, **facts, "files": files})


@contextmanager
def noted(path: str, notes: dict[str, str]) -> Iterator[None]:
    """A map that is not complete is a line about its image, not a warning of Python."""
    import warnings

    from vitrail.explanation.integrated import IncompleteWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", IncompleteWarning)
        yield
    for one in caught:
        if issubclass(one.category, IncompleteWarning):
            notes[path] = str(one.message)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def append_maps(file: Path, stem: str, found: Mapping[str, Relevance], *, first: bool) -> None:
    """One more image in an .npz, which is a zip of arrays."""
    import numpy as np

    with ZipFile(file, "w" if first else "a", compression=ZIP_DEFLATED) as maps:
        for name, one in found.items():
            with maps.open(f"{stem}/{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, one.map[0].float().cpu().numpy())


def answer(asked: Explain, model: Model, logits: Tensor) -> tuple[int | None, str, dict[str, Any]]:
    """The class to explain, what is said about it, and the same for machines."""
    passport, classes = model.passport, model.config.num_classes
    if not classes:
        if asked.target is not None:
            raise UserError(
                f"{asked.source} has no head, so --target {asked.target} has no meaning"
            )
        return None, "The model has no head and names no class.", {"label": None, "target": None}
    chances = logits.sigmoid() if passport.multi_label else logits.softmax(dim=0)
    best = int(chances.argmax())
    target = parse_target(asked.target, passport, classes)
    target = best if target is None else target
    labels = passport.labels or tuple(f"class {number}" for number in range(classes))
    said = f"The model says {labels[best]} ({float(chances[best]):.1%})."
    if target != best:
        said += f" Shown is what speaks for {labels[target]} ({float(chances[target]):.1%})."
    facts = {
        "label": labels[best],
        "score": float(chances[best]),
        "target": labels[target],
        "target_score": float(chances[target]),
    }
    return target, said, facts


def seen_part(pixels: NDArray[np.uint8], how: Preprocessing) -> NDArray[np.uint8]:
    """The part of the image that the model sees, in its own detail."""
    import numpy as np
    from PIL import Image

    from vitrail.data.preprocess import crop_start, resized_size, to_pillow
    from vitrail.explanation.overlays import enlarge

    picture = to_pillow(pixels).convert("RGB")
    height, width = how.size
    wide, tall = resized_size(picture.size, how)
    left, top = crop_start((wide, tall), how)
    across, down = picture.width / wide, picture.height / tall
    box = (left * across, top * down, (left + width) * across, (top + height) * down)
    own = max(round(box[2] - box[0]), 1), max(round(box[3] - box[1]), 1)
    if own[0] * height != own[1] * width:  # it was squeezed
        longer = max(own)
        own = (longer, round(longer * height / width))
        own = own if width >= height else (round(longer * width / height), longer)
    part = picture.resize(own, Image.Resampling.LANCZOS, box=box)
    return enlarge(np.array(part), SIDE)


def laid_over(seen: NDArray[np.uint8], one: Relevance, how: Preprocessing) -> NDArray[np.uint8]:
    """A map over the image: what speaks against the class counts as nothing."""
    from vitrail.explanation.overlays import overlay_map

    return overlay_map(seen, one.on_pixels(how.size)[0].float().clamp(min=0))


def told_query(query: int | tuple[int, int] | None) -> str:
    if query is None:
        return "as far as the model reads it out"
    if isinstance(query, int):
        return f"seen from token {query}"
    return f"seen from the patch in row {query[0]}, column {query[1]}"


def safe_stem(path: str) -> str:
    """The name of a file without its suffix, as any file system can hold it.

    >>> safe_stem("https://example.org/a%20cat.jpg?width=90")
    'a_20cat'
    """
    return re.sub(r"[^\w.-]", "_", Path(path).stem)[:LONGEST_STEM] or "image"


def free_name(stem: str, taken: Sequence[str]) -> str:
    """A name for files that no other image has.

    >>> free_name("cat", ["cat", "cat-2"])
    'cat-3'
    """
    number, name = 2, stem
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def write_pictures(
    out: Path,
    stem: str,
    seen: NDArray[np.uint8],
    overlays: Mapping[str, NDArray[np.uint8]],
    panel: NDArray[np.uint8],
) -> dict[str, str]:
    from vitrail.explanation.overlays import LEGEND, Tile, side_by_side, write_png

    tiles = [Tile("photo", seen), *(Tile(name, pixels) for name, pixels in overlays.items())]
    sheets = {**overlays, "methods": side_by_side(tiles, title=LEGEND), "layers": panel}
    if len(overlays) == 1:
        del sheets["methods"]
    with writing(out):
        return {
            name: write_png(pixels, out / f"{stem}.{name}.png").name
            for name, pixels in sheets.items()
        }


# All of them


def check(run: ExplainRun) -> dict[str, MethodCheck]:
    """The verdict on each method, on the first few images."""
    import torch

    from vitrail.explanation.methods import bind_method
    from vitrail.explanation.verdict import check_methods

    if not run.images:
        return {}
    images = torch.cat(run.images)
    target = torch.tensor(run.targets, device=images.device)
    with noted("", {}):
        return check_methods(
            {
                name: bind_method(name, run.model, target, **options)
                for name, options in run.methods.items()
            },
            run.model,
            images,
            target,
            multi_label=run.model.passport.multi_label,
            maps={name: joined([maps[name] for maps in run.maps]) for name in run.methods},
        )


def joined(maps: Sequence[Relevance]) -> Relevance:
    """The maps of one method on several images, as if they had been made at once."""
    import torch

    return replace(maps[0], map=torch.cat([one.map for one in maps]), target=None, delta=None)


def write(asked: Explain, run: ExplainRun, checks: Mapping[str, MethodCheck], out: Path) -> Path:
    """The page."""
    from vitrail.explanation.page import Explanation, write_page
    from vitrail.tasks.names import short_name

    options = {
        name: ", ".join(f"{option} {value}" for option, value in options.items())
        for name, options in run.methods.items()
    }
    facts = {
        "model": asked.source,
        "family": run.model.passport.family,
        "methods": ", ".join(
            name + (f" ({said})" if said else "") for name, said in options.items()
        ),
        "images": str(len(run.names)),
    }
    if run.auto is not None:
        facts["chosen"] = reason_of(run.auto)
    page = out / "index.html"
    told = Explanation(
        title=f"What {short_name(asked.source)} looks at",
        facts=facts,
        panels=run.panels,
        checks=checks,
        problems=run.problems,
    )
    with writing(out), page.open("w", encoding="utf-8") as file:
        write_page(told, run.sections, file)
    return page


def reason_of(auto: MethodChoice) -> str:
    return f"auto chose {auto.method}: {auto.reason}"


def report(asked: Explain, run: ExplainRun, checks: Mapping[str, MethodCheck], page: Path) -> None:
    from vitrail.explanation.verdict import ERRORS, RULE

    if asked.json:
        verdicts = {
            name: {
                "tracks": one.verdict.tracks,
                "sentence": one.verdict.sentence,
                **asdict(one.verdict),
            }
            for name, one in checks.items()
        }
        facts = {
            "page": str(page),
            "maps": str(page.parent / MAPS),
            "pictures": run.facts,
            "verdicts": verdicts,
            **({"rule": RULE} if verdicts else {}),
            "broken": run.problems,
            "notes": run.notes,
        }
        if run.auto is not None:
            facts["auto"] = asdict(run.auto)
        say_json(facts)
        return
    if run.auto is not None:
        say(reason_of(run.auto))
    for one, stem in zip(run.facts, run.names, strict=True):
        say(f"{one['name']}  {one['said']}  {page.parent / stem}.*.png")
    for path, reason in run.problems.items():
        say(f"{path}  no map: {reason}")
    for path, note in run.notes.items():
        say(f"{path}  {note}")
    for name, each in checks.items():
        say("", f"{name}: {each.verdict.sentence}")
        say(*(f"  {reason}" for reason in each.verdict.reasons))
    if checks:
        say("", RULE, ERRORS)
    say("", f"the page with all of it: {page}")
