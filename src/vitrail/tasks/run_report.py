"""The report of a run: what it is made of, and how much of it is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.core.outputs import Outputs
from vitrail.data.doctor import examine
from vitrail.data.findings import Findings
from vitrail.data.loader import Stream
from vitrail.data.source import Source, Splits
from vitrail.evaluation.warnings import SplitScore, find_warnings, score_split
from vitrail.inference.outputs import compute_outputs
from vitrail.models.summary import summarise
from vitrail.pages.data_report import data_body
from vitrail.pages.thumbnails import data_uri, encoded
from vitrail.pages.training import HeldOutScore, RunFacts, pretraining_page, training_page
from vitrail.tasks.doctor import page_images
from vitrail.tasks.examples import classify_outputs
from vitrail.tasks.progress import OnProgress, steps_of
from vitrail.tasks.splits import thin_out
from vitrail.training.finder import read_curve
from vitrail.training.log import Log
from vitrail.training.prepare import validation_split
from vitrail.training.reconstructions import as_pixels, sheets_in
from vitrail.training.task import Outcome, Task
from vitrail.training.validate import MAX_KEPT
from vitrail.weights.atomic import write_file
from vitrail.weights.load import load

# Seconds for examining the data, or a share of the time that the run took if that is more.
EXAMINE_SECONDS, EXAMINE_SHARE = 12.0, 0.05
AUGMENTED = 16  # images in a report


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended or was stopped, its duration in seconds, and where it computed."""

    task: Task
    splits: Splits
    out: Path
    outcome: Outcome
    seconds: float
    device: torch.device


@dataclass(frozen=True)
class Written:
    """What in a report a person must not miss, and the scores of the test split where the data has
    one."""

    notes: Sequence[str] = ()
    test: Mapping[str, Any] | None = None


def write_report(ended: EndedRun, on_progress: OnProgress) -> Written:
    """OUT/report.html."""
    if ended.task.recipe.has_labels:
        return write_training_report(ended, on_progress)
    return write_pretraining_report(ended)


def write_training_report(ended: EndedRun, on_progress: OnProgress) -> Written:
    """Curves, what the best weights get wrong, and what is wrong with the data. Of a run that was
    interrupted only what is known already: nothing is computed for it."""
    task, outcome, out = ended.task, ended.outcome, ended.out
    outputs = best_outputs(ended)
    test, findings = None, None
    if not outcome.stopped:
        test = evaluate_test(ended, outputs.split, on_progress)
    if not outcome.stopped and task.recipe.monitor.examine_data:
        seconds = max(EXAMINE_SECONDS, ended.seconds * EXAMINE_SHARE)
        steps = steps_of(on_progress, "examining the data")
        findings = examine(ended.splits, task.recipe.data, on_progress=steps, seconds=seconds)
        # a short run has not met every image
        outcome.run_state.broken |= {bad.image.name: bad.reason for bad in findings.broken}
    warned = find_warnings(outputs, pretrained=task.recipe.start is not None)
    page = training_page(
        run_facts(ended, warned, stopped_at(outcome, outputs)),
        classify_outputs(outputs, validation_split(ended.splits, task.recipe.data)[1]),
        test=None if test is None else HeldOutScore(**asdict(test)),
        data_report=None
        if findings is None
        else data_body(findings.facts(), **page_images(findings)),
    )
    write_page(out, page)
    notes = [*warned, *thinned(ended, outputs), *sampled(findings)]
    return Written(notes, None if test is None else asdict(test))


def write_pretraining_report(ended: EndedRun) -> Written:
    """The curve of the loss, and what was hidden and predicted at each evaluation."""
    state = ended.outcome.run_state
    warned = [] if state.warning is None else [state.warning]
    sheets = {
        step: encoded(path.read_bytes(), "png") for step, path in sheets_in(ended.out).items()
    }
    run = run_facts(ended, warned, interrupted_at(ended.outcome))
    write_page(ended.out, pretraining_page(run, sheets=sheets, rows=state.shown))
    return Written()


