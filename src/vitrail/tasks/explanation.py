"""What `vitrail.explain` returns: the maps of each image, overlays, verdicts, and their page."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from PIL import Image

from vitrail.core.broken import BrokenImage, list_broken
from vitrail.core.errors import UserError, nearest
from vitrail.core.json_text import plain_values
from vitrail.core.layout import TokenLayout
from vitrail.core.passport import Preprocessing
from vitrail.data.bands import to_display
from vitrail.data.images import BadImage
from vitrail.data.preprocess import crop_start, resized_size, to_pillow
from vitrail.data.reader import read_pixels
from vitrail.explanation.auto_method import MethodChoice
from vitrail.explanation.head_maps import Grid, QueryMaps
from vitrail.explanation.overlays import enlarge, overlay_map
from vitrail.explanation.propagation import on_pixels
from vitrail.explanation.verdict import RULE, MethodCheck, Verdict
from vitrail.tasks.html_record import HtmlRecord

SIDE = 448  # pixels of the longer side of an overlay
PAGE, MAPS, FACTS = "report.html", "maps.npz", "explain.json"

Map = Float[np.ndarray, "rows columns"]
Pixels = UInt8[np.ndarray, "H W 3"]


@dataclass
class ExplainRun:
    """What the images of one call have in common."""

    model: str
    family: str
    preprocessing: Preprocessing
    methods: dict[str, dict[str, Any]]  # with their options
    auto: MethodChoice | None = None  # what auto chose, if it was given
    out: Path | None = None
    html: Path | None = None  # the offline page, where one is written
    layouts: dict[str, TokenLayout] = field(default_factory=dict)  # of the maps, by method
    checks: dict[str, MethodCheck] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)  # images that cannot be read, and why
    notes: dict[str, str] = field(default_factory=dict)

    def facts(self, images: Sequence["Explanation"]) -> dict[str, Any]:
        """Everything as JSON holds it, but for the maps."""
        verdicts = {
            name: {
                "tracks": check.verdict.tracks,
                "sentence": check.verdict.sentence,
                **asdict(check.verdict),
            }
            for name, check in self.checks.items()
        }
        written = {}
        if self.out is not None:
            written = {"report": str(self.out / PAGE), "maps": str(self.out / MAPS)}
        if self.html is not None:
            written["html"] = str(self.html)
        facts = {
            **written,
            "model": self.model,
            "images": [image.image_facts() for image in images],
            "verdicts": verdicts,
            **({"rule": RULE} if verdicts else {}),
            "broken": [asdict(one) for one in list_broken(self.problems)],
            "notes": self.notes,
            **({"auto": asdict(self.auto)} if self.auto is not None else {}),
        }
        return plain_values(facts)


@dataclass(frozen=True)
class HeadDetails:
    """The attention of every layer and head of an image, for its page."""

    sheet: bytes  # all layers and heads, JPEG
    grid: Grid  # of the queries
    maps: dict[str, QueryMaps]


@dataclass(frozen=True, repr=False)
class Explanation(HtmlRecord):
    """One image: `map` (rows, columns) says how much each patch matters to the prediction of
    `target`, by the first method; `maps` has all of them. `label` and `score` are the prediction,
    `verdict` whether the method's maps track the model, where that was tested."""

    name: str
    label: str | None
    score: float | None
    target: str | None
    target_score: float | None
    maps: dict[str, Map]
    run: ExplainRun
    source: "str | bytes"  # a path that is read again when the image is needed, or the image
    files: dict[str, str] = field(default_factory=dict)
    heads: HeadDetails | None = None

    @property
    def method(self) -> str:
        return next(iter(self.maps))

    @property
    def map(self) -> Map:
        return self.maps[self.method]

    @property
    def verdict(self) -> Verdict | None:
        check = self.run.checks.get(self.method)
        return None if check is None else check.verdict

    @property
    def image(self) -> Pixels:
        """The part of the image that the model sees, in its own detail."""
        if isinstance(self.source, bytes):
            return np.asarray(Image.open(BytesIO(self.source)).convert("RGB"))
        try:
            how = self.run.preprocessing
            return visible_part(
                read_pixels(self.source, channels=len(how.mean), bits=how.bits), how
            )
        except BadImage as problem:
            raise UserError(f"{self.name}: {problem.reason}") from None

    def heat(self, method: str | None = None) -> torch.Tensor:
        """A map as large as the model's input; negative relevance counts as zero."""
        method = method or self.method
        if method not in self.maps:
            raise UserError(f"no map by method {method!r}, {nearest(method, self.maps)}")
        run, values = self.run, torch.from_numpy(self.maps[method])
        large = on_pixels(values[None], run.preprocessing.size, layout=run.layouts.get(method))
        return large[0].clamp(min=0)

    def overlay(self, method: str | None = None, *, opacity: float = 0.7) -> Image.Image:
        """The image with a map over it."""
        return Image.fromarray(overlay_map(self.image, self.heat(method), opacity))

    @property
    def answer(self) -> str:
        """The prediction, and the class that is explained, in words."""
        if self.label is None:
            return "The model has no head and names no class."
        text = f"Prediction: {self.label} ({self.score:.1%})."
        if self.target != self.label:
            text += f" Explained: {self.target} ({self.target_score:.1%})."
        return text

    def image_facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.label,
            "score": self.score,
            "target": self.target,
            "target_score": self.target_score,
            "files": self.files,
        }

    def facts(self) -> dict[str, Any]:
        """As JSON holds it: what `vitrail explain --json` prints for this image."""
        return self.run.facts([self])

    def __iter__(self) -> Iterator["Explanation"]:
        """One image or several can be gone through alike."""
        yield self

    def html_pieces(self) -> Iterator[str]:
        """The page: the image with its maps, layers and heads, and the verdict."""
        return Explanations((self,), self.run).html_pieces()

    def __repr__(self) -> str:
        rows, columns = self.map.shape
        target = "no class" if self.label is None else f"{self.target} {self.target_score:.1%}"
        verdict = "" if self.verdict is None else f", {self.verdict.sentence}"
        return f"Explanation({self.name}: {target}, {self.method} {rows}x{columns}{verdict})"


