"""`vitrail.evaluate`: how good a model is on labelled images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import UserError, writing
from vitrail.core.eval_mode import eval_mode
from vitrail.core.json_text import to_json
from vitrail.core.outputs import Outputs
from vitrail.core.ranges import check_count, check_counts
from vitrail.data.reader import ImageSource
from vitrail.data.source import Source
from vitrail.evaluation.calibration import (
    TemperatureScaling,
    confidences,
    reliability,
    scale_temperature,
)
from vitrail.evaluation.corruptions import CORRUPTIONS, corrupt, published_side
from vitrail.evaluation.metrics import compute_metrics
from vitrail.evaluation.robustness import (
    EXAMPLE_SEVERITY,
    VARIANTS,
    Robustness,
    measure_robustness,
)
from vitrail.inference.calibration import Calibration
from vitrail.inference.engines.auto import OpenRunner
from vitrail.inference.engines.catalogue import AUTO, EAGER, check_engine
from vitrail.inference.outputs import compute_outputs, open_logits
from vitrail.inference.quantisation import MAX_DROP
from vitrail.inference.speed_up import SpeedUp
from vitrail.inference.variants import Variants, compute_variants
from vitrail.models.model import Model
from vitrail.models.vit import ViTConfig
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun, plan_images
from vitrail.tasks.evaluation import Evaluation, SizeResult
from vitrail.tasks.int8 import INT8, calibrate_on_split, check_int8, open_float
from vitrail.tasks.keywords import EvaluateKeywords, Size
from vitrail.tasks.models import AnyModel, Device, Precision
from vitrail.tasks.names import name_of, short_name
from vitrail.tasks.progress import OnProgress, silent, steps_of
from vitrail.tasks.results import writing_results
from vitrail.tasks.speed_up import speed_up_note, with_speed_up
from vitrail.tasks.splits import Split, check_split, open_splits, parts_of
from vitrail.weights.load import load

VERB = "evaluate"
FILES = {"report.html": "report", "evaluation.json": "facts", "predictions.csv": "predictions"}

Sizes = list[tuple[str, dict[str, Any]]]


@overload
def evaluate(
    model: AnyModel,
    data: str | Path,
    *,
    dry_run: Literal[False] = False,
    **options: Unpack[EvaluateKeywords],
) -> Evaluation: ...
@overload
def evaluate(
    model: AnyModel,
    data: str | Path,
    *,
    dry_run: bool,
    **options: Unpack[EvaluateKeywords],
) -> Evaluation | DryRun: ...
def evaluate(
    model: AnyModel,
    data: str | Path,
    *,
    split: str | None = None,
    corruptions: bool = False,
    corrupted_images: int | None = None,
    resolutions: Size | Sequence[Size] = (),
    patch_sizes: int | Sequence[int] = (),
    by_index: bool = False,
    batch_size: int = 64,
    workers: int = 0,
    engine: str = AUTO,
    speed_up: float | None = None,
    device: Device = "auto",
    precision: Precision = None,
    calibrate: ImageSource | Iterable[ImageSource] | None = None,
    max_drop: float = MAX_DROP,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    name: str | None = None,
    on_progress: OnProgress = silent,
) -> Evaluation | DryRun:
    """Evaluate a model on one split of a data set, by default test, else val: metrics with
    confidence intervals, calibration, classes and confusions. `corruptions` adds 15 common
    corruptions at 5 severities (of `corrupted_images` images, by default all), `resolutions` and
    `patch_sizes` other sizes of images and patches, in pixels. Classes are matched by name, or with
    `by_index` by index. `engine` computes, as in `predict`, by default the fastest where that pays.
    `speed_up=1.8` merges similar tokens (ViT, DeiT, BEiT) until the model is that many times as
    fast. `precision="int8"` is calibrated on images of `calibrate`, by default of the train split,
    and refused as in `predict`. `out` gets report.html, evaluation.json and predictions.csv.
    `dry_run` checks everything and returns what would be computed.

    >>> model = create("vit_ti_16", depth=1, num_classes=10, channels=1, image_size=16)
    >>> evaluate(model, "digits").images
    179
    """
    check_not_swapped(model, data)
    check_corrupted(corrupted_images, corruptions)
    check_split(split, data)
    check_engine(engine)
    sides = check_sizes("resolutions", resolutions)
    patch_sizes = check_counts("patch_sizes", patch_sizes, at_least=1)
    check_one_size(speed_up, precision, [*sides, *patch_sizes])
    check_int8(precision, calibrate, max_drop)
    with writing_results(out, VERB, list(FILES), overwrite=overwrite, dry_run=dry_run) as draft:
        loaded = open_float(model, device=device, precision=precision)
        wanted = None if dry_run else speed_up  # it takes a while to find
        loaded, merged = with_speed_up(loaded, wanted, batch_size=batch_size, engine=engine)
        run = Run(loaded, name or name_of(model), str(data), batch_size, workers, seed, on_progress)
        with eval_mode(loaded):
            sizes: Sizes = [(size_text(size), {"image_size": size}) for size in sides]
            patches = patch_fields(patch_sizes, loaded)
            splits, split, notes = open_splits(loaded, run.names, split, by_index=by_index)
            most = (corrupted_images or len(splits[split].source)) if corruptions else 0
            images = count_images(splits, split, most)
            if dry_run:
                return plan(run, images | resized(sizes, patches, images[split]), out, engine)
            run = run.calibrated(splits[split].source, precision, calibrate, max_drop)
            run = run.started(engine, sum(images.values()))
            found = with_costs(measure(run, splits, split, notes), merged)
            if corruptions:
                known = run.corrupted(found.outputs, found.source, corrupted_images)
                found = replace(found, robustness=known)
            found = run.at_all_sizes(found, splits[split], sizes, patches)
        if draft is not None:
            write(found, draft)
    return found if out is None else replace(found, files=files_in(Path(out)))


def count_images(splits: dict[str, Split], split: str, corrupted: int) -> dict[str, int]:
    """How many images are computed at the model's own size."""
    images = {name: len(one.source) for name, one in splits.items()}
    count = len(VARIANTS) * min(corrupted, images[split])
    return images | ({"corrupted": count} if count else {})


