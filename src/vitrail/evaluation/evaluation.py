"""A whole evaluation: what is measured, and the same for machines."""

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.core.passport import Preprocessing
from vitrail.data.findings import count
from vitrail.evaluation.calibration import Reliability, Tempered, confidences, reliability, temper
from vitrail.evaluation.corruptions import CORRUPTIONS, DIFFERS
from vitrail.evaluation.intervals import LEVEL, Measured, measure
from vitrail.evaluation.judged import Judged, class_scores
from vitrail.evaluation.mistakes import answer_of
from vitrail.evaluation.robustness import Robustness
from vitrail.evaluation.sizes import Sized

DRAWN = (
    "Accuracy, top5 and exact: Wilson's interval; others: bootstrap, images drawn with replacement "
    "from all classes together"
)


@dataclass(frozen=True)
class Judgement:
    """The headline numbers with their intervals, and how well the answers are calibrated."""

    measured: Measured
    reliability: Reliability
    tempered: Tempered | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model says of the images of one part of a data set, and what that is worth. `notes`
    tell what was assumed."""

    title: str
    model: str
    data: str
    seed: int
    preprocessing: Preprocessing
    judged: Judged
    judgement: Judgement
    robustness: Robustness | None = None
    resolutions: Sequence[Sized] = ()
    patch_sizes: Sequence[Sized] = ()
    notes: Sequence[str] = ()

    @property
    def images(self) -> int:
        return self.judged.images

    @property
    def metrics(self) -> dict[str, float]:
        """The headline numbers: accuracy and others, or mean average precision."""
        return dict(self.judgement.measured.values)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Of 95 % confidence."""
        return dict(self.judgement.measured.intervals)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return plain(self)

    def save_html(self, path: str | Path) -> None:
        """Write the page: metrics, calibration, classes, confusions, mistakes."""
        Path(path).write_text(self._repr_html_(), encoding="utf-8")

    def _repr_html_(self) -> str:
        from vitrail.evaluation.evaluation_page import evaluation_page

        return evaluation_page(self)

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"Evaluation({self.model} on {self.data}, {self.images} images: {metrics})"


def judge(judged: Judged, *, held_out: Judged | None = None, seed: int = 0) -> Judgement:
    """Everything that follows from logits and labels; `held_out` is another part, which chooses the
    temperature."""
    answers, targets, multi_label = judged.answers, judged.targets, judged.multi_label
    confidence, right = confidences(answers, targets, multi_label=multi_label)
    other = None
    if held_out is not None:
        other = (held_out.part, held_out.answers, held_out.targets)
    return Judgement(
        measure(answers, targets, multi_label=multi_label, seed=seed),
        reliability(confidence.reshape(-1), right.reshape(-1)),
        temper(answers, targets, multi_label=multi_label, held_out=other, seed=seed),
    )


def all_notes(found: Evaluation) -> list[str]:
    """What was assumed, and what went wrong."""
    lost = found.judged.not_numbers
    strange = f"for {count(lost, 'image')} the model's answer is not a number: it counts as zeros"
    return [*found.notes, *([strange] if lost else [])]


def plain(found: Evaluation) -> dict[str, Any]:
    """The evaluation as plain JSON values; what cannot be computed is null."""
    judged, judgement = found.judged, found.judgement
    measured = judgement.measured
    facts = {
        "model": found.model,
        "data": found.data,
        "part": judged.part,
        "images": judged.images,
        "seed": found.seed,
        "preprocessing": asdict(found.preprocessing),
        **measured.values,
        "intervals": {name: list(ends) for name, ends in measured.intervals.items()},
        "intervals_are": {"level": LEVEL, "resamples": measured.resamples, "how": DRAWN},
        "reliability": plain_bins(judgement.reliability),
        "temperature": plain_tempered(judgement.tempered),
        "classes": [
            {name: value for name, value in asdict(row).items() if name != "marked"}
            for row in class_scores(judged)
        ],
        "confusion": None if judged.multi_label else judged.confusion.tolist(),
        "corruptions": plain_robustness(found.robustness),
        "resolutions": [asdict(row) for row in found.resolutions],
        "patch_sizes": [asdict(row) for row in found.patch_sizes],
        "not_numbers": judged.not_numbers,
        "notes": all_notes(found),
        "broken": dict(judged.broken),
    }
    return without_nan(facts)


def plain_bins(bins: Reliability) -> dict[str, Any]:
    return {
        "answers": bins.answers.tolist(),
        "confidence": bins.confidence.tolist(),
        "right": bins.right.tolist(),
    }


def plain_tempered(tempered: Tempered | None) -> dict[str, Any] | None:
    if tempered is None:
        return None
    return {
        "temperature": tempered.temperature,
        "fitted_on": tempered.fitted_on,
        "at_edge": tempered.at_edge,
        "ece": tempered.reliability.error,
        "nll": tempered.loss,
        "brier": tempered.brier,
        "reliability": plain_bins(tempered.reliability),
    }


def plain_robustness(found: Robustness | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "metric": found.metric,
        "images": found.images,
        "constants_for": found.side,
        "clean": found.clean,
        "by_severity": dict(zip(CORRUPTIONS, found.values.tolist(), strict=True)),
        "mean": found.mean,
        "interval_of_mean": found.interval,
        "error_relative_to_clean": found.relative_error,
        "differs": list(DIFFERS),
    }


def without_nan(value: Any) -> Any:
    """
    >>> without_nan({"a": [float("nan"), 1.0]})
    {'a': [None, 1.0]}
    """
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: without_nan(one) for name, one in value.items()}
        case list() | tuple():
            return [without_nan(one) for one in value]
    return value


def write_predictions(judged: Judged, path: Path) -> None:
    """A line for each image: its name, its truth, what was said, how probable each is. Several
    labels are joined by |, and so are their probabilities; an image that cannot be read has a
    reason instead."""
    # a name that is not valid Unicode must never keep the file from being written
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["image", "truth", "said", "right", "probability", "truth_probability", "problem"]
        )
        wrong = np.zeros(judged.images, dtype=np.bool_)
        wrong[judged.wrong] = True
        for row in range(judged.images):
            one = answer_of(judged, row)
            cells = [
                "|".join(label for label, _ in one.truth),
                "|".join(label for label, _ in one.said),
                "no" if wrong[row] else "yes",
                "|".join(f"{chance:.6f}" for _, chance in one.said),
                "|".join(f"{chance:.6f}" for _, chance in one.truth),
            ]
            table.writerow([judged.source.name(one.index), *cells, ""])
        for name, reason in judged.broken.items():
            table.writerow([name, "", "", "", "", "", reason])
