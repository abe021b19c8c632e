"""The page, the JSON and the table of an evaluation say what is so, and say it of any name."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from tests.evaluation.test_report import NASTY, SAFE, Drawn, Page
from vitrail.core.passport import Preprocessing
from vitrail.evaluation.corruptions import CORRUPTIONS, DIFFERS
from vitrail.evaluation.curves import percent
from vitrail.evaluation.evaluation import Evaluation, judge, plain, write_predictions
from vitrail.evaluation.evaluation_page import MOST_MISTAKES, evaluation_page
from vitrail.evaluation.judged import Judged
from vitrail.evaluation.mistakes import mistakes
from vitrail.evaluation.robustness import Robustness
from vitrail.evaluation.sizes import Sized


def judged_of(images: int = 200, classes: int = 8, *, multi_label: bool = False) -> Judged:
    random = np.random.default_rng(images)
    labels = (*(f"class {number}" for number in range(classes - 1)), NASTY)
    truth = random.integers(0, classes, images)
    targets = np.eye(classes, dtype=np.float32)[truth]
    if multi_label:
        targets = np.maximum(targets, random.random(targets.shape) < 0.2).astype(np.float32)
    logits = (random.normal(size=targets.shape) + 2 * targets - multi_label).astype(np.float32)
    return Judged(
        labels=labels,
        logits=logits,
        targets=targets,
        indices=np.arange(images) + 30,
        source=Drawn(labels, targets if multi_label else truth),
        part="test",
        broken={f"photos/{NASTY}.png": "the file is empty"},
    )


def make(judged: Judged, **changes: Any) -> Evaluation:
    values: dict[str, Any] = {
        "title": "pets",
        "model": "runs/pets/best",
        "data": f"photos/{NASTY}",
        "seed": 0,
        "preprocessing": Preprocessing(size=(96, 64), resize=(108, 72), mean=(0.1, 0.2, 0.3)),
        "judged": judged,
        "judgement": judge(judged, seed=0),
    }
    return Evaluation(**values | changes)


EXAMPLES = np.arange(15, dtype=np.uint8)[:, None, None, None] * np.ones((100, 90, 3), np.uint8)
ROBUST = Robustness("accuracy", 0.9, np.linspace(0.9, 0.16, 75).reshape(15, 5), 50, 224, EXAMPLES)
SIZES = (
    Sized(size="112", metric="accuracy", value=0.5, interval=(0.4, 0.6), changes=("resized",)),
    Sized(size="113", problem="image side 113 is not a multiple of patch 16"),
)


def test_the_page_shows_every_number_with_its_interval() -> None:
    found = make(judged_of())
    page = Page(evaluation_page(found))
    measured = found.judgement.measured
    for name in ("accuracy", "top5", "f1", "ece"):
        low, high = measured.intervals[name]
        assert f"{percent(measured.values[name])} {percent(low)} to {percent(high)}" in page.text
    assert f"{measured.values['nll']:.4g}" in page.text
    assert "1,000 bootstrap samples" in page.text
    assert "images are resized to cover 108x72 (aspect ratio kept), centre crop of" in page.text
    assert "a mean of 0.1, 0.2, 0.3 and a standard deviation of 0.5, 0.5, 0.5" in page.text
    assert "from all classes together, not class by class" in page.text


def test_the_page_is_one_file_and_survives_any_name() -> None:
    judged = judged_of()
    page = evaluation_page(
        make(judged, title=NASTY, notes=(f"a note on {NASTY}",), robustness=ROBUST)
    )
    assert all(link[0] == "#" or link.startswith("data:") for link in Page(page).loads)
    assert page.count(SAFE) >= 4
    assert "<script" not in page
    page.encode("utf-8")


@pytest.mark.parametrize("multi_label", [False, True])
def test_calibration_is_drawn_before_and_after(multi_label: bool) -> None:
    found = make(judged_of(multi_label=multi_label))
    page = evaluation_page(found)
    tempered = found.judgement.tempered
    assert tempered is not None
    assert page.count('<svg class="reliability"') == 2
    for bins in (found.judgement.reliability, tempered.reliability):
        assert f"expected calibration error {percent(bins.error)}" in page
        for place in np.flatnonzero(bins.answers):
            assert f"{bins.answers[place]:,} answers with a confidence of" in page
    table = next(rows for rows in [Page(page).tables["wide"]] if "Brier score" in rows[0])
    assert table[2][1:] == [
        percent(tempered.reliability.error),
        f"{tempered.loss:.4g}",
        f"{tempered.brier:.4g}",
    ]
    assert "halves drawn at random" in page


def test_two_galleries_show_the_surest_and_the_worst() -> None:
    judged = judged_of(images=300)
    assert len(judged.wrong) > 2 * MOST_MISTAKES
    page = Page(evaluation_page(make(judged)))
    figures = [text for text in page.figures if "truth" in text]
    assert len(figures) == 2 * MOST_MISTAKES
    chances = np.exp(judged.logits - judged.logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    wrong = np.flatnonzero(judged.guess != judged.truth)
    surest = wrong[chances[wrong].max(axis=1).argmax()]
    worst = wrong[chances[wrong, judged.truth[wrong]].argmin()]
    assert f"{surest + 30}.png" in figures[0]
    assert f"{worst + 30}.png" in figures[MOST_MISTAKES]
    lowest = [m.truth[0][1] for m in mistakes(judged, "worst")]
    assert lowest == sorted(lowest)
    assert len(lowest) == len(wrong)


def test_few_mistakes_are_shown_once() -> None:
    judged = judged_of(images=12)
    page = evaluation_page(make(judged))
    assert 0 < len(judged.wrong) <= MOST_MISTAKES
    assert 'id="surest"' in page
    assert 'id="worst"' not in page


def test_corruptions_and_sizes_are_tables() -> None:
    found = make(judged_of(), robustness=ROBUST, resolutions=SIZES)
    page = Page(evaluation_page(found))
    head, *rows = page.tables["heat"]
    assert head == ["severity", "1", "2", "3", "4", "5", "mean"]
    assert [row[0] for row in rows[:-1]] == list(CORRUPTIONS)
    assert rows[2][1:6] == [percent(value) for value in ROBUST.values[2]]
    assert rows[-1][-1] == percent(ROBUST.mean)
    assert "The mCE of the paper divides by the errors of AlexNet instead" in page.text
    assert all(sentence in page.text for sentence in DIFFERS)
    assert ["112", "50.0%", "40.0% to 60.0%", "", "resized"] in page.tables["wide"]
    assert ["113", "", "", "", SIZES[1].problem] in page.tables["wide"]
    assert "Patch sizes" not in page.text
    assert page.figures[-15:] == [f" {name}" for name in CORRUPTIONS]


def test_answers_that_are_no_numbers_are_told() -> None:
    judged = judged_of()
    logits = judged.logits.copy()
    logits[3:5] = np.nan
    found = make(replace(judged, logits=logits))
    assert "for 2 images the model's answer is not a number" in Page(evaluation_page(found)).text
    facts = plain(found)
    assert facts["not_numbers"] == 2
    json.dumps(facts, allow_nan=False)


def test_plain_values_are_sklearns() -> None:
    judged = judged_of()
    facts = json.loads(json.dumps(plain(make(judged, robustness=ROBUST, resolutions=SIZES))))
    truth, guess = judged.targets.argmax(axis=1), judged.logits.argmax(axis=1)
    assert facts["confusion"] == sk.confusion_matrix(truth, guess, labels=range(8)).tolist()
    expected = sk.precision_recall_fscore_support(truth, guess, labels=range(8), zero_division=0)
    for place, row in enumerate(facts["classes"]):
        assert row["label"] == judged.labels[place]
        assert (row["precision"], row["recall"], row["f1"], row["images"]) == pytest.approx(
            tuple(part[place] for part in expected)
        )
    assert facts["intervals"]["accuracy"][0] < facts["accuracy"] < facts["intervals"]["accuracy"][1]
    assert facts["temperature"]["ece"] != facts["ece"]
    assert sum(facts["reliability"]["answers"]) == 200
    assert facts["corruptions"]["by_severity"]["fog"] == ROBUST.values[9].tolist()
    assert facts["corruptions"]["error_relative_to_clean"] == pytest.approx(0.47 / 0.1)
    assert [row["size"] for row in facts["resolutions"]] == ["112", "113"]


def test_plain_values_of_several_labels() -> None:
    judged = judged_of(multi_label=True)
    facts = plain(make(judged))
    assert facts["confusion"] is None
    expected = sk.average_precision_score(judged.targets, judged.logits, average=None)
    assert [row["average_precision"] for row in facts["classes"]] == pytest.approx(expected)
    assert facts["mean_precision"] == pytest.approx(expected.mean())


@pytest.mark.parametrize("multi_label", [False, True])
def test_predictions_name_every_image_once(tmp_path: Path, multi_label: bool) -> None:
    judged = judged_of(images=40, multi_label=multi_label)
    write_predictions(judged, tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 41
    assert len({row["image"] for row in rows}) == 41
    assert rows[-1]["problem"] == "the file is empty"
    right = [row["right"] == "yes" for row in rows[:-1]]
    if multi_label:
        assert np.mean(right) == ((judged.logits > 0) == (judged.targets > 0.5)).all(axis=1).mean()
        assert rows[0]["truth"].count("|") == judged.targets[0].sum() - 1
    else:
        assert (
            np.mean(right) == (judged.logits.argmax(axis=1) == judged.targets.argmax(axis=1)).mean()
        )
        chances = np.exp(judged.logits[0]) / np.exp(judged.logits[0]).sum()
        assert float(rows[0]["probability"]) == pytest.approx(chances.max(), abs=1e-5)
        truth = judged.targets[0].argmax()
        assert float(rows[0]["truth_probability"]) == pytest.approx(chances[truth], abs=1e-5)