def resized(sizes: Sizes, patches: Sizes, images: int) -> dict[str, int]:
    """How many images are evaluated at each of the other sizes."""
    return {f"at {size}": images for size, _ in sizes} | {
        f"in patches of {size}": images for size, _ in patches
    }


def plan(run: "Run", images: dict[str, int], out: str | Path | None, engine: str) -> DryRun:
    how, size = {"engine": engine}, run.batch_size
    return plan_images(
        VERB, run.names, images, batch_size=size, out=out, files=list(FILES), details=how
    )


def with_costs(found: Evaluation, merged: SpeedUp | None) -> Evaluation:
    """The same with notes on what int8 and merged tokens are."""
    if found.quantisation is not None:
        found = replace(found, notes=[*found.quantisation.lines(), *found.notes])
    if merged is None:
        return found
    return replace(found, speed_up=merged.facts(), notes=[speed_up_note(merged), *found.notes])


def files_in(out: Path) -> dict[str, str]:
    """What `out` gets, by what it is."""
    return {what: str(out / name) for name, what in FILES.items()}


def check_one_size(speed_up: float | None, precision: Precision, sizes: Sequence[Size]) -> None:
    for name, given in (("speed_up", speed_up is not None), ("int8", precision == INT8)):
        if given and sizes:
            raise UserError(
                f"{name} is measured for one image and patch size: leave out resolutions and "
                f"patch_sizes, or {name}"
            )


