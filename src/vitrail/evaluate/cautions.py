"""What a person must know before trusting a score: nothing was learnt, few classes are predicted,
or too few images judge."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest  # type: ignore[import-untyped]

from vitrail.evaluate.intervals import accuracy_interval, measure
from vitrail.evaluate.judged import Judged

FEW_IMAGES = 50  # below, an accuracy of one half is uncertain by more than 13 points either way
CHANCE = 0.05  # a result that luck gives more often than that is no better than luck
MOST_NAMED = 5  # classes


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
    if judged.several:
        found = measure(judged.answers, judged.targets, several=True, only=scores.key)
        interval = found.intervals.get(scores.key, (0.0, 1.0))
    else:
        interval = accuracy_interval(judged.images - len(judged.wrong), judged.images)
    return Score(judged.part, scores.key, scores.best, interval, judged.images)


def cautions(judged: Judged) -> list[str]:
    """Sentences, the gravest first; none where a score means what it seems to."""
    if judged.scores is None:
        return []
    found = []
    if len(judged.labels) == 1:
        found.append(
            f"the data has one class, {judged.labels[0]!r}: a model of one class is always right, "
            "whatever it is shown; add images of other classes"
        )
    elif judged.several:
        found += no_better_than_prevalence(judged)
    else:
        found += no_better_than_chance(judged)
        found += few_classes(judged)
    if judged.images < FEW_IMAGES:
        found.append(
            f"only {judged.images} images of {judged.part} judge the model: their scores are "
            "uncertain; more of them (--val-share, or a val folder) tell more"
        )
    return found


def no_better_than_chance(judged: Judged) -> list[str]:
    """Compared with always answering the most frequent class."""
    right = judged.images - len(judged.wrong)
    counts = np.bincount(judged.truth, minlength=len(judged.labels))
    most = int(counts.argmax())
    share = counts[most] / judged.images
    if share == 1 or binomtest(right, judged.images, share, alternative="greater").pvalue <= CHANCE:
        return []
    return [
        f"accuracy {right / judged.images:.1%} is no better than chance: always answering "
        f"{judged.labels[most]!r} gives {share:.1%}; train longer, on more images, or begin from a "
        "checkpoint with --from"
    ]


def few_classes(judged: Judged) -> list[str]:
    """Where half of the classes or fewer are ever predicted."""
    present = len(np.unique(judged.truth))
    said = np.unique(judged.guess)
    if present < 2 or len(said) > present / 2:
        return []
    names = ", ".join(repr(judged.labels[place]) for place in said[:MOST_NAMED])
    more = f" and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    return [f"only {len(said)} of {present} classes are ever predicted: {names}{more}"]


def no_better_than_prevalence(judged: Judged) -> list[str]:
    """The mean average precision of random answers is the mean share of images with a label."""
    present = judged.targets.any(axis=0)
    chance = float(judged.targets[:, present].mean())
    score = score_of(judged)
    if score is None or score.interval[0] > chance:
        return []
    return [
        f"mean average precision {score.value:.1%} is no better than chance, which gives "
        f"{chance:.1%}; train longer, on more images, or begin from a checkpoint with --from"
    ]
