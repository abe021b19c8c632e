"""`vitrail explain`: where in a picture a model finds what it says, and how far to trust that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.asking import Loading, load_asked, use_threads
from vitrail.cli.display import Watch, progress
from vitrail.cli.methods import known_methods, parse_query, parse_target, with_options
from vitrail.cli.output import say, say_json
from vitrail.cli.predict import pictures
from vitrail.core.errors import UserError, writing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from vitrail.core.passport import Preprocessing
    from vitrail.explain.faithfulness import Curves
    from vitrail.explain.page import Explained, Judged
    from vitrail.explain.readout import Relevance
    from vitrail.models.model import Model

SIDE = 448  # pixels of the longer side of an overlay
LONGEST_STEM = 60  # letters: of four bytes each, and with a method's name, still a file's name
MOST_PANELS = 8  # pictures that the page shows layer by layer


@dataclass(frozen=True)
class Explain:
    """Which model to look into, over which pictures, and how."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    paths: tuple[str, ...]
    """Files, directories, patterns or http addresses; - reads names from standard input, one a
    line."""
    _: KW_ONLY
    method: tuple[str, ...] = ()
    """attention, rollout, relevance, attribution, gradcam, integrated, occlusion, or all. May be
    repeated; by default attribution."""
    target: str | None = None
    """The class to explain, by its label or number; by default what the model says."""
    layer: str | None = None
    """For attention and gradcam: a layer, by its name or its number from 0 on; by default the
    last."""
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
    """On how many of the pictures the maps are put to the test; 0 leaves that out."""
    out: str = "explained"
    """The directory for overlays, panels, maps.npz and index.html."""
    overwrite: bool = False
    """Replace what an earlier run has written to OUT, all of it."""
    loading: Loading = field(default_factory=Loading)
    threads: int | None = None
    """Threads to compute with."""
    json: bool = False
    """Print a JSON object."""


@dataclass
class Story:
    """What is found on the way through the pictures."""

    model: Model
    methods: dict[str, dict[str, Any]]  # with their options
    names: list[str] = field(default_factory=list)
    images: list[Tensor] = field(default_factory=list)
    targets: list[int | None] = field(default_factory=list)
    explained: list[Explained] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    maps: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def explain(asked: Explain) -> None:
    """Show where in pictures a model finds what it says: overlays, layers and heads, and a verdict
    on whether the maps track the model."""

    from vitrail.infer.paths import check_paths
    from vitrail.weights.results import Results

    check_paths(asked.paths)
    if asked.checks < 0:
        raise UserError(f"--checks is {asked.checks}, but must not be negative")
    names = known_methods(asked.method)
    use_threads(asked.threads)
    model = load_asked(asked)
    story = Story(model, with_options(asked, names, model))
    every = list(pictures(asked.paths))
    where = Results(Path(asked.out), "explain", asked.overwrite)
    where.check(alone=True)
    with where.draft() as out, progress() as watch:
        for number, path in enumerate(every):
            watch("explaining pictures", number, len(every))
            tell_picture(asked, story, path, out)
        if not story.images:
            reasons = [f"{path}: {reason}" for path, reason in story.problems.items()]
            raise UserError(f"none of the pictures can be read: {reasons[0]}")
        judged = check(story, asked.checks, watch)
        page = where.out / write(asked, story, judged, out).name
    for facts in story.facts:
        facts["files"] = {name: str(where.out / file) for name, file in facts["files"].items()}
    report(asked, story, judged, page)


# One picture


def tell_picture(asked: Explain, story: Story, path: str, out: Path) -> None:
    """Everything about one image, or why it cannot be read."""
    import numpy as np
    import torch

    from vitrail.data.images import BadImage
    from vitrail.data.preprocess import prepare
    from vitrail.explain.methods import METHODS
    from vitrail.explain.page import Explained
    from vitrail.explain.pictures import heads_of, layers_and_heads
    from vitrail.infer.reading import read_pixels

    model, how = story.model, story.model.passport.preprocessing
    try:
        pixels = np.asarray(read_pixels(path, how))
    except BadImage as problem:
        story.problems[path] = problem.reason
        return
    weights = next(model.parameters())
    image = prepare(pixels, how)[None].to(weights)
    with torch.inference_mode():
        logits = model(image)[0].float().cpu()
    target, said, facts = answer(asked, model, logits)
    asked_for = None if target is None else torch.tensor([target], device=image.device)
    found = {
        name: METHODS[name](model, image, asked_for, **options)
        for name, options in story.methods.items()
    }
    query = parse_query(asked.query)
    seen = seen_part(pixels, how)
    panel = layers_and_heads(
        seen,
        heads_of(model, image, query),
        title=f"{path}: where each head looks, {told_query(query)}",
    )
    overlays = {name: laid_over(seen, one, how) for name, one in found.items()}
    stem = free_name(safe_stem(path), story.names)
    files = write_pictures(out, stem, seen, overlays, panel)
    story.names.append(stem)
    story.images.append(image)
    story.targets.append(target)
    story.maps |= {
        f"{stem}/{name}": one.map[0].float().cpu().numpy() for name, one in found.items()
    }
    shown = {"photo": seen, **overlays}
    panels = panel if len(story.explained) < MOST_PANELS else None
    story.explained.append(Explained(path, said, shown, panels))
    story.facts.append({"name": path, **facts, "files": files})