@dataclass(frozen=True)
class Run:
    """A model that is run over data, and how."""

    model: Model
    model_name: str
    data: str
    batch_size: int
    workers: int
    seed: int
    on_progress: OnProgress
    engine: str = EAGER
    opened: OpenRunner | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size, at_least=1)
        check_count("workers", self.workers)

    @property
    def names(self) -> tuple[str, str]:
        return self.model_name, self.data

    def open(self, model: Model, engine: str, images: int) -> OpenRunner:
        return open_logits(
            model,
            batch_size=self.batch_size,
            engine=engine,
            images=images,
            calibration=self.calibration,
        )

    def started(self, engine: str, images: int) -> "Run":
        """With the engine that computes so many images."""
        return replace(self, opened=self.open(self.model, engine, images), engine=engine)

    def calibrated(
        self, source: Source, precision: Precision, calibrate: Any, max_drop: float
    ) -> "Run":
        """For int8: calibrated on given images, else on the train split, else on those at hand."""
        if precision != INT8:
            return self
        source = parts_of(self.model, self.data).get("train", source)
        int8 = calibrate_on_split(self.model, source, precision, calibrate, max_drop)
        return replace(self, calibration=int8)

    def outputs(self, split: Split, model: Model | None = None, what: str = "") -> Outputs:
        """The outputs for one split, of the model or of a resized copy."""
        opened = self.opened
        if model is not None:
            opened = self.open(model, self.engine, len(split.source))
        found = compute_outputs(
            model or self.model,
            split.source,
            name=f"{self.data}, {split.name}",
            split=split.name,
            batch_size=self.batch_size,
            workers=self.workers,
            opened=opened,
            on_progress=steps_of(self.on_progress, what or f"images of {split.name}"),
        )
        return split.match.relabel(found)

    def corrupted(self, clean: Outputs, source: Source, most: int | None) -> Robustness:
        """All 15 corruptions at 5 severities of the images, or of `most` of them, spread evenly.
        Every image is decoded once, and no more than a batch is held."""
        count = clean.images if most is None else min(most, clean.images)
        rows = np.linspace(0, clean.images - 1, count).round().astype(int)
        clean = replace(
            clean,
            logits=clean.logits[rows],
            targets=clean.targets[rows],
            indices=clean.indices[rows],
        )
        how, apply = self.model.passport.preprocessing, partial(apply_corruption, self.seed)
        variants = Variants(source, how, clean.indices, VARIANTS, apply, self.batch_size)
        results = np.zeros(
            (len(VARIANTS), *(clean.targets.shape if clean.multi_label else (count,))), np.float32
        )
        progress = steps_of(self.on_progress, "corruptions")
        for variant, places, logits in compute_variants(
            self.model,
            variants,
            workers=self.workers,
            opened=self.opened,
            on_progress=progress,
        ):
            right = logits.argmax(axis=1) == clean.truth[places]
            results[variant, places] = logits if clean.multi_label else right
        index = int(clean.indices[0])
        first = variants.pixels(index)
        examples = [apply(first, (name, EXAMPLE_SEVERITY), index) for name in CORRUPTIONS]
        return measure_robustness(
            clean,
            results,
            side=published_side(how.size),
            examples=np.stack(examples),
            seed=self.seed,
        )

    def at_all_sizes(
        self, found: Evaluation, split: Split, sizes: Sizes, patches: Sizes
    ) -> Evaluation:
        """The evaluation, and the headline metric at other sizes of images and patches."""
        return replace(
            found,
            resolutions=self.at_sizes(split, sizes, "image sizes"),
            patch_sizes=self.at_sizes(split, patches, "patch sizes"),
        )

    def at_sizes(self, split: Split, sizes: Sizes, what: str) -> list[SizeResult]:
        """The headline metric at each size, given as its text and the fields of `load`."""
        found = []
        for number, (size, fields) in enumerate(sizes):
            self.on_progress(what, number, len(sizes))
            try:
                model = load(self.model, **fields)
            except UserError as error:
                found.append(SizeResult(size=size, problem=str(error)))
                continue
            outputs = self.outputs(split, model, f"{what}: {size}")
            key = "mean_precision" if outputs.multi_label else "accuracy"
            metrics = compute_metrics(
                np.nan_to_num(outputs.logits),
                outputs.targets,
                multi_label=outputs.multi_label,
                seed=self.seed,
                only=key,
            )
            found.append(
                SizeResult(
                    size=size,
                    metric=key,
                    value=metrics.values[key],
                    interval=metrics.intervals.get(key),
                    changes=model.passport.origin.changes,
                )
            )
        return found


def apply_corruption(
    seed: int, pixels: NDArray[np.uint8], variant: tuple[str, int], index: int
) -> NDArray[np.uint8]:
    name, severity = variant
    return corrupt(pixels, name, severity, seed=seed, index=index)


def measure(run: Run, splits: dict[str, Split], split: str, notes: list[str]) -> Evaluation:
    """All metrics of one split; val, if that is another one, chooses the temperature."""
    outputs = run.outputs(splits[split])
    held_out = run.outputs(splits["val"]) if split != "val" and "val" in splits else None
    return summarise(run, outputs, held_out, splits[split].source, notes)


