"""The page, the JSON and the table of an evaluation say what is so, and say it of any name."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

import vitrail
from tests.pages.html import NASTY, SAFE, check_page
from tests.tasks.drawn import Drawn
from vitrail.core.outputs import Outputs
from vitrail.core.passport import Preprocessing
from vitrail.evaluation.corruptions import CORRUPTIONS, DIFFERS
from vitrail.evaluation.mistakes import mistakes
from vitrail.evaluation.robustness import Robustness
from vitrail.pages.render import percent
from vitrail.tasks.evaluate import Run, summarise
from vitrail.tasks.evaluation import MAX_MISTAKES, Evaluation, SizeResult
from vitrail.tasks.progress import silent


def outputs_of(images: int = 200, classes: int = 8, *, several: bool = False) -> Outputs:
    random = np.random.default_rng(images)
    labels = (*(f"class {number}" for number in range(classes - 1)), NASTY)
    truth = random.integers(0, classes, images)
    targets = np.eye(classes, dtype=np.float32)[truth]
    if several:
        targets = np.maximum(targets, random.random(targets.shape) < 0.2).astype(np.float32)
    logits = (random.normal(size=targets.shape) + 2 * targets - several).astype(np.float32)
    return Outputs(
        labels=labels,
        logits=logits,
        targets=targets,
        indices=np.arange(images) + 30,
        multi_label=several,
        split="test",
        broken={f"photos/{NASTY}.png": "the file is empty"},
    )


def make(outputs: Outputs, **changes: Any) -> Evaluation:
    known = outputs.targets if outputs.multi_label else outputs.truth
    model = vitrail.create("vit_ti_16", dim=8, depth=1, heads=1, mlp_dim=8, num_classes=8)
    how = Preprocessing(size=(96, 64), resize=(108, 72), mean=(0.1, 0.2, 0.3))
    model.passport = replace(model.passport, preprocessing=how)
    run = Run(model, "runs/pets/best", f"photos/{NASTY}", 8, 0, 0, silent)
    found = summarise(run, outputs, None, Drawn(outputs.labels, known), [])
    return replace(found, **changes)


def page_of(found: Evaluation) -> str:
    """What save_html writes; what a notebook shows is the same in a frame."""
    page = found.html()
    assert "srcdoc" in found._repr_html_()
    return page


EXAMPLES = np.arange(15, dtype=np.uint8)[:, None, None, None] * np.ones((100, 90, 3), np.uint8)
ROBUST = Robustness("accuracy", 0.9, np.linspace(0.9, 0.16, 75).reshape(15, 5), 50, 224, EXAMPLES)
SIZES = (
    SizeResult(size="112", metric="accuracy", value=0.5, interval=(0.4, 0.6), changes=("resized",)),
    SizeResult(size="113", problem="image side 113 is not a multiple of patch 16"),
)


def test_the_page_shows_every_number_with_its_interval() -> None:
    found = make(outputs_of())
    page = check_page(page_of(found))
    for name in ("accuracy", "top5", "f1", "ece"):
        low, high = found.intervals[name]
        assert f"{percent(found.metrics[name])} {percent(low)} to {percent(high)}" in page.text
    assert f"{found.metrics['nll']:.4g}" in page.text
    assert "1,000 bootstrap samples" in page.text
    assert "images are resized to cover 108x72 (aspect ratio kept), centre crop of" in page.text
    assert "a mean of 0.1, 0.2, 0.3 and a standard deviation of 0.5, 0.5, 0.5" in page.text
    assert "with replacement from all classes together." in page.text


def test_the_page_is_one_file_and_survives_any_name() -> None:
    outputs = outputs_of()
    page = page_of(make(outputs, title=NASTY, notes=(f"a note on {NASTY}",), robustness=ROBUST))
    check_page(page)
    assert page.count(SAFE) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_calibration_is_drawn_before_and_after(several: bool) -> None:
    found = make(outputs_of(several=several))
    page = page_of(found)
    tempered = found.temperature
    assert tempered is not None
    read = check_page(page)
    assert read.charts == 2
    for bins in (found.reliability, tempered.reliability):
        assert f"expected calibration error {percent(bins.ece)}" in page
        for place in np.flatnonzero(bins.counts):
            sure, right = bins.confidence[place], bins.accuracy[place]
            row = [f"{bins.counts[place]:,}", percent(sure), percent(right)]
            assert row in read.tables[""]
    table = read.tables["full"]
    first = next(place for place, row in enumerate(table) if "Brier score" in row)
    assert table[first + 2][1:] == [
        percent(tempered.reliability.ece),
        f"{tempered.nll:.4g}",
        f"{tempered.brier:.4g}",
    ]
    assert "two random halves" in page


@pytest.mark.slow
def test_two_galleries_show_the_surest_and_the_worst() -> None:
    outputs = outputs_of(images=300)
    assert len(outputs.wrong) > 2 * MAX_MISTAKES
    page = check_page(page_of(make(outputs)))
    figures = [text for text in page.figures if "pred." in text][: 2 * MAX_MISTAKES]
    assert len(figures) == 2 * MAX_MISTAKES
    chances = np.exp(outputs.logits - outputs.logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    wrong = np.flatnonzero(outputs.predicted != outputs.truth)
    surest = wrong[chances[wrong].max(axis=1).argmax()]
    worst = wrong[chances[wrong, outputs.truth[wrong]].argmin()]
    assert f"{surest + 30}.png" in figures[0]
    assert f"{worst + 30}.png" in figures[MAX_MISTAKES]
    lowest = [m.truth[0][1] for m in mistakes(outputs, "loss")]
    assert lowest == sorted(lowest)
    assert len(lowest) == len(wrong)


def test_few_mistakes_are_shown_once() -> None:
    outputs = outputs_of(images=12)
    page = page_of(make(outputs))
    assert 0 < len(outputs.wrong) <= MAX_MISTAKES
    assert "Most confident" in page
    assert "Lowest probability for the true class" not in page


def test_corruptions_and_sizes_are_tables() -> None:
    found = make(outputs_of(), robustness=ROBUST, resolutions=SIZES)
    page = check_page(page_of(found))
    head, *rows = page.tables["cells"][9:]
    assert head == ["severity", "1", "2", "3", "4", "5", "mean"]
    assert [row[0] for row in rows[:-1]] == list(CORRUPTIONS)
    assert rows[2][1:6] == [percent(value) for value in ROBUST.values[2]]
    assert rows[-1][-1] == percent(ROBUST.mean)
    assert "The mCE of the paper divides by the errors of AlexNet instead" in page.text
    assert all(sentence in page.text for sentence in DIFFERS)
    assert ["112", "50.0%", "40.0% to 60.0%", "", "resized"] in page.tables["full"]
    assert ["113", "", "", "", SIZES[1].problem] in page.tables["full"]
    assert "Patch sizes" not in page.text
    assert [text.strip() for text in page.figures[-15:]] == list(CORRUPTIONS)


def test_answers_that_are_no_numbers_are_told() -> None:
    outputs = outputs_of()
    logits = outputs.logits.copy()
    logits[3:5] = np.nan
    found = make(replace(outputs, logits=logits))
    assert "The output is NaN or infinite for 2 of 200 images" in check_page(page_of(found)).text
    facts = found.facts()
    assert facts["nonfinite"] == 2
    json.dumps(facts, allow_nan=False)


def test_plain_values_are_sklearns() -> None:
    outputs = outputs_of()
    facts = json.loads(json.dumps(make(outputs, robustness=ROBUST, resolutions=SIZES).facts()))
    truth, guess = outputs.targets.argmax(axis=1), outputs.logits.argmax(axis=1)
    assert facts["confusion"] == sk.confusion_matrix(truth, guess, labels=range(8)).tolist()
    expected = sk.precision_recall_fscore_support(truth, guess, labels=range(8), zero_division=0)
    for place, row in enumerate(facts["classes"]):
        assert row["label"] == outputs.labels[place]
        assert (row["precision"], row["recall"], row["f1"], row["images"]) == pytest.approx(
            tuple(part[place] for part in expected)
        )
    assert facts["intervals"]["accuracy"][0] < facts["accuracy"] < facts["intervals"]["accuracy"][1]
    assert facts["temperature"]["ece"] != facts["ece"]
    assert sum(facts["reliability"]["counts"]) == 200
    assert facts["corruptions"]["by_severity"]["fog"] == ROBUST.values[9].tolist()
    assert facts["corruptions"]["error_relative_to_clean"] == pytest.approx(0.47 / 0.1)
    assert [row["size"] for row in facts["resolutions"]] == ["112", "113"]


def test_plain_values_of_several_labels() -> None:
    outputs = outputs_of(several=True)
    facts = make(outputs).facts()
    assert facts["confusion"] is None
    expected = sk.average_precision_score(outputs.targets, outputs.logits, average=None)
    assert [row["average_precision"] for row in facts["classes"]] == pytest.approx(expected)
    assert facts["mean_precision"] == pytest.approx(expected.mean())


@pytest.mark.parametrize("several", [False, True])
def test_predictions_name_every_image_once(tmp_path: Path, several: bool) -> None:
    outputs = outputs_of(images=40, several=several)
    make(outputs).save_predictions(tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 41
    assert len({row["image"] for row in rows}) == 41
    assert rows[-1]["problem"] == "the file is empty"
    right = [row["right"] == "yes" for row in rows[:-1]]
    if several:
        assert (
            np.mean(right) == ((outputs.logits > 0) == (outputs.targets > 0.5)).all(axis=1).mean()
        )
        assert rows[0]["truth"].count("|") == outputs.targets[0].sum() - 1
    else:
        assert (
            np.mean(right)
            == (outputs.logits.argmax(axis=1) == outputs.targets.argmax(axis=1)).mean()
        )
        chances = np.exp(outputs.logits[0]) / np.exp(outputs.logits[0]).sum()
        assert float(rows[0]["probability"]) == pytest.approx(chances.max(), abs=1e-5)
        truth = outputs.targets[0].argmax()
        assert float(rows[0]["truth_probability"]) == pytest.approx(chances[truth], abs=1e-5)
