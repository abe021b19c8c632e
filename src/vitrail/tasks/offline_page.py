"""The Attention view of the web page as one offline file, for images that were explained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vitrail.core.errors import UserError, writing
from vitrail.core.packed import compress
from vitrail.data.preprocess import to_pillow
from vitrail.explanation.propagation import pixel_extent
from vitrail.models.model import Model
from vitrail.pages.thumbnails import data_uri
from vitrail.pages.window import OfflineImage, offline_page
from vitrail.tasks.explanation import SIDE, ExplainRun, Explanation
from vitrail.tasks.inspection import inspect_image
from vitrail.tasks.names import short_name
from vitrail.tasks.seen_image import see
from vitrail.weights.atomic import check_writable, refuse_existing, write_file

MAX_IMAGES = 16  # of one page: each may take 4 megabytes


@dataclass
class OfflinePage:
    """What goes into the page at `path`: the first `MAX_IMAGES` images."""

    path: Path
    overwrite: bool
    images: list[OfflineImage] = field(default_factory=list)

    def check(self) -> None:
        """Refuse, before any work, what could not be written at its end."""
        if self.path.is_dir():
            raise UserError(f"html must be a file, got the directory {self.path}")
        check_writable(self.path)
        refuse_existing(self.path, self.overwrite)

    def add(self, model: Model, pixels: UInt8[np.ndarray, "h w *C"], found: Explanation) -> None:
        """One more image, with all its attention; `pixels` are those of its file."""
        if len(self.images) == MAX_IMAGES:
            return
        packed = inspect_image(model, see(model, to_pillow(pixels)), found.run.model)
        picture = data_uri(found.image, SIDE, quality=88)
        maps = [explanation_facts(found, method) for method in found.maps]
        self.images.append(OfflineImage(found.name, picture, compress(packed.to_bytes()), maps))

    def save(self, run: ExplainRun, draft: Path | None) -> None:
        """Write the page; one inside of the run's directory goes to its draft."""
        path = self.path
        if draft is not None and run.out is not None:
            inside, out = path.absolute(), run.out.absolute()
            path = draft / inside.relative_to(out) if inside.is_relative_to(out) else path
        pieces = offline_page(self.images, {"name": short_name(run.model)})
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, lambda file: write_pieces(file, pieces), overwrite=self.overwrite)


def page_path(page: OfflinePage | None, model: Model, called: str) -> Path | None:
    """Where the page goes, if one is wanted; refused for a model without attention."""
    if page is not None and not model.has_attention:
        raise UserError(
            f"html is a page of a model's attention, and {called} has none: give out instead, for "
            "a report with its maps"
        )
    return None if page is None else page.path


def explanation_facts(found: Explanation, method: str) -> dict[str, Any]:
    """One map as POST /v1/explain gives it."""
    values: Sequence[Sequence[float]] = np.round(found.maps[method].astype(float), 6).tolist()
    target = None if found.target is None else {"label": found.target, "score": found.target_score}
    layout = found.run.layouts[method]
    return {
        "method": method,
        "target": target,
        "grid": list(layout.grid),
        "extent": list(pixel_extent(layout.grid, found.run.preprocessing.size, layout)),
        "map": values,
    }


def write_pieces(path: Path, pieces: Iterator[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(pieces)
