"""`vitrail figures`: the paper's figures of a model, on one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import ComputeOptions, ModelOptions, OutputOptions, load_model, use_threads
from vitrail.cli.output import say, say_json
from vitrail.cli.progress import progress
from vitrail.core.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.core.passport import Preprocessing


@dataclass(frozen=True)
class Figures(ModelOptions, ComputeOptions, OutputOptions):
    """Which model to draw, over which images."""

    source: str
    """The model: a Vitrail directory, a foreign checkpoint or hf-hub:owner/name."""
    data: str | None = None
    """Class folders, a manifest, tars, arrays, IDX files, hf:owner/name, torchvision:NAME:ROOT,
    digits, planted or fashion-mnist; by default two photos and their quarters."""
    _: KW_ONLY
    out: str = "figures"
    """The directory for the page, and each figure as SVG and PNG."""
    overwrite: bool = False
    """Replace the figures that an earlier run has written to OUT, all of them."""
    split: str | None = None
    """The part of the data to draw from; by default test, else val."""
    images: int = 128
    """How many images, spread over the part; the paper takes 128."""
    ablated: int = 4
    """Of how many images positions are taken away, place by place; 0 leaves that out."""
    batch_size: int = 8
    """Images computed at once."""


def figures(asked: Figures) -> None:
    """Draw what a model has learnt: filters, positions, attention distance, tokens, likeness of
    layers, attention sinks."""
    from pathlib import Path

    from vitrail.explanation.figures import figures as draw
    from vitrail.weights.results import Results

    for option in ("images", "batch_size"):
        if getattr(asked, option) < 1:
            name = option.replace("_", "-")
            raise UserError(f"--{name} is {getattr(asked, option)}, but must be at least 1")
    where = Results(Path(asked.out), "figures", asked.overwrite)
    where.check(alone=True)
    use_threads(asked.threads)
    model = load_model(asked)
    how = model.passport.preprocessing
    broken: dict[str, str] = {}
    images = chosen(asked, how, broken, val_share(model.passport.provenance))
    with where.draft() as draft, progress() as watch:
        drawn = draw(
            model,
            batched(images, asked.batch_size),
            title=asked.source,
            ablated=max(asked.ablated, 0),
            watch=watch,
        )
        page = where.out / drawn.write(draft).name
    if asked.json:
        say_json({**drawn.numbers(), "out": asked.out, "broken": broken})
        return
    for panel in drawn.panels:
        say(f"{panel.title}: {panel.caption}", "")
    for path, reason in broken.items():
        say(f"left out {path}: {reason}")
    say(f"the page with all figures: {page}")


def val_share(provenance: dict[str, Any]) -> float:
    """A part that was drawn for the training of this model is drawn again."""
    share: float = provenance.get("recipe", {}).get("val_share", 0.1)
    return share


def chosen(
    asked: Figures, how: Preprocessing, broken: dict[str, str], share: float
) -> Iterator[Tensor]:
    """Prepared images, spread evenly over the part; those that cannot be read are named."""
    import numpy as np

    from vitrail.data.images import BadImage
    from vitrail.data.preprocess import normalise
    from vitrail.data.reader import Sample, read_image
    from vitrail.data.sources import open_data

    if asked.data is None:
        return photos(how)
    parts = open_data(asked.data, val_share=share).parts
    if asked.split is not None and asked.split not in parts:
        raise UserError(f"{asked.data} has no part {asked.split!r}, {nearest(asked.split, parts)}")
    name = asked.split or next(part for part in ("test", "val", "train", *parts) if part in parts)
    count = len(parts[name])
    places = np.unique(np.linspace(0, count - 1, min(asked.images, count)).round().astype(int))

    def read() -> Iterator[Tensor]:
        for place in places:
            try:
                yield normalise(
                    read_image(Sample(parts[name], int(place)), how), how, reorder=False
                )
            except BadImage as problem:
                broken[problem.path] = problem.reason

    return read()


def photos(how: Preprocessing) -> Iterator[Tensor]:
    """The two photos that come with scikit-learn, and the four quarters of each: the same on every
    machine, and enough to compare layers by."""
    from sklearn.datasets import load_sample_images

    from vitrail.data.preprocess import MODES, prepare

    if len(how.mean) not in MODES:
        return
    for pixels in load_sample_images().images:
        rows, columns = pixels.shape[0] // 2, pixels.shape[1] // 2
        quarters = [
            pixels[top : top + rows, left : left + columns]
            for top in (0, rows)
            for left in (0, columns)
        ]
        for part in (pixels, *quarters):
            yield prepare(part, how)


def batched(images: Iterator[Tensor], size: int) -> Iterator[Tensor]:
    import torch

    batch: list[Tensor] = []
    for image in images:
        batch.append(image)
        if len(batch) == size:
            yield torch.stack(batch)
            batch = []
    if batch:
        yield torch.stack(batch)
