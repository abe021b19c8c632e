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
from vitrail.core.native_size import NativeSize
from vitrail.core.outputs import Outputs
from vitrail.core.ranges import check_count
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
from vitrail.inference.packing import check_native
from vitrail.inference.quantisation import MAX_DROP
from vitrail.inference.speed_up import SpeedUp
from vitrail.inference.variants import Variants, compute_variants
from vitrail.models.model import Model
from vitrail.models.packing import native_size_of
from vitrail.tasks.arguments import check_not_swapped
from vitrail.tasks.dry_run import DryRun, plan_images
from vitrail.tasks.evaluation import Evaluation, SizeResult
from vitrail.tasks.evaluation_extras import CORRUPTED, Extras, Sizes, patch_fields
from vitrail.tasks.int8 import INT8, calibrate_on_split, check_int8, open_float
from vitrail.tasks.keywords import EvaluateKeywords, Size
from vitrail.tasks.models import AnyModel, Device, Precision, load_again
from vitrail.tasks.names import name_of, short_name
from vitrail.tasks.progress import OnProgress, silent, steps_of
from vitrail.tasks.results import writing_results
from vitrail.tasks.speed_up import speed_up_note, with_speed_up
from vitrail.tasks.splits import Split, check_split, open_splits, parts_of
from vitrail.tasks.threads import use_threads

VERB = "evaluate"
FILES = {"report.html": "report", "evaluation.json": "facts", "predictions.csv": "predictions"}


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
    native_resolution: bool = False,
    max_tokens: int | None = None,
    device: Device = "auto",
    threads: int | None = None,
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
    and refused as in `predict`; `native_resolution` and `max_tokens` are as in `predict` too. `out`
    gets report.html, evaluation.json and predictions.csv. `dry_run` returns what would be computed.

    >>> model = create("vit_ti_16", depth=1, num_classes=10, channels=1, image_size=16)
    >>> evaluate(model, "digits").images
    179
    """
    check_not_swapped(model, data)
    check_split(split, data)
    check_engine(engine)
    extras = Extras.of(corruptions, corrupted_images, resolutions, patch_sizes)
    costs = {"speed_up": speed_up is not None, "int8": precision == INT8}
    extras.check_one_size(costs)
    check_int8(precision, calibrate, max_drop)
    check_native(native_resolution, max_tokens, engine, **costs, **extras.given)
    how = {"overwrite": overwrite, "dry_run": dry_run}
    with use_threads(threads), writing_results(out, VERB, list(FILES), **how) as draft:
        loaded = open_float(model, device=device, precision=precision)
        faster = None if dry_run else speed_up  # it takes a while to find
        loaded, merged = with_speed_up(loaded, faster, batch_size=batch_size, engine=engine)
        run = Run(loaded, name or name_of(model), str(data), batch_size, workers, seed, on_progress)
        run = run.at_native(max_tokens) if native_resolution else run
        with eval_mode(loaded):
            splits, split, notes = open_splits(loaded, run.names, split, by_index=by_index)
            images = {part: len(one.source) for part, one in splits.items()}
            more = extras.count_images(images[split], loaded)
            if dry_run:
                return plan(run, images | more, out, engine)
            run = run.calibrated(splits[split].source, precision, calibrate, max_drop)
            run = run.started(engine, sum(images.values()) + more.get(CORRUPTED, 0))
            found = with_costs(measure(run, splits, split, notes), merged)
            found = run.with_extras(found, splits[split], extras)
        if draft is not None:
            write(found, draft)
    return found if out is None else replace(found, files=files_in(Path(out)))


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
    native: NativeSize | None = None

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

    def at_native(self, max_tokens: int | None) -> "Run":
        """With images at their native resolution."""
        return replace(self, native=native_size_of(self.model, max_tokens))

    def started(self, engine: str, images: int) -> "Run":
        """With the engine that computes so many images; those of native resolution are eager's."""
        engine = engine if self.native is None else EAGER
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
            native=self.native,
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

    def with_extras(self, found: Evaluation, split: Split, extras: Extras) -> Evaluation:
        """The evaluation, with corrupted images and with other sizes of images and patches."""
        patches = patch_fields(extras.patch_sizes, self.model)
        if extras.corruptions:
            known = self.corrupted(found.outputs, found.source, extras.corrupted_images)
            found = replace(found, robustness=known)
        return replace(
            found,
            resolutions=self.at_sizes(split, extras.sizes, "image sizes"),
            patch_sizes=self.at_sizes(split, patches, "patch sizes"),
        )

    def at_sizes(self, split: Split, sizes: Sizes, what: str) -> list[SizeResult]:
        """The headline metric at each size, given as its text and the fields of `load`."""
        found = []
        for number, (size, fields) in enumerate(sizes):
            self.on_progress(what, number, len(sizes))
            try:
                model = load_again(self.model, **fields)
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
    notes = [*notes, *native_note(run)]
    return summarise(run, outputs, held_out, splits[split].source, notes)


def native_note(run: Run) -> list[str]:
    """Where the model was trained at native resolution, but is evaluated at its own size."""
    trained = run.model.passport.provenance.get("recipe", {}).get("native_resolution", False)
    if not trained or run.native is not None:
        return []
    return ["the model was trained at native resolution: evaluate it with native_resolution=True"]


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
        title=f"Evaluation of {short_name(run.model_name)} on {short_name(run.data)}",
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
            f"the error {ece:.4f} becomes {temperature.reliability.ece:.4f}; do not "
            "apply temperature scaling"
        )
    return notes


def write(found: Evaluation, out: Path) -> None:
    """The page, the same for machines, and the prediction for every image."""
    page, facts, table = (out / name for name in FILES)
    with writing(out):
        found.save_html(page)
        values = {name: value for name, value in found.facts().items() if name != "files"}
        facts.write_text(to_json(values, indent=1) + "\n", encoding="utf-8")
        found.save_predictions(table)
