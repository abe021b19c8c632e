"""`vitrail.evaluate`: how good a model is on labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitrail.core.errors import UserError, nearest, writing
from vitrail.core.eval_mode import eval_mode
from vitrail.core.json_text import to_json
from vitrail.core.ranges import check
from vitrail.data.source import Source
from vitrail.data.sources import open_data
from vitrail.data.sources.origin import Origin, Subset
from vitrail.evaluation.answers import answers_of
from vitrail.evaluation.evaluation import Evaluation, judge, write_predictions
from vitrail.evaluation.judged import Judged, judged_answers
from vitrail.evaluation.matching import matched
from vitrail.evaluation.robustness import robustness_of
from vitrail.evaluation.sizes import at_sizes
from vitrail.models.model import Model
from vitrail.models.vit import ViTConfig
from vitrail.tasks.names import name_of, short_name
from vitrail.tasks.progress import OnProgress, silent, steps_of
from vitrail.tasks.results import writing_results
from vitrail.weights.load import load

FILES = {"report.html": "report", "evaluation.json": "facts", "predictions.csv": "predictions"}
ENOUGH, MOST_HELD_OUT = 500, 5000  # images of val that choose a temperature

Size = int | tuple[int, int]
Sizes = list[tuple[str, dict[str, Any]]]


def evaluate(
    model: str | Path | nn.Module,
    data: str | Path,
    *,
    split: str | None = None,
    corruptions: bool = False,
    corrupted_images: int | None = None,
    resolutions: Sequence[Size] = (),
    patch_sizes: Sequence[int] = (),
    by_order: bool = False,
    batch_size: int = 64,
    workers: int = 0,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    name: str | None = None,
    on_progress: OnProgress = silent,
) -> Evaluation:
    """Evaluate a model on one split of a data set, by default test, else val: headline numbers with
    confidence intervals, calibration, classes and confusions. `corruptions` adds 15 common
    corruptions at 5 severities (of `corrupted_images` images, by default all), `resolutions` and
    `patch_sizes` other sizes of images and patches, in pixels. Classes are matched by name, or with
    `by_order` by index. `out` gets report.html, evaluation.json and predictions.csv.

    >>> model = create("vit_ti_16", depth=1, num_classes=10, channels=1, image_size=16)
    >>> evaluate(model, "digits").images
    179
    """
    work = Work(batch_size, workers, seed, on_progress)
    check_corrupted(corrupted_images, corruptions)
    check_split(split, data)
    with writing_results(out, "evaluate", list(FILES), overwrite=overwrite) as draft:
        loaded = model if isinstance(model, Model) else load(model)
        with eval_mode(loaded):
            patches = patch_fields(patch_sizes, loaded)
            called = (name or name_of(model), str(data))
            sources, part, notes = open_splits(loaded, called, split, by_order=by_order)
            judged = work.judge(loaded, sources[part], part, called[1])
            held_out = None
            if part != "val" and "val" in sources:
                held_out = work.judge(loaded, sources["val"], "val", called[1])
            robustness = None
            if corruptions:
                robustness = robustness_of(
                    loaded, judged, most=corrupted_images, **work.options("corruptions")
                )
            again = partial(load, loaded)
            found = Evaluation(
                title=short_name(called[0]),
                model=called[0],
                data=called[1],
                seed=seed,
                judged=judged,
                preprocessing=loaded.passport.preprocessing,
                judgement=judge(judged, held_out=held_out, seed=seed),
                robustness=robustness,
                resolutions=at_sizes(
                    again,
                    sources[part],
                    [(size_text(size), {"image_size": size}) for size in resolutions],
                    **work.options("image sizes"),
                ),
                patch_sizes=at_sizes(again, sources[part], patches, **work.options("patch sizes")),
                notes=notes,
            )
        if draft is not None:
            write(found, draft)
    return found


@dataclass(frozen=True)
class Work:
    """How images are computed, and who wants to know."""

    batch_size: int
    workers: int
    seed: int
    on_progress: OnProgress

    def __post_init__(self) -> None:
        check("batch_size", self.batch_size, at_least=1)
        check("workers", self.workers, at_least=0)

    def options(self, what: str) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "workers": self.workers,
            "seed": self.seed,
            "on_progress": steps_of(self.on_progress, what),
        }

    def judge(self, model: Model, source: Source, part: str, data: str) -> Judged:
        """What the model answers for the images of one split."""
        answers = answers_of(
            model,
            source,
            name=f"{data}, {part}",
            batch_size=self.batch_size,
            workers=self.workers,
            on_progress=steps_of(self.on_progress, f"images of {part}"),
        )
        return judged_answers(answers, source, part)


def check_corrupted(images: int | None, corruptions: bool) -> None:
    if images is not None:
        check("corrupted_images", images, at_least=1)
        if not corruptions:
            raise UserError("corrupted_images is how many to corrupt: give corruptions too")


def check_split(split: str | None, data: str | Path) -> None:
    known = open_data(data).parts
    if split is not None and split not in known:
        raise UserError(f"{data} has no split {split!r}, {nearest(split, known)}")


def size_text(size: Size) -> str:
    """
    >>> size_text(224), size_text((192, 672)), size_text((224, 224))
    ('224', '192x672', '224')
    """
    height, width = (size, size) if isinstance(size, int) else size
    return str(height) if height == width else f"{height}x{width}"


def patch_fields(sizes: Sequence[int], model: Model) -> Sizes:
    """Patch sizes in pixels of the image as the field has them: a hybrid's patches are cut from
    what its stem makes of the image, in which a pixel stands for `stride` of the image's."""
    config = model.config
    stride = config.stride // config.patch_size if isinstance(config, ViTConfig) else 1
    for size in sizes:
        check("patch_sizes", size, at_least=1)
        if size % stride:
            raise UserError(
                f"patch_sizes must be multiples of {stride}, the stride of the model's stem, got "
                f"{size}"
            )
    return [(str(size), {"patch_size": size // stride}) for size in sizes]


def open_splits(
    model: Model, called: tuple[str, str], split: str | None, *, by_order: bool
) -> tuple[dict[str, Source], str, list[str]]:
    """The split to evaluate on, and val where it can choose a temperature, with the model's
    classes; which split it is; and what was assumed. `called` are the names of model and data."""
    # a split that was drawn for the training of this model is drawn again
    share = model.passport.provenance.get("recipe", {}).get("val_share", 0.1)
    parts = open_data(called[1], val_share=share).parts
    labelled = [name for name in parts if parts[name].targets is not None] or list(parts)
    part = split or next(name for name in ("test", "val", *labelled) if name in labelled)
    chosen = {part: parts[part]}
    if part != "val" and "val" in labelled and enough(len(parts["val"]), len(parts[part])):
        chosen["val"] = fewer(parts["val"])
    notes: list[str] = []
    for name, source in chosen.items():
        chosen[name], note = matched(model, source, names=called, by_order=by_order)
        notes += [note] if note is not None and name == part else []
    if part == "val" and "val" not in open_data(called[1], val_share=0).parts:
        notes.append(
            f"val was drawn from train, {share:.0%} of it, as training draws it: split train has "
            "the rest"
        )
    return chosen, part, notes


def enough(images: int, judged: int) -> bool:
    """Whether a split can choose a temperature at least as well as half of those evaluated."""
    return images >= min(judged / 2, ENOUGH)


def fewer(source: Source) -> Source:
    """A temperature is one number: of a large split some images, spread over it, will do."""
    if len(source) <= MOST_HELD_OUT or not isinstance(source, Origin):
        return source
    return Subset(source, np.linspace(0, len(source) - 1, MOST_HELD_OUT).astype(np.int64))


def write(found: Evaluation, out: Path) -> None:
    """The page, the same for machines, and the answer for every image."""
    page, facts, table = (out / name for name in FILES)
    with writing(out):
        found.save_html(page)
        facts.write_text(to_json(found.facts(), indent=1) + "\n", encoding="utf-8")
        write_predictions(found.judged, table)
