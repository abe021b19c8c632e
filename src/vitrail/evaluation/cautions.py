"""What a person must know before trusting a score: nothing was learnt, few classes are predicted,
or too few images judge."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest  # type: ignore[import-untyped]

from vitrail.data.findings import count
from vitrail.evaluation.intervals import accuracy_interval, measure
from vitrail.evaluation.judged import Judged

FEW_IMAGES = 50  # below, an accuracy of one half is uncertain by more than 13 points either way
CHANCE = 0.05  # a result that luck gives more often than that is no better than luck
MOST_NAMED = 5  # classes
LONGER = "train longer or on more images"


@dataclass(frozen=True)
class Score:
    """The number that says most about a part, and its 95 % interval."""

    part: str
    name: str
    value: float
    interval: tuple[float, float]
    images: int


def score_of(judged: Judged) -> Score | None:
    """None where there is nothing to compare with."""
    scores = judged.scores
    if scores is None:
        return None
    if judged.multi_label:
        found = measure(judged.answers, judged.targets, multi_label=True, only=scores.key)
        interval = found.intervals.get(scores.key, (0.0, 1.0))
    else:
        interval = accuracy_interval(judged.images - len(judged.wrong), judged.images)
    return Score(judged.part, scores.key, scores.best, interval, judged.images)


def cautions(judged: Judged, *, pretrained: bool = False) -> list[str]:
    """Sentences, the gravest first; none where a score means what it seems to. A model that is
    `pretrained` began from a checkpoint."""
    if judged.scores is None:
        return []
    found = []
    advice = LONGER if pretrained else f"{LONGER}, or start from a checkpoint with --from"
    if len(judged.labels) == 1:
        found.append(
            f"the data has one class, {judged.labels[0]!r}: a model of one class is always right, "
            "whatever it is shown; add images of other classes"
        )
    elif judged.multi_label:
        found += no_better_than_prevalence(judged, advice)
    else:
        found += no_better_than_chance(judged, advice)
        found += few_classes(judged)
    if judged.images < FEW_IMAGES:
        kind = "validation image" if judged.part == "val" else f"image of {judged.part}"
        found.append(
            f"the model was judged on only {count(judged.images, kind)}, so its scores are "
            "uncertain; use more (--val-share, or a val folder)"
        )
    return found


def no_better_than_chance(judged: Judged, advice: str) -> list[str]:
    """Compared with always answering the most frequent class."""
    right = judged.images - len(judged.wrong)
    counts = np.bincount(judged.truth, minlength=len(judged.labels))
    most = int(counts.argmax())
    share = counts[most] / judged.images
    if share == 1 or binomtest(right, judged.images, share, alternative="greater").pvalue <= CHANCE:
        return []
    return [
        f"accuracy {right / judged.images:.1%} is no better than chance: always answering "
        f"{judged.labels[most]!r} gives {share:.1%}; {advice}"
    ]


def few_classes(judged: Judged) -> list[str]:
    """Where half of the classes or fewer are ever predicted."""
    present = len(np.unique(judged.truth))
    said = np.unique(judged.guess)
    if present < 2 or len(said) > present / 2:
        return []
    names = ", ".join(repr(judged.labels[place]) for place in said[:MOST_NAMED])
    more = f" and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    verb = "is" if len(said) == 1 else "are"
    return [f"only {len(said)} of {present} classes {verb} ever predicted: {names}{more}"]


def no_better_than_prevalence(judged: Judged, advice: str) -> list[str]:
    """The mean average precision of random answers is the mean share of images with a label."""
    present = judged.targets.any(axis=0)
    chance = float(judged.targets[:, present].mean())
    score = score_of(judged)
    if score is None or score.interval[0] > chance:
        return []
    return [
        f"mean average precision {score.value:.1%} is no better than chance, which gives "
        f"{chance:.1%}; {advice}"
    ]