def summarise(
    run: Run, outputs: Outputs, held_out: Outputs | None, source: Source, notes: list[str]
) -> Evaluation:
    """All metrics of the outputs; `held_out` are those of another split, which chooses the
    temperature."""
    logits, targets, multi_label = outputs.finite_logits, outputs.targets, outputs.multi_label
    confidence, right = confidences(logits, targets, multi_label=multi_label)
    other = None
    if held_out is not None:
        other = (held_out.split, held_out.finite_logits, held_out.targets)
    metrics = compute_metrics(logits, targets, multi_label=multi_label, seed=run.seed)
    temperature = scale_temperature(
        logits, targets, multi_label=multi_label, held_out=other, seed=run.seed
    )
    return Evaluation(
        title=short_name(run.model_name),
        model=run.model_name,
        data=run.data,
        seed=run.seed,
        engine=EAGER if run.opened is None else run.opened.engine,
        preprocessing=run.model.passport.preprocessing,
        source=source,
        outputs=outputs,
        metrics=metrics.values,
        intervals=metrics.intervals,
        resamples=metrics.resamples,
        reliability=reliability(confidence.reshape(-1), right.reshape(-1)),
        temperature=temperature,
        quantisation=None if run.opened is None else run.opened.quantisation,
        notes=[*notes, *output_notes(outputs, metrics.values["ece"], temperature)],
    )


def output_notes(outputs: Outputs, ece: float, temperature: TemperatureScaling | None) -> list[str]:
    """What a person must know about the outputs."""
    notes = []
    if outputs.nonfinite:
        notes.append(
            f"the output is NaN or infinite for {outputs.nonfinite:,} of {outputs.images:,} "
            "images: it counts as zeros"
        )
    if temperature is not None and temperature.reliability.ece > ece:
        notes.append(
            f"temperature {temperature.temperature:.4g} makes calibration worse on these images: "
            f"ece {ece:.4f} becomes {temperature.reliability.ece:.4f}; keep the logits as they are"
        )
    return notes


def check_corrupted(images: int | None, corruptions: bool) -> None:
    if images is not None:
        check_count("corrupted_images", images, at_least=1)
        if not corruptions:
            raise UserError("corrupted_images needs corruptions: pass corruptions=True")


def check_sizes(name: str, sizes: Any) -> list[Size]:
    """Image sizes, each a side or (height, width); one side alone is a list of one.

    >>> check_sizes("resolutions", 224), check_sizes("resolutions", [160, (192, 672)])
    ([224], [160, (192, 672)])
    """
    if isinstance(sizes, str) or not isinstance(sizes, int | Iterable):
        raise UserError(f"{name} must be sides like [160, 224], got {sizes!r}")
    found = [sizes] if isinstance(sizes, int) else list(sizes)
    for size in found:
        sides = size if isinstance(size, list | tuple) and len(size) == 2 else (size,)
        for side in sides:
            check_count(name, side, at_least=1)
    return [tuple(size) if isinstance(size, list) else size for size in found]


def size_text(size: Size) -> str:
    """
    >>> size_text(224), size_text((192, 672)), size_text((224, 224))
    ('224', '192x672', '224')
    """
    height, width = (size, size) if isinstance(size, int) else size
    return str(height) if height == width else f"{height}x{width}"


def patch_fields(sizes: Sequence[int], model: Model) -> Sizes:
    """Patch sizes in pixels of the image as the field has them: a hybrid's patches are cut from the
    output of its stem, in which a pixel stands for `stride` of the image's."""
    config = model.config
    stride = config.stride // config.patch_size if isinstance(config, ViTConfig) else 1
    for size in sizes:
        if size % stride:
            raise UserError(
                f"patch_sizes must be multiples of {stride}, the stride of the model's stem, got "
                f"{size}"
            )
    return [(str(size), {"patch_size": size // stride}) for size in sizes]


def write(found: Evaluation, out: Path) -> None:
    """The page, the same for machines, and the prediction for every image."""
    page, facts, table = (out / name for name in FILES)
    with writing(out):
        found.save_html(page)
        values = {name: value for name, value in found.facts().items() if name != "files"}
        facts.write_text(to_json(values, indent=1) + "\n", encoding="utf-8")
        found.save_predictions(table)
