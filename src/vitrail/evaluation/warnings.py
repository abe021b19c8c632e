"""Warnings about a score: no better than chance, few classes predicted, or too few images."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest  # type: ignore[import-untyped]

from vitrail.core.outputs import Outputs
from vitrail.evaluation.classify import score_outputs
from vitrail.evaluation.intervals import wilson_interval
from vitrail.evaluation.metrics import compute_metrics

MIN_IMAGES = 50  # below, an accuracy of one half is uncertain by more than 13 points either way
MAX_P = 0.05  # a result with a higher p-value is no better than chance
MAX_NAMED = 5  # classes
LONGER = "train longer or on more images"


@dataclass(frozen=True)
class SplitScore:
    """The metric that says most about a split, and its 95 % interval."""

    split: str
    name: str
    value: float
    interval: tuple[float, float]
    images: int


def score_split(outputs: Outputs) -> SplitScore | None:
    """None where no image has a label."""
    scores = score_outputs(outputs)
    if scores is None:
        return None
    if outputs.multi_label:
        found = compute_metrics(
            outputs.finite_logits, outputs.targets, multi_label=True, only=scores.key
        )
        interval = found.intervals.get(scores.key, (0.0, 1.0))
    else:
        interval = wilson_interval(outputs.images - len(outputs.wrong), outputs.images)
    return SplitScore(outputs.split, scores.key, scores.best, interval, outputs.images)


def find_warnings(outputs: Outputs, *, pretrained: bool = False) -> list[str]:
    """Sentences, the gravest first; none where a score means what it seems to. A model that is
    `pretrained` began from a checkpoint."""
    if not outputs.targets.any():
        return []
    found = []
    advice = LONGER if pretrained else f"{LONGER}, or start from a checkpoint"
    if len(outputs.labels) == 1:
        found.append(
            f"the data has one class, {outputs.labels[0]!r}: a model of one class is always right; "
            "add images of other classes"
        )
    elif outputs.multi_label:
        found += no_better_than_prevalence(outputs, advice)
    else:
        found += no_better_than_chance(outputs, advice)
        found += few_classes(outputs)
    if outputs.images < MIN_IMAGES:
        kind = "validation image" if outputs.split == "val" else f"{outputs.split} image"
        found.append(
            f"the model was evaluated on only {outputs.images} {kind}"
            f"{'' if outputs.images == 1 else 's'}, so its scores are uncertain; use more "
            "(a larger val_share, or a val folder)"
        )
    return found


def no_better_than_chance(outputs: Outputs, advice: str) -> list[str]:
    """Compared with always predicting the most frequent class."""
    right = outputs.images - len(outputs.wrong)
    counts = np.bincount(outputs.truth, minlength=len(outputs.labels))
    most = int(counts.argmax())
    share = counts[most] / outputs.images
    if share == 1 or binomtest(right, outputs.images, share, alternative="greater").pvalue <= MAX_P:
        return []
    accuracy = right / outputs.images
    verdict = "is no better than" if accuracy <= share else "may still be"
    return [
        f"accuracy {accuracy:.1%} {verdict} chance: always predicting "
        f"{outputs.labels[most]!r} gives {share:.1%}; {advice}"
    ]


def few_classes(outputs: Outputs) -> list[str]:
    """Where half of the classes or fewer are ever predicted."""
    present = len(np.unique(outputs.truth))
    predicted = np.unique(outputs.predicted)
    count = len(predicted)
    if present < 2 or count > present / 2:
        return []
    names = ", ".join(repr(outputs.labels[place]) for place in predicted[:MAX_NAMED])
    more = f" and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
    verb = "is" if count == 1 else "are"
    return [f"only {count} of {present} classes {verb} ever predicted: {names}{more}"]


def no_better_than_prevalence(outputs: Outputs, advice: str) -> list[str]:
    """The mean average precision of random outputs is the mean share of images with a label."""
    present = outputs.targets.any(axis=0)
    chance = float(outputs.targets[:, present].mean())
    score = score_split(outputs)
    if score is None or score.interval[0] > chance:
        return []
    return [
        f"mean average precision {score.value:.1%} is no better than chance, which gives "
        f"{chance:.1%}; {advice}"
    ]