@dataclass(frozen=True, repr=False)
class Explanations(Sequence[Explanation], HtmlRecord):
    """The explanations of several images, in their order; `run` has what they share: verdicts, and
    images that could not be read."""

    images: tuple[Explanation, ...]
    run: ExplainRun

    @overload
    def __getitem__(self, index: int) -> Explanation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Explanation]: ...
    def __getitem__(self, index: int | slice) -> Explanation | Sequence[Explanation]:
        return self.images[index]

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.images)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        return {name: check.verdict for name, check in self.run.checks.items()}

    @property
    def broken(self) -> tuple[BrokenImage, ...]:
        """Images that could not be read, and why."""
        return list_broken(self.run.problems)

    def facts(self) -> dict[str, Any]:
        """As JSON holds it: what `vitrail explain --json` prints."""
        return self.run.facts(self.images)

    def html_pieces(self) -> Iterator[str]:
        """The page: images with their maps, layers and heads, and the verdicts."""
        from vitrail.tasks.explain_page import explain_page

        return explain_page(self)

    def __repr__(self) -> str:
        methods = ", ".join(self.run.methods)
        return f"Explanations({len(self)} images by {methods}, {len(self.broken)} not read)"


def visible_part(pixels: Shaped[np.ndarray, "h w *C"], how: Preprocessing) -> Pixels:
    """The part of an image that the model sees, in its own detail, `SIDE` pixels long; of bands the
    first three, or the first in grey."""
    pixels = pixels if how.is_photo else to_display(pixels, how)
    image = to_pillow(pixels).convert("RGB")
    height, width = how.size
    wide, tall = resized_size(image.size, how)
    left, top = crop_start((wide, tall), how)
    across, down = image.width / wide, image.height / tall
    box = (left * across, top * down, (left + width) * across, (top + height) * down)
    own = max(round(box[2] - box[0]), 1), max(round(box[3] - box[1]), 1)
    if own[0] * height != own[1] * width:  # the image was squeezed
        longer = max(own)
        own = (longer, round(longer * height / width))
        own = own if width >= height else (round(longer * width / height), longer)
    return enlarge(np.array(image.resize(own, Image.Resampling.LANCZOS, box=box)), SIDE)
