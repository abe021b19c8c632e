"""Every page says what its values say, of 2, 37 and 1,000 classes, and is whole without script."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.pages.html import NASTY, SAFE, check_page
from tests.pages.values import (
    benchmark_values,
    classified,
    confusion_of,
    doctor_facts,
    evaluation_facts,
    examples_of,
    labels_of,
    lines_of,
    picture,
    run_facts,
)
from vitrail.pages.benchmark import benchmark_page
from vitrail.pages.classification import mistakes_section, most_confused_classes, pick_rows
from vitrail.pages.data_report import data_body, data_page
from vitrail.pages.evaluation import evaluation_page
from vitrail.pages.predictions import (
    MAX_SHOWN,
    ImageCard,
    duplicates_page,
    predictions_page,
    search_page,
)
from vitrail.pages.runs import RunSummary, runs_page
from vitrail.pages.training import HeldOutScore, pretraining_page, training_page

LOWEST = "Lowest probability for the true class"
CLASSES = [(2, 40), (37, 800), (1000, 4000)]


def evaluated(classes: int, images: int, **changes: Any) -> str:
    _, truth, predicted = confusion_of(classes, images)
    examples = examples_of(labels_of(classes), truth, predicted, 60)
    wrong = [one for one in examples if one.truth != one.predicted]
    return evaluation_page(
        evaluation_facts(classes, images) | changes,
        title="pets",
        preprocessing="The model reads 96 x 64 pixels.",
        mistakes={
            "Most confident": wrong[:12],
            LOWEST: wrong[12:24],
        },
        by_class=examples,
        wrong=int((truth != predicted).sum()),
        corrupted={"fog": picture(1)},
    )


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "images"), CLASSES)
def test_an_evaluation(classes: int, images: int) -> None:
    page = evaluated(classes, images)
    read = check_page(page)
    assert len(page) < 1_200_000
    assert read.charts == 2
    assert "Accuracy 81.0% 78.0% to 84.0%" in read.text
    assert "0.72 0.7 to 0.75" in read.text
    assert f"A note on {SAFE}" in page
    shown = min(classes, 30 if classes > 40 else classes)
    head, *rows = read.tables["cells"][: shown + 1]
    assert len(head) == len(rows[0]) == shown + 1 + (classes > 40)
    assert all(len(row) == len(head) for row in rows)
    if classes <= 40:
        matrix = evaluation_facts(classes, images)["confusion"]
        assert [[int(cell or 0) for cell in row[1:]] for row in rows] == matrix
    else:
        assert "The 30 of 1,000 classes that are confused with each other most often" in read.text
    for words in ("gaussian_noise", "frost is drawn", "positions resized", "the file is empty"):
        assert words in read.text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("classes", "images"), CLASSES)
def test_the_table_of_classes_has_all_of_them_and_the_worst_first(
    classes: int, images: int
) -> None:
    found = classified(classes, images)
    read = check_page(training_page(run_facts(), found))
    rows = [row for row in read.tables["full"] if row[0].startswith(("american", "Abyss", "a<b>"))]
    rows = [row for row in rows if len(row) == 6]
    values = [float(row[4].strip("%<>")) for row in rows if row[1] != "0"]
    assert len(rows) >= classes * 3 // 6
    assert values == sorted(values)
    assert sum(len(row) == 6 and row[0] != "class" for row in read.tables["full"]) == classes + 1


def test_links_of_confusions_choose_images_that_are_there() -> None:
    read = check_page(evaluated(37, 800))
    links = [link for link in read.links if "data-what" in link]
    assert len(links) > 80
    assert {link["href"] for link in links} == {"#by-class"}
    assert "by-class" in read.ids


def test_rows_are_picked_from_every_confusion_and_every_class() -> None:
    _, truth, predicted = confusion_of(5, 300)
    rows = pick_rows(truth, predicted, most=200)
    cells = set(zip(truth.tolist(), predicted.tolist(), strict=True))
    assert {(int(truth[row]), int(predicted[row])) for row in rows} == cells
    assert len(set(rows)) == len(rows)
    assert len(pick_rows(truth, predicted, most=7)) == 7


def test_several_labels_have_no_confusions() -> None:
    facts = evaluation_facts(6, 100) | {"confusion": None}
    page = evaluation_page(facts, title="t", preprocessing="", mistakes={}, wrong=3)
    read = check_page(page)
    assert "average precision" in read.text
    assert 'id="confusions"' not in page
    assert "none of these images can be read now" in read.text


def test_a_training_report_says_first_what_must_be_known() -> None:
    run = run_facts(
        title=NASTY,
        warnings=["accuracy is no better than chance"],
        stopped="interrupted at step 3 of 9",
        broken={f"photos/{place}{NASTY}.jpg": f"<i>{place}</i>" for place in range(500)},
        lr_finder={"lr": 1e-3, "rates": [1e-4, 1e-3, 1e-2], "losses": [2.0, 1.5, 1.8]},
        augmented=[picture(place) for place in range(8)],
    )
    test = HeldOutScore(split="test", name="accuracy", value=0.5, interval=(0.4, 0.6), images=148)
    page = training_page(run, classified(12, 300), test=test)
    read = check_page(page)
    text = read.text
    assert text.index("Interrupted at step 3") < text.index("no better than chance")
    assert text.index("no better than chance") < text.index("ViT (custom), 145,893 parameters")
    assert "Accuracy on test 50.0% 40.0% to 60.0% (95% confidence)" in text
    assert "Learning rate finder chosen: 0.001" in text
    assert "augmented image 8" in page
    assert page.count("&lt;i&gt;") == 500
    assert page.count('class="marked"') == 1
    assert "vitrail doctor photos --out findings" in text


def test_training_and_validation_are_drawn_together() -> None:
    lines = [
        {"step": 1, "loss": 3.0, "train_accuracy": 0.2, "data_seconds": 1.0, "seconds": 4.0},
        {"step": 2, "loss": 2.0, "train_accuracy": 0.3, "val_loss": 2.5, "accuracy": 0.4},
        {"step": 3, "loss": None, "train_accuracy": 0.5, "val_loss": 2.25, "accuracy": 0.4},
        {"step": 4, "note": "text"},
    ]
    read = check_page(training_page(run_facts(lines=lines, best_step=3), None))
    loss, accuracy, waiting = (" ".join(one.split()) for one in read.figures[:3])
    assert loss.startswith("Loss last 2 at step 2; 1 value not finite; validation 2.25")
    assert accuracy.startswith("Accuracy best 40.0% at step 3")
    assert waiting.startswith("Time spent waiting for data last 25.0% at step 1")
    assert len(read.figures) == 3


def test_nothing_logged_and_nothing_to_judge_by() -> None:
    read = check_page(training_page(run_facts(lines=[]), None))
    assert "Nothing was logged" in read.text


def test_galleries_with_the_same_mistakes_are_one() -> None:
    page = evaluated(37, 800)
    assert "Most confident" in page
    assert LOWEST in page
    _, truth, predicted = confusion_of(2, 40)
    wrong = [
        one for one in examples_of(labels_of(2), truth, predicted, 60) if one.truth != one.predicted
    ]
    same = {"Most confident": wrong, LOWEST: wrong[::-1]}
    text = mistakes_section(same, images=40, wrong=len(wrong), multi_label=False).body
    assert "Most confident" in text
    assert LOWEST not in text


def test_the_matrix_of_many_classes_has_the_pairs_that_are_confused() -> None:
    counts = np.diag([9] * 50)
    counts[3, 40] = counts[41, 7] = 5
    counts[10, 11:50] = 1  # many mistakes, none of them frequent
    shown = most_confused_classes(counts, 5).tolist()
    assert shown[:4] == [3, 40, 41, 7]


def test_no_mistake_reads_well() -> None:
    matrix = np.diag([30, 40, 50]).tolist()
    found = replace(classified(3, 120), wrong=0, confusion=matrix, mistakes=[], by_class=[])
    text = check_page(training_page(run_facts(), found)).text
    assert text.count("No mistakes on 120 images") == 2


def test_the_recipe_begins_with_its_reasons() -> None:
    text = check_page(training_page(run_facts(), None)).text.rpartition("Recipe")[2]
    assert text.index("few images") < text.index("photos") < text.index("optimiser")
    for words in ("lr 0.002", "betas 0.9, 0.999", "clip none"):
        assert words in text


def test_a_pretraining_report_shows_the_last_sheet_first() -> None:
    sheets = {step: picture(step) for step in range(0, 400, 10)}
    page = pretraining_page(run_facts(title=NASTY), sheets=sheets, rows=["given", NASTY])
    text = check_page(page).text
    assert text.index("Step 390") < text.index("Step 0")
    assert page.count("<h3>Step") == 12
    check_page(pretraining_page(run_facts(), sheets={}))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("classes", [2, 37, 1000])
def test_a_data_report(classes: int) -> None:
    facts, samples, thumbnails = doctor_facts(classes)
    page = data_page(facts, samples=samples, thumbnails=thumbnails)
    read = check_page(page)
    assert len(page) < 1_000_000
    for words in (
        "A random sample of 90 of",
        "with a duplicate in an earlier split: 1 of",
        "similarity 0.930",
        "the file is empty",
        "notes.txt",
        "Images of one colour",
        "375x500",
    ):
        assert words in read.text
    assert sum(len(row) == 5 for row in read.tables["full"]) == classes + 1
    body = data_body(facts, samples=samples, thumbnails=thumbnails)
    check_page(training_page(run_facts(), None, data_report=body))


def test_a_data_report_without_labels_and_without_good_images() -> None:
    facts, samples, thumbnails = doctor_facts(2)
    bare = [{**part, "classes": {}, "empty": [], "imbalance": None} for part in facts["splits"]]
    facts |= {"splits": bare[:1], "sizes": None, "colour": None, "leaks": [], "conflicts": []}
    facts |= {"exact": [], "near": [], "broken": [], "ignored": (), "leaked": {}, "examined": None}
    text = check_page(data_page(facts, samples=samples, thumbnails=thumbnails)).text
    assert "Some of the images" in text
    assert "Leakage" not in text


def test_predictions_are_the_least_certain_first() -> None:
    images = [
        ImageCard(
            f"{place}/{NASTY}.jpg", picture(place), [("cat", 0.5 + place / 2000), (NASTY, 0.1)]
        )
        for place in range(500)
    ]
    page = predictions_page(images[::-1], model="runs/a", broken={"x.jpg": "the file is empty"})
    read = check_page(page)
    assert f"The {MAX_SHOWN} least certain of 500 images" in read.text
    assert "50.0%" in read.figures[0]
    assert len(read.figures) == MAX_SHOWN
    assert "the file is empty" in read.text
    assert "cat 500 100%" in read.text


def test_search_and_duplicates() -> None:
    hits = [ImageCard(f"{NASTY} {n}", picture(n), score=1 - n / 10) for n in range(3)]
    text = check_page(search_page(ImageCard("query.jpg", None), hits, index="vectors")).text
    assert "no preview" in text
    assert text.index("similarity 1.000") < text.index("similarity 0.800")
    page = duplicates_page([hits] * 120, index=NASTY, threshold=0.97, source="given")
    read = check_page(page)
    assert "360 images in 120 groups" in read.text
    assert "and 20 more groups" in read.text
    assert (
        "No two images"
        in check_page(duplicates_page([], index="v", threshold=1, source="given")).text
    )


@pytest.mark.slow
def test_runs_side_by_side() -> None:
    recipes = [{"lr": rate, "optimiser": {"kind": NASTY}, "data": "d"} for rate in (1e-3, 3e-3)]
    runs = [
        RunSummary(f"runs/{name}", recipe, lines_of(seed=seed), {"state": "finished"})
        for name, recipe, seed in zip((NASTY, "b"), recipes, (0, 20), strict=True)
    ]
    page = runs_page(runs)
    read = check_page(page)
    assert read.charts == 7
    assert ["lr", "0.001", "0.003"] in read.tables["full"]
    assert not any(row and row[0] in ("data", "optimiser.kind") for row in read.tables["full"])
    assert page.count('class="number right"') >= 3
    assert "not comparable" not in read.text
    other = replace(runs[1], recipe={**recipes[1], "data": "other"})
    assert "The runs used different data" in check_page(runs_page([runs[0], other])).text
    many = [replace(runs[0], name=f"run {place}") for place in range(9)]
    text = check_page(runs_page(many)).text
    assert "The first 6 of 9 runs" in text
    assert "None: the recipes are the same" in text
    check_page(runs_page(runs[:1]))


def test_a_benchmark_draws_each_batch_size_with_the_fastest_first() -> None:
    read = check_page(benchmark_page(*benchmark_values()))
    assert read.charts == 2
    first = read.figures[0]
    assert "Images per second, batch 1" in first
    table = first.partition("Table of values")[2]
    assert table.index("onnxruntime") < table.index("compiled") < table.index("eager")
    assert "no compiler" in read.text
    facts, titles, cells = benchmark_values()
    alone = benchmark_page({**facts, "rows": facts["rows"][:1]}, titles, cells[:1])
    assert check_page(alone).charts == 0


def test_a_benchmark_has_a_bar_for_each_precision_and_number_of_merged_tokens() -> None:
    facts, titles, cells = benchmark_values()
    rows = [
        {**facts["rows"][0], "precision": precision, "merged_tokens": r, "images_per_second": speed}
        for precision, r, speed in (("float32", 0, 1.0), ("int8", 0, 2.0), ("int8", 16, 3.0))
    ]
    [figure] = check_page(benchmark_page({**facts, "rows": rows}, titles, cells[:3])).figures
    assert figure.endswith("int8 r=16 3 int8 2 runs/pets/best 1")


@pytest.mark.slow
def test_only_what_has_images_is_a_link() -> None:
    found = classified(37, 800)
    one = found.by_class[0]
    linked, bare = (
        training_page(run_facts(), replace(found, by_class=examples)) for examples in ([one], [])
    )
    assert "data-what=" not in bare
    assert "Click a number" not in bare
    places = re.findall(r'<a href="#by-class" data-truth="(\d+)"', linked)
    assert places
    assert set(places) == {str(one.truth)}


def test_scores_are_drawn_before_what_only_explains_them() -> None:
    lines = [{"step": 1, "lr": 0.1, "grad_norm": 1.0, "loss": 2.0, "top5": 0.5, "accuracy": 0.3}]
    read = check_page(training_page(run_facts(lines=lines), None))
    titles = [
        " ".join(figure.split()).split(" last")[0].split(" best")[0] for figure in read.figures
    ]
    assert titles == [
        "Training loss",
        "Accuracy",
        "Top-5 accuracy",
        "Gradient norm",
        "Learning rate",
    ]


def test_many_groups_are_folded() -> None:
    facts, samples, thumbnails = doctor_facts(2)
    facts |= {"leaks": facts["leaks"][:1] * 20}
    page = data_page(facts, samples=samples, thumbnails=thumbnails)
    assert "<summary>14 more groups</summary>" in page
