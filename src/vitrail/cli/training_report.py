"""The report of a training run: what it is made of, and how much of it is computed."""

import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np

from vitrail.cli.display import Display, Written, interrupted_at
from vitrail.data.doctor import examine
from vitrail.data.findings import Findings
from vitrail.data.source import Splits
from vitrail.evaluation.answers import Answers, answers_of
from vitrail.evaluation.cautions import Score, cautions, score_of
from vitrail.evaluation.judged import Judged, judged_answers
from vitrail.evaluation.report import Report
from vitrail.evaluation.report_page import report_page
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
    judged = judge_best(task, splits, out, outcome)
    test, findings = None, None
    if not outcome.stopped:
        watch = display.watch
        test = judge_test(task, splits, out, judged.part, watch("judging the test images"))
        seconds = max(EXAMINE_SECONDS, spent * EXAMINE_SHARE)
        findings = examine(
            splits, task.recipe.data, on_progress=watch("examining the data"), seconds=seconds
        )
        # a short run has not met every image
        outcome.run_state.broken |= {bad.picture.name: bad.reason for bad in findings.broken}
    warned = cautions(judged, pretrained=task.recipe.start is not None)
    report = Report(
        **{field.name: getattr(judged, field.name) for field in fields(Judged)},
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
        cautions=warned,
        stopped=stopped_at(outcome, judged),
        best_step=outcome.run_state.best_step,
    )
    write_page(out, report_page(report))
    return Written([*warned, *sampled(findings)], None if test is None else asdict(test))


def write_page(out: Path, page: str) -> None:
    def fill(path: Path) -> None:
        path.write_text(page, encoding="utf-8")

    write_file(out / "report.html", fill, overwrite=True)


def judge_best(task: Task, splits: Splits, out: Path, outcome: Outcome) -> Judged:
    """What the best weights say: as they were judged when they became the best, or anew. Of a run
    that was interrupted before they were, nothing."""
    part, source = judged_part(splits, task.recipe.data)
    kept = outcome.answers
    if kept is not None:
        answers = Answers(kept.logits, kept.targets, kept.indices, {})
    elif outcome.stopped:
        nothing = np.empty((0, len(source.labels)), dtype=np.float32)
        answers = Answers(nothing, nothing, np.empty(0, dtype=np.int64), {})
    else:
        answers = answers_of(load(out / "best"), source, name=task.recipe.data)
    return replace(judged_answers(answers, source, part), broken=outcome.run_state.broken)


def judge_test(
    task: Task, splits: Splits, out: Path, judged: str, watch: Callable[[int, int], None]
) -> Score | None:
    """The score on the test part, which had no say in anything; None where there is none."""
    source = splits.parts.get("test")
    if judged == "test" or source is None or source.targets is None or not len(source):
        return None
    answers = answers_of(load(out / "best"), source, name=task.recipe.data, on_progress=watch)
    return score_of(judged_answers(answers, source, "test"))


def stopped_at(outcome: Outcome, judged: Judged) -> str | None:
    at = interrupted_at(outcome)
    return at if at is None or judged.images else f"{at}. No weights were evaluated before that."


def sampled(findings: Findings | None) -> list[str]:
    return [findings.sample] if findings is not None and findings.sample else []