def answer(asked: Explain, model: Model, logits: Tensor) -> tuple[int | None, str, dict[str, Any]]:
    """The class to explain, what is said about it, and the same for machines."""
    passport, classes = model.passport, model.config.num_classes
    if not classes:
        if asked.target is not None:
            raise UserError(
                f"{asked.source} has no head, so --target {asked.target} has no meaning"
            )
        return None, "The model has no head and names no class.", {"label": None, "target": None}
    chances = logits.sigmoid() if passport.several else logits.softmax(dim=0)
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
    """The part of the picture that the model sees, in the picture's own detail."""
    import numpy as np
    from PIL import Image

    from vitrail.data.preprocess import as_picture, middle, scaled
    from vitrail.explain.pictures import enlarge

    picture = as_picture(pixels).convert("RGB")
    height, width = how.size
    wide, tall = scaled(picture.size, how)
    left, top = middle(wide, width, how), middle(tall, height, how)
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
    """A map over the picture: what speaks against the class counts as nothing."""
    from vitrail.explain.pictures import overlay_map
    from vitrail.explain.spread import on_pixels

    heat = on_pixels(one.map.float().clamp(min=0), how.size, layout=one.layout)
    return overlay_map(seen, heat[0])


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
    """A name for files that no other picture has.

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
    from vitrail.explain.pictures import LEGEND, Tile, side_by_side, write_png

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


def check(story: Story, checks: int, watch: Watch) -> list[Judged]:
    """The verdict on each method, on the first few pictures."""
    import torch

    from vitrail.explain.faithfulness import check_map
    from vitrail.explain.methods import METHODS
    from vitrail.explain.page import Judged

    count = min(checks, len(story.images))
    targets = [target for target in story.targets[:count] if target is not None]
    if not targets:
        return []
    model, images = story.model, torch.cat(story.images[:count])
    target = torch.tensor(targets, device=images.device)
    several = model.passport.several
    chances: dict[tuple[int, int], list[Curves]] = {}
    judged = []
    for number, (name, options) in enumerate(story.methods.items()):
        watch("checking maps", number, len(story.methods))

        def maps_of(
            model: torch.nn.Module, images: Tensor, name: str = name, options: Any = options
        ) -> Tensor:
            return METHODS[name](model, images, target, **options).map

        verdict, curves, chance = check_map(
            maps_of, model, images, target, several=several, chances=chances
        )
        judged.append(Judged(name, verdict, curves, chance))
    return judged


def write(asked: Explain, story: Story, judged: Sequence[Judged], out: Path) -> Path:
    """maps.npz and the page."""
    import numpy as np

    from vitrail.explain.page import Explanation, explain_page

    options = {
        name: ", ".join(f"{option} {value}" for option, value in options.items())
        for name, options in story.methods.items()
    }
    facts = {
        "model": asked.source,
        "family": story.model.passport.family,
        "methods": ", ".join(
            name + (f" ({said})" if said else "") for name, said in options.items()
        ),
        "pictures": str(len(story.images)),
    }
    page = out / "index.html"
    told = Explanation(
        title=f"What {known_as(asked.source)} looks at",
        facts=facts,
        explained=story.explained,
        judged=judged,
        problems=story.problems,
    )
    with writing(out):
        np.savez_compressed(out / "maps.npz", **story.maps)
        page.write_text(explain_page(told), encoding="utf-8")
    return page


def known_as(model: str) -> str:
    """
    >>> known_as("runs/pets/best"), known_as("hf-hub:owner/name")
    ('pets', 'name')
    """
    path = Path(model)
    return path.parent.name if path.name in ("best", "last") else path.name


def report(asked: Explain, story: Story, judged: Sequence[Judged], page: Path) -> None:
    from vitrail.explain.faithfulness import RULE

    if asked.json:
        verdicts = {
            each.method: {
                "tracks": each.verdict.tracks,
                "sentence": each.verdict.sentence,
                **asdict(each.verdict),
            }
            for each in judged
        }
        facts = {
            "page": str(page),
            "maps": str(page.parent / "maps.npz"),
            "pictures": story.facts,
            "verdicts": verdicts,
            "rule": RULE,
            "broken": story.problems,
        }
        say_json(facts)
        return
    for one, stem in zip(story.explained, story.names, strict=True):
        say(f"{one.name}  {one.said}  {page.parent / stem}.*.png")
    for path, reason in story.problems.items():
        say(f"{path}  no map: {reason}")
    for each in judged:
        say("", f"{each.method}: {each.verdict.sentence}")
        say(*(f"  {reason}" for reason in each.verdict.reasons))
    if judged:
        say("", RULE)
    say("", f"the page with all of it: {page}")
