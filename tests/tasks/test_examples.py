"""What a report says of classes, confusions and mistakes is so, and says it of any name."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, softmax  # type: ignore[import-untyped]
from sklearn import metrics as sk

from tests.golden import golden
from tests.pages.html import Page, check_page
from tests.pages.values import run_facts
from tests.tasks.drawn import Drawn, random_outputs
from vitrail.core.outputs import Outputs
from vitrail.data.sources import open_data
from vitrail.evaluation.classify import class_metrics
from vitrail.evaluation.mistakes import mistakes
from vitrail.pages.training import training_page
from vitrail.tasks.examples import MAX_BY_CLASS, MAX_MISTAKES, classify_outputs, mistake_examples


def source_of(outputs: Outputs, gone: tuple[int, ...] = ()) -> Drawn:
    return Drawn(outputs.labels, outputs.targets if outputs.multi_label else outputs.truth, gone)


def page_of(outputs: Outputs, gone: tuple[int, ...] = ()) -> str:
    return training_page(run_facts(), classify_outputs(outputs, source_of(outputs, gone)))


def number(text: str) -> float:
    return float("nan") if text == "–" else float(text.strip("<>%")) / 100


def class_rows(read: Page, columns: int = 6) -> dict[str, list[str]]:
    return {row[0]: row for row in read.tables["full"] if len(row) == columns}


def test_the_confusions_are_those_of_sklearn() -> None:
    outputs = random_outputs()
    head, *rows = check_page(page_of(outputs)).tables["cells"]
    assert head[1:] == [row[0] for row in rows] == list(outputs.labels)
    expected = sk.confusion_matrix(outputs.truth, outputs.predicted, labels=range(5))
    found = np.array([[int(cell or 0) for cell in row[1:]] for row in rows])
    assert np.array_equal(found, expected)
    assert expected[-1].sum() == 0, "the last class has no image, and is there nevertheless"


def test_the_table_of_classes_is_sklearns() -> None:
    outputs = random_outputs(classes=8)
    rows = class_rows(check_page(page_of(outputs)))
    assert rows["class"] == ["class", "images", "precision", "recall", "F1", ""]
    truth, guess = outputs.truth, outputs.predicted
    for place, label in enumerate(outputs.labels):
        right = ((truth == place) & (guess == place)).sum()
        assert rows[label][1] == str((truth == place).sum())
        if (truth == place).any():
            assert number(rows[label][3]) == pytest.approx(right / (truth == place).sum(), abs=6e-4)
        else:
            assert rows[label][3] == "–"
        assert number(rows[label][2]) == pytest.approx(right / (guess == place).sum(), abs=6e-4)
    mean = sk.f1_score(truth, guess, average="macro", labels=range(7))
    assert number(rows["mean of classes"][4]) == pytest.approx(mean, abs=6e-4)


def test_the_worst_classes_are_marked_and_first() -> None:
    outputs = random_outputs(classes=12)
    scores = class_metrics(outputs)
    page = page_of(outputs)
    assert page.count('<tr class="marked">') == sum(row.marked for row in scores) == 3
    names = [name for name in class_rows(Page(page)) if name.startswith("class ")]
    worst = sorted((row for row in scores if row.images), key=lambda row: row.f1)
    assert names[: len(worst)] == [row.label for row in worst]
    assert 'class="marked"' not in page_of(random_outputs(skill=50))


def test_the_mistakes_are_the_most_confident_ones() -> None:
    outputs = random_outputs(images=300)
    chances = softmax(outputs.logits.astype(np.float64), axis=1)
    wrong = np.flatnonzero(outputs.truth != outputs.predicted)
    surest = wrong[np.argsort(-chances[wrong, outputs.predicted[wrong]])]
    found = list(mistakes(outputs))
    assert [mistake.index for mistake in found] == (surest + 1000).tolist()
    cards = [text for text in check_page(page_of(outputs)).figures if "pred." in text]
    assert len(cards) <= MAX_MISTAKES + MAX_BY_CLASS
    for card, row in zip(cards[:MAX_MISTAKES], surest, strict=False):
        text = " ".join(card.split())
        assert f"pred. class {outputs.predicted[row]}" in text
        assert f"true class {outputs.truth[row]}" in text
        assert f"/{row + 1000}.png" in text


def test_a_mistake_without_an_image_makes_room_for_the_next() -> None:
    outputs = random_outputs(images=300)
    first, second, third = (mistake.index for mistake in list(mistakes(outputs))[:3])
    shown = mistake_examples(outputs, source_of(outputs, (first, third)))
    assert len(shown) == MAX_MISTAKES
    assert shown[0].name.endswith(f"/{second}.png")
    assert not any(re.search(rf"/({first}|{third})\.png", one.name) for one in shown)
    few = random_outputs(images=40)
    text = check_page(page_of(few, gone=tuple(range(1000, 1040)))).text
    assert "none of these images can be read now" in text


def test_no_mistake_reads_well() -> None:
    for classes in (5, 41):
        text = check_page(page_of(random_outputs(images=180, classes=classes, skill=50))).text
        assert "No mistakes on 180 images" in text
        assert "180 of 180 images are classified correctly" in text


def test_several_labels_have_average_precision_and_no_confusions() -> None:
    outputs = random_outputs(several=True)
    page = page_of(outputs)
    read = check_page(page)
    assert "cells" not in read.tables
    assert "#confusions" not in page
    rows = class_rows(read, 7)
    assert rows["class"][5] == "average precision"
    for place, label in enumerate(outputs.labels[:-1]):
        truth = outputs.targets[:, place]
        expected = sk.average_precision_score(truth, outputs.logits[:, place])
        assert number(rows[label][5]) == pytest.approx(expected, abs=6e-4)
        recall = sk.recall_score(truth, outputs.logits[:, place] > 0)
        assert number(rows[label][3]) == pytest.approx(recall, abs=6e-4)
    assert rows[outputs.labels[-1]][5] == "–", "the last class has no image"


def test_several_labels_rank_mistakes_by_their_surest_wrong_label() -> None:
    outputs = random_outputs(several=True)
    chances = expit(outputs.logits.astype(np.float64))
    wrong = (chances > 0.5) != (outputs.targets > 0.5)
    sureness = np.where(wrong, np.maximum(chances, 1 - chances), 0).max(axis=1)
    found = [mistake.index - 1000 for mistake in mistakes(outputs)]
    assert sorted(found) == np.flatnonzero(wrong.any(axis=1)).tolist()
    assert (np.diff(sureness[found]) <= 0).all()
    first = next(mistakes(outputs))
    said = {f"class {place}" for place in np.flatnonzero(chances[found[0]] > 0.5)}
    assert {label for label, _ in first.predicted} == said


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("images", "classes", "several"),
    [(7, 2, False), (7, 2, True), (300, 41, False), (2000, 1000, False), (200, 200, True)],
)
def test_any_number_of_classes_gives_a_page_of_reasonable_size(
    images: int, classes: int, several: bool
) -> None:
    page = page_of(random_outputs(images, classes, several=several))
    read = check_page(page)
    assert len(page) < 1_000_000
    assert ("cells" in read.tables) == (not several)


def test_the_most_frequent_confusions_are_named() -> None:
    outputs = random_outputs(images=500, classes=40, skill=1)
    matrix = sk.confusion_matrix(outputs.truth, outputs.predicted, labels=range(40))
    off = matrix * (1 - np.eye(40, dtype=int))
    rows = [row for row in check_page(page_of(outputs)).tables["full"] if len(row) == 4][1:]
    assert [int(row[2]) for row in rows] == sorted(off.ravel().tolist(), reverse=True)[:15]
    for truth, said, images, share in rows:
        place, other = outputs.labels.index(truth), outputs.labels.index(said)
        assert matrix[place, other] == int(images)
        assert number(share) == pytest.approx(int(images) / matrix[place].sum(), abs=6e-4)


@pytest.mark.parametrize("several", [False, True])
def test_outputs_that_are_not_finite_are_named(several: bool) -> None:
    outputs = random_outputs(several=several)
    logits = outputs.logits.copy()
    logits[:3] = np.nan
    outputs = replace(outputs, logits=logits)
    assert "For 3 images the output is NaN or infinite" in check_page(page_of(outputs)).text
    chances = [p for found in mistakes(outputs) for _, p in (*found.truth, *found.predicted)]
    assert np.isfinite(chances).all()


def test_nothing_to_judge_by() -> None:
    assert classify_outputs(random_outputs(images=0), Drawn((), None)) is None


def test_real_photos_are_shown() -> None:
    source = open_data(golden("flowers"))["val"]
    outputs = random_outputs(images=len(source), classes=5)
    shown = replace(outputs, indices=np.arange(len(source)), labels=source.labels)
    found = classify_outputs(shown, source)
    assert found is not None
    assert len(found.mistakes) == min(len(outputs.wrong), MAX_MISTAKES) > 0
    assert all(one.uri.startswith("data:image/jpeg") for one in (*found.mistakes, *found.by_class))
    assert len(training_page(run_facts(), found)) < 2_500_000
