"""Images for a page about what a classifier gets right and wrong."""

from itertools import islice
from typing import Any

from vitrail.core.outputs import Outputs
from vitrail.data.bands import viewable
from vitrail.data.images import BadImage
from vitrail.data.source import Source
from vitrail.evaluation.classify import class_metrics, confusion_matrix, score_outputs
from vitrail.evaluation.intervals import wilson_interval
from vitrail.evaluation.mistakes import LabelledPrediction, Order, labelled_prediction, mistakes
from vitrail.pages.classification import Example, pick_rows
from vitrail.pages.thumbnails import SIDE, data_uri
from vitrail.pages.training import Classified

MAX_MISTAKES, MAX_BY_CLASS = 24, 120
MAX_OF_MANY = 400  # images of many classes, which are smaller


def thumbnail(source: Source, index: int, side: int = SIDE) -> str | None:
    """A small image as a data URI; None where it cannot be read."""
    try:
        raw = source.read(index)
        shown = viewable(raw, source.name(index), at_least=(side, side))
    except (BadImage, OSError):
        return None
    return data_uri(shown, side)


def mistake_examples(
    outputs: Outputs, source: Source, order: Order = "confidence", most: int = MAX_MISTAKES
) -> list[Example]:
    """The first mistakes whose image can be read."""
    tried = islice(mistakes(outputs, order), 10 * most)
    found = (_example(outputs, source, one) for one in tried)
    return list(islice((example for example in found if example is not None), most))


def class_examples(outputs: Outputs, source: Source) -> list[Example]:
    """Some images of each confusion and of each class, more and smaller ones of many classes; none
    where an image may have several labels."""
    if outputs.multi_label or not outputs.images:
        return []
    most = min(max(len(outputs.labels), MAX_BY_CLASS), MAX_OF_MANY)
    side = 128 if most == MAX_BY_CLASS else 64
    examples = []
    for row in pick_rows(outputs.truth, outputs.predicted, most):
        place = int(outputs.truth[row]), int(outputs.predicted[row])
        one = _example(outputs, source, labelled_prediction(outputs, row), place, side)
        examples += [] if one is None else [one]
    return examples


def class_facts(outputs: Outputs) -> list[dict[str, Any]]:
    """A row for each class, the worst of them marked."""
    return [dict(vars(row)) for row in class_metrics(outputs)]


def classify_outputs(outputs: Outputs, source: Source) -> Classified | None:
    """What the report of a training run shows; None where there is nothing to compare with."""
    scores = score_outputs(outputs)
    if scores is None:
        return None
    right = outputs.images - len(outputs.wrong)
    return Classified(
        split=outputs.split,
        images=outputs.images,
        wrong=len(outputs.wrong),
        multi_label=outputs.multi_label,
        scores=scores.values,
        interval=None if outputs.multi_label else wilson_interval(right, outputs.images),
        classes=class_facts(outputs),
        confusion=None if outputs.multi_label else confusion_matrix(outputs),
        mistakes=mistake_examples(outputs, source),
        by_class=class_examples(outputs, source),
        nonfinite=outputs.nonfinite,
    )


def _example(
    outputs: Outputs,
    source: Source,
    one: LabelledPrediction,
    place: tuple[int | None, int | None] = (None, None),
    side: int = SIDE,
) -> Example | None:
    uri = thumbnail(source, one.index, side)
    if uri is None:
        return None
    return Example(uri, source.name(one.index), one.truth, one.predicted, *place)
