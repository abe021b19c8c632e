"""The report of a training run: what it is made of, and how much of it is computed."""

import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np

from vitrail.cli.display import Display, Written, interrupted_at
from vitrail.core.outputs import Outputs
from vitrail.data.doctor import examine
from vitrail.data.findings import Findings
from vitrail.data.source import Splits
from vitrail.evaluation.report import Report
from vitrail.evaluation.report_page import report_page
from vitrail.evaluation.warnings import SplitScore, find_warnings, score_split
from vitrail.inference.outputs import compute_outputs
from vitrail.models.summary import summarise
from vitrail.training.log import Log
from vitrail.training.loop import Outcome, Task
from vitrail.training.prepare import judged_part
from vitrail.weights.atomic import write_file
from vitrail.weights.load import load

# Seconds for examining the data, or a share of the time that the run took if that is more.
EXAMINE_SECONDS, EXAMINE_SHARE = 12.0, 0.05


def write_training_report(
    task: Task, splits: Splits, out: Path, outcome: Outcome, display: Display, spent: float
) -> Written:
    """OUT/report.html: curves, what the best weights get wrong, and what is wrong with the data. Of
    a run that was interrupted only what is known already: nothing is computed for it."""
    outputs = best_outputs(task, splits, out, outcome)
    test, findings = None, None
    if not outcome.stopped:
        watch = display.watch
        test = judge_test(task, splits, out, outputs.split, watch("judging the test images"))
        seconds = max(EXAMINE_SECONDS, spent * EXAMINE_SHARE)
        findings = examine(
            splits, task.recipe.data, on_progress=watch("examining the data"), seconds=seconds
        )
        # a short run has not met every image
        outcome.run_state.broken |= {bad.picture.name: bad.reason for bad in findings.broken}
    warned = find_warnings(outputs, pretrained=task.recipe.start is not None)
    report = Report(
        **{field.name: getattr(outputs, field.name) for field in fields(Outputs)},
        source=judged_part(splits, task.recipe.data)[1],
        title=out.name,
        recipe=asdict(task.recipe),
        facts={
            "best at step": f"{outcome.run_state.best_step:,} of {outcome.total:,}",
            "images per second": f"{outcome.images_per_second:,.0f}",
            "written": time.strftime("%Y-%m-%d %H:%M"),
        },
        lines=Log.read(out),
        findings=findings,
        model=summarise(task.objective.model),
        test=test,
        warnings=warned,
        stopped=stopped_at(outcome, outputs),
        best_step=outcome.run_state.best_step,
    )
    write_page(out, report_page(report))
    return Written([*warned, *sampled(findings)], None if test is None else asdict(test))


def write_page(out: Path, page: str) -> None:
    def fill(path: Path) -> None:
        path.write_text(page, encoding="utf-8")

    write_file(out / "report.html", fill, overwrite=True)


def best_outputs(task: Task, splits: Splits, out: Path, outcome: Outcome) -> Outputs:
    """What the best weights say: as they were judged when they became the best, or anew. Of a run
    that was interrupted before they were, nothing."""
    part, source = judged_part(splits, task.recipe.data)
    kept = outcome.answers
    if kept is None and not outcome.stopped:
        found = compute_outputs(load(out / "best"), source, name=task.recipe.data, split=part)
        return replace(found, broken=outcome.run_state.broken)
    empty = np.empty((0, len(source.labels)), dtype=np.float32)
    return Outputs(
        labels=source.labels,
        logits=empty if kept is None else kept.logits,
        targets=empty if kept is None else kept.targets,
        indices=np.empty(0, dtype=np.int64) if kept is None else kept.indices,
        multi_label=source.targets is not None and source.targets.ndim == 2,
        split=part,
        broken=outcome.run_state.broken,
    )


def judge_test(
    task: Task, splits: Splits, out: Path, judged: str, watch: Callable[[int, int], None]
) -> SplitScore | None:
    """The score on the test part, which had no say in anything; None where there is none."""
    source = splits.parts.get("test")
    if judged == "test" or source is None or source.targets is None or not len(source):
        return None
    model = load(out / "best")
    return score_split(compute_outputs(model, source, name=task.recipe.data, on_progress=watch))


def stopped_at(outcome: Outcome, outputs: Outputs) -> str | None:
    at = interrupted_at(outcome)
    return at if at is None or outputs.images else f"{at}. No weights were evaluated before that."


def sampled(findings: Findings | None) -> list[str]:
    return [findings.sample] if findings is not None and findings.sample else []