def run_facts(ended: EndedRun, warned: Sequence[str], stopped: str | None) -> RunFacts:
    """What the reports of all runs begin with."""
    task, outcome, out = ended.task, ended.outcome, ended.out
    curve = read_curve(out)
    return RunFacts(
        title=out.name,
        model=summarise(task.objective.model),
        recipe=asdict(task.recipe),
        facts={
            "objective": task.recipe.goal.objective,
            "best at step": f"{outcome.run_state.best_step:,} of {outcome.total:,}",
            "images per second": f"{outcome.images_per_second:,.0f}",
            "written": time.strftime("%Y-%m-%d %H:%M"),
        },
        lines=Log.read(out),
        broken=outcome.run_state.broken,
        best_step=outcome.run_state.best_step,
        warnings=warned,
        stopped=stopped,
        lr_finder=None if curve is None else asdict(curve),
        augmented=() if outcome.stopped else augmented_images(task),
    )


def augmented_images(task: Task) -> list[str]:
    """Some training images as the model reads them in the first step (data URIs)."""
    how = task.objective.model.passport.preprocessing
    stream = Stream(
        source=task.train,
        how=how,
        augmentation=task.recipe.augmentation,
        batch_size=min(task.recipe.batch_size, AUGMENTED, len(task.train)),
        seed=task.recipe.seed,
        native=task.objective.native,
    )
    batch = next(stream.batches(0, 1))
    return [data_uri(as_pixels(image[None], how)[0]) for image in batch.images]


def write_page(out: Path, page: str) -> None:
    def fill(path: Path) -> None:
        path.write_text(page, encoding="utf-8")

    write_file(out / "report.html", fill, overwrite=True)


def best_outputs(ended: EndedRun) -> Outputs:
    """The outputs of the best weights: as they were when these became the best, or computed again.
    Of a run that was interrupted before they were, none."""
    data, outcome = ended.task.recipe.data, ended.outcome
    part, source = validation_split(ended.splits, data)
    outputs = outcome.outputs
    if outputs is None and not outcome.stopped:
        source = thin_out(source, max(MAX_KEPT // max(len(source.labels), 1), 1))
        found = compute_best(ended, source, part)
        return replace(found, broken=outcome.run_state.broken)
    empty = np.empty((0, len(source.labels)), dtype=np.float32)
    return Outputs(
        labels=source.labels,
        logits=empty if outputs is None else outputs.logits,
        targets=empty if outputs is None else outputs.targets,
        indices=np.empty(0, dtype=np.int64) if outputs is None else outputs.indices,
        multi_label=source.targets is not None and source.targets.ndim == 2,
        split=part,
        broken=outcome.run_state.broken,
    )


def compute_best(
    ended: EndedRun,
    source: Source,
    split: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outputs:
    """The outputs of the best weights, computed where the run was and read as it read images."""
    recipe, native = ended.task.recipe, ended.task.objective.native
    model = load(ended.out / "best", device=ended.device)
    return compute_outputs(
        model,
        source,
        name=recipe.data,
        split=split,
        workers=recipe.workers,
        native=native,
        on_progress=on_progress,
    )


def thinned(ended: EndedRun, outputs: Outputs) -> list[str]:
    """That a report is of some images alone, where the outputs of all would fill the memory."""
    every = len(validation_split(ended.splits, ended.task.recipe.data)[1])
    if every * len(outputs.labels) <= MAX_KEPT or not outputs.images:
        return []
    return [
        f"the report shows {outputs.images:,} of {every:,} validation images, spread over the "
        "split; the scores of the curves are of all"
    ]


def evaluate_test(ended: EndedRun, chosen_on: str, on_progress: OnProgress) -> SplitScore | None:
    """The score on the test split, which had no say in anything; None where there is none."""
    source = ended.splits.parts.get("test")
    if chosen_on == "test" or source is None or source.targets is None or not len(source):
        return None
    steps = steps_of(on_progress, "evaluating the test images")
    return score_split(compute_best(ended, source, "test", steps))


def interrupted_at(outcome: Outcome) -> str | None:
    """What the report of a run that was interrupted begins with."""
    if not outcome.stopped:
        return None
    return f"interrupted at step {outcome.step:,} of {outcome.total:,}; resume continues from there"


def stopped_at(outcome: Outcome, outputs: Outputs) -> str | None:
    at = interrupted_at(outcome)
    return at if at is None or outputs.images else f"{at}. No weights were evaluated before that."


def sampled(findings: Findings | None) -> list[str]:
    return [findings.sample] if findings is not None and findings.sample else []
