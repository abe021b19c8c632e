"""The report of a run says what is so: counts, scores, the surest mistakes, and every name."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax  # type: ignore[import-untyped]
from sklearn import metrics as sk

from tests.golden import golden
from vitrail.data.doctor import examine
from vitrail.data.images import BadImage
from vitrail.data.source import Raw
from vitrail.data.sources import open_data
from vitrail.evaluation.classify import class_metrics, top_confusions
from vitrail.evaluation.curves import curve, map_png, points_of, thin, ticks
from vitrail.evaluation.judged_page import MOST_MISTAKES
from vitrail.evaluation.mistakes import mistakes
from vitrail.evaluation.report import Report
from vitrail.evaluation.report_page import report_page

VOID = {"meta", "img", "br", "path", "circle", "image", "rect"}
NASTY = 'a<b> & "c" \udcff'
SAFE = "a&lt;b&gt; &amp; &quot;c&quot; \\udcff"


class Page(HTMLParser):
    """Tables by their class, the text of every figure and of the whole; tags must be balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.figures: list[str] = []
        self.opened: list[str] = []
        self.said: list[str] = []
        self.loads: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(page)
        self.close()
        assert not self.opened
        self.text = " ".join(" ".join(self.said).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [given[key] or "" for key in ("src", "href") if key in given]
        match tag:
            case "table":
                self.rows = self.tables.setdefault((given.get("class") or "").split(" ")[0], [])
            case "tr":
                self.rows.append([])
            case "td" | "th":
                self.rows[-1].append("")
            case "figure":
                self.figures.append("")
        if tag not in VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.opened:
            return
        self.said.append(data)
        if "figure" in self.opened:
            self.figures[-1] += f" {data}"
        if "td" in self.opened or "th" in self.opened:
            self.rows[-1][-1] += data


class Drawn:
    """Pictures of one colour each; those in `gone` cannot be read."""

    uniform = True

    def __init__(
        self, labels: tuple[str, ...], targets: NDArray[Any] | None, gone: tuple[int, ...] = ()
    ) -> None:
        self.labels, self.targets, self.gone = labels, targets, gone

    def __len__(self) -> int:
        return 10_000

    def name(self, index: int) -> str:
        return f"photos/{NASTY}/{index}.png"

    def read(self, index: int) -> Raw:
        if index in self.gone:
            raise BadImage(self.name(index), "is gone")
        return np.full((80, 90, 3), index % 256, dtype=np.uint8)


def make(
    images: int = 200,
    classes: int = 5,
    *,
    several: bool = False,
    skill: float = 2.0,
    gone: tuple[int, ...] = (),
    **changes: Any,
) -> Report:
    """Random answers that are right now and then; the last class has no image."""
    random = np.random.default_rng(images + classes)
    labels = tuple(f"class {number}" for number in range(classes))
    truth = random.integers(0, classes - 1, images)
    targets = np.eye(classes, dtype=np.float32)[truth]
    if several:
        targets[:, :-1] += random.random((images, classes - 1)) < 0.3
        targets = np.minimum(targets, 1)
    logits = random.normal(size=(images, classes)) + skill * targets - several
    values: dict[str, Any] = {
        "title": "a-run",
        "recipe": {"data": "photos", "model": "vit_ti_16", "reasons": ("few images",)},
        "facts": {"steps": "75 of 75"},
        "lines": [{"step": 25, "loss": 2.0, "accuracy": 0.5}, {"step": 50, "loss": 1.0}],
        "labels": labels,
        "logits": logits.astype(np.float32),
        "targets": targets,
        "indices": np.arange(images) + 1000,
        "source": Drawn(labels, targets if several else truth, gone),
        "split": "val",
        "multi_label": several,
        "findings": None,
        "broken": {},
        "model": "ViT (custom), 145,893 parameters",
    }
    return Report(**values | changes)


def number(told: str) -> float:
    return float("nan") if told == "–" else float(told.strip("<>%")) / 100


def test_the_confusions_are_those_of_sklearn() -> None:
    report = make()
    head, *rows = Page(report_page(report)).tables["confusion"]
    assert head[1:] == [row[0] for row in rows] == list(report.labels)
    truth, guess = report.targets.argmax(axis=1), report.logits.argmax(axis=1)
    expected = sk.confusion_matrix(truth, guess, labels=range(5))
    assert np.array_equal(np.array([row[1:] for row in rows], dtype=int), expected)
    assert expected[-1].sum() == 0, "the last class has no image, and is there nevertheless"


def test_the_table_of_classes_is_sklearns() -> None:
    report = make(classes=8)
    head, *rows = Page(report_page(report)).tables["wide"]
    assert head == ["class", "images", "precision", "recall", "F1", ""]
    truth, guess = report.targets.argmax(axis=1), report.logits.argmax(axis=1)
    for place, row in enumerate(rows[:-1]):
        assert row[:2] == [report.labels[place], str((truth == place).sum())]
        right = ((truth == place) & (guess == place)).sum()
        if (truth == place).any():
            assert number(row[3]) == pytest.approx(right / (truth == place).sum(), abs=6e-4)
        else:
            assert row[3] == "–"
        assert number(row[2]) == pytest.approx(right / (guess == place).sum(), abs=6e-4)
    mean = sk.f1_score(truth, guess, average="macro", labels=range(7))
    assert number(rows[-1][4]) == pytest.approx(mean, abs=6e-4)


def test_the_worst_classes_are_marked_and_only_they() -> None:
    report = make(classes=12)
    scores = class_metrics(report)
    marked = [row.f1 for row in scores if row.marked]
    others = [row.f1 for row in scores if not row.marked and row.images]
    assert len(marked) == 3
    assert max(marked) < min(others)
    assert report_page(report).count('<tr class="marked">') == 3
    assert not any(row.marked for row in class_metrics(make(skill=50)))


def test_the_mistakes_are_the_most_confident_ones() -> None:
    report = make(images=300)
    chances = softmax(report.logits.astype(np.float64), axis=1)
    truth, guess = report.targets.argmax(axis=1), chances.argmax(axis=1)
    wrong = np.flatnonzero(truth != guess)
    surest = wrong[np.argsort(-chances[wrong, guess[wrong]])]
    found = list(mistakes(report))
    assert [mistake.index for mistake in found] == (surest + 1000).tolist()
    for mistake, row in zip(found, surest, strict=True):
        ((said, chance),) = mistake.predicted
        assert (said, mistake.truth[0][0]) == (f"class {guess[row]}", f"class {truth[row]}")
        assert chance == pytest.approx(chances[row].max())
        assert mistake.truth[0][1] == pytest.approx(chances[row, truth[row]])
    cards = [text for text in Page(report_page(report)).figures if "truth" in text]
    assert len(wrong) > len(cards) == MOST_MISTAKES
    for card, row in zip(cards, surest, strict=False):
        assert f"said class {guess[row]}" in " ".join(card.split())
        assert f"truth class {truth[row]}" in " ".join(card.split())
        assert f"/{row + 1000}.png" in card


def test_a_mistake_without_a_picture_makes_room_for_the_next() -> None:
    first, second, third = (mistake.index for mistake in list(mistakes(make(images=300)))[:3])
    page = report_page(make(images=300, gone=(first, third)))
    shown = re.findall(r"/(\d+)\.png</code>", page)
    assert len(shown) == MOST_MISTAKES
    assert shown[0] == str(second)
    assert not {str(first), str(third)} & set(shown)
    page = report_page(make(images=40, gone=tuple(range(1000, 1040))))
    assert "none of their pictures can be read" in page


def test_no_mistake_reads_well() -> None:
    for classes in (5, 40):
        text = Page(report_page(make(images=180, classes=classes, skill=50))).text
        assert "no mistake on 180 images" in text
        assert "180 of 180 images are right" in text


def test_several_labels_have_average_precision_and_no_confusions() -> None:
    report = make(several=True)
    page = report_page(report)
    read = Page(page)
    assert "confusion" not in read.tables
    assert "#confusions" not in page
    head, *rows = read.tables["wide"]
    assert head[5] == "average precision"
    for place, row in enumerate(rows[:-2]):
        truth = report.targets[:, place]
        expected = sk.average_precision_score(truth, report.logits[:, place])
        assert number(row[5]) == pytest.approx(expected, abs=6e-4)
        assert number(row[3]) == pytest.approx(
            sk.recall_score(truth, report.logits[:, place] > 0), abs=6e-4
        )
    assert rows[-2][5] == "–", "the last class has no image"


def test_several_labels_rank_mistakes_by_their_surest_wrong_label() -> None:
    report = make(several=True)
    chances = expit(report.logits.astype(np.float64))
    wrong = (chances > 0.5) != (report.targets > 0.5)
    sureness = np.where(wrong, np.maximum(chances, 1 - chances), 0).max(axis=1)
    found = [mistake.index - 1000 for mistake in mistakes(report)]
    assert sorted(found) == np.flatnonzero(wrong.any(axis=1)).tolist()
    assert (np.diff(sureness[found]) <= 0).all()
    first = next(mistakes(report))
    said = {f"class {place}" for place in np.flatnonzero(chances[found[0]] > 0.5)}
    assert {label for label, _ in first.predicted} == said


def test_every_image_passed_over_is_named_and_nothing_from_a_file_is_markup() -> None:
    broken = {f"photos/{place}{NASTY}.jpg": f"{place} <i>ends</i> early" for place in range(500)}
    labels = (NASTY, "<script>alert(1)</script>", "plain", "x", "y")
    report = make(
        title=NASTY,
        labels=labels,
        broken=broken,
        facts={NASTY: NASTY},
        split=NASTY,
        recipe={"data": NASTY, "model": NASTY, "reasons": [NASTY], NASTY: {NASTY: [NASTY]}},
        lines=[{"step": 1, NASTY: 0.5}],
    )
    page = report_page(report)
    page.encode("utf-8")
    for place in range(500):
        assert f"<code>photos/{place}{SAFE}.jpg</code>" in page
        assert f"<td>{place} &lt;i&gt;ends&lt;/i&gt; early</td>" in page
    assert "<b> &" not in page
    assert "<script" not in page
    assert "<i>" not in page
    assert SAFE in page
    Page(page)


@pytest.mark.parametrize(
    ("images", "classes", "several"),
    [
        *((7, 2, several) for several in (False, True)),
        *((300, 30, several) for several in (False, True)),
        *((300, 31, several) for several in (False, True)),
        (2000, 1000, False),
        (200, 200, True),
    ],
)
def test_any_number_of_classes_gives_a_page_of_reasonable_size(
    images: int, classes: int, several: bool
) -> None:
    report = make(images, classes, several=several)
    page = report_page(report)
    read = Page(page)
    assert len(page) < 700_000
    assert ("confusion" in read.tables) == (classes <= 30 and not several)
    assert ('class="map"' in page) == (classes > 30 and not several)
    # nothing is asked of the network
    assert {load[:5] for load in read.loads} <= {"data:", "#curv", "#conf", "#clas", "#mist"} | {
        "#pass",
        "#data",
        "#reci",
    }


def test_the_most_frequent_confusions_are_named() -> None:
    report = make(images=500, classes=40, skill=1)
    matrix = sk.confusion_matrix(report.targets.argmax(axis=1), report.logits.argmax(axis=1))
    found = top_confusions(report, 10)
    off = matrix[: len(matrix) - 1] * (1 - np.eye(len(matrix), dtype=int)[: len(matrix) - 1])
    assert [pair.images for pair in found] == sorted(off.ravel().tolist(), reverse=True)[:10]
    for pair in found:
        truth, said = report.labels.index(pair.truth), report.labels.index(pair.predicted)
        assert truth != said
        assert matrix[truth, said] == pair.images
        assert pair.share == pytest.approx(pair.images / matrix[truth].sum())
    first = f"{found[0].truth} {found[0].predicted} {found[0].images}".split()
    assert " ".join(first) in " ".join(
        " ".join(row) for row in Page(report_page(report)).tables["wide"]
    )


def test_the_map_colours_what_is_right_and_what_is_wrong(tmp_path: Path) -> None:
    from PIL import Image

    matrix = np.diag(np.full(40, 10))
    matrix[3, 7], matrix[5, 6] = 10, 1
    (tmp_path / "map.png").write_bytes(map_png(matrix))
    pixels = np.asarray(Image.open(tmp_path / "map.png"))
    assert pixels.shape == (40, 40, 4)
    assert np.array_equal(pixels[..., 3] > 0, matrix > 0)
    assert pixels[0, 0, 2] > pixels[0, 0, 0], "right is blue"
    assert pixels[3, 7, 0] > pixels[3, 7, 2], "wrong is red"


def test_the_curves_show_each_value_that_was_logged() -> None:
    lines = [
        {"step": step, "loss": 1 / step, "lr": 1e-3, "accuracy": step / 40, "note": "text"}
        for step in range(1, 31)
    ]
    lines[4]["loss"] = float("nan")
    figures = Page(report_page(make(lines=lines))).figures[:3]
    loss, accuracy, rate = (" ".join(figure.split()) for figure in figures)
    assert "Training loss last 0.03333 at step 30; 1 value not a number" in loss
    assert "Learning rate last 0.001 at step 30" in rate
    assert "Accuracy best 75.0% at step 30" in accuracy
    assert "step 12: 30.0%" in accuracy
    assert "note" not in "".join(figures)
    drawn = curve(points_of(lines, "loss"), title="Loss", share=False)
    assert drawn.count('class="line"') == 2, "the line has a gap where there is no number"


def test_a_long_curve_keeps_its_extremes() -> None:
    points = [(float(step), 0.0) for step in range(100_000)]
    points[7], points[70_001] = (7.0, -5.0), (70_001.0, 9.0)
    few = thin(points)
    assert len(few) <= 402
    assert {points[0], points[7], points[70_001], points[-1]} <= set(few)


@pytest.mark.parametrize(
    "values", [(0.0, 0.0), (1.0, 1.0), (-3.0, 2.0), (0.0, 1e-7), (1e-30, 2e-30), (1e9, 1e9)]
)
def test_ticks_enclose_the_values(values: tuple[float, float]) -> None:
    found = ticks(*values)
    assert found[0] <= values[0] <= values[1] <= found[-1]
    assert 2 <= len(found) <= 8
    assert found == sorted(set(found))


@pytest.mark.parametrize("several", [False, True])
def test_answers_that_are_no_numbers_are_told(several: bool) -> None:
    report = make(several=several)
    logits = report.logits.copy()
    logits[:3] = np.nan
    report = replace(report, logits=logits)
    text = Page(report_page(report)).text
    assert "For 3 images the model's answer is not a number" in text
    chances = [
        chance for found in mistakes(report) for _, chance in (*found.truth, *found.predicted)
    ]
    assert np.isfinite(chances).all()


def test_nothing_to_judge_by_and_nothing_logged_is_said() -> None:
    text = Page(report_page(make(images=0, lines=[]))).text
    assert "no labelled image" in text
    assert "Nothing was logged" in text


def test_the_doctor_is_heard_or_recommended() -> None:
    splits = open_data("digits")
    found = examine(splits, "digits", threads=1)
    page = report_page(make(findings=found))
    assert found.html() in page
    assert "vitrail doctor" not in page
    report_page(make(findings=replace(found, source=NASTY))).encode("utf-8")
    page = report_page(make(recipe={"data": "my photos"}))
    assert "vitrail doctor &#x27;my photos&#x27; --out findings" in page


def test_the_recipe_begins_with_its_reasons() -> None:
    recipe = {
        "data": "photos",
        "optimiser": {"lr": 0.002, "betas": (0.9, 0.999), "clip": None},
        "reasons": ("few images",),
    }
    text = Page(report_page(make(recipe=recipe))).text.rpartition("Recipe")[2]
    assert text.index("few images") < text.index("photos") < text.index("optimiser")
    for told in ("lr 0.002", "betas 0.9, 0.999", "clip none"):
        assert told in text


def test_real_photos_are_shown() -> None:
    source = open_data(golden("flowers"))["val"]
    report = make(images=len(source), classes=5)
    shown = replace(report, source=source, indices=np.arange(len(source)), labels=source.labels)
    page = report_page(shown)
    wrong = min(len(report.wrong), MOST_MISTAKES)
    assert page.count('<img src="data:image/jpeg;base64,') == wrong > 0


def test_the_best_step_of_a_tie_is_the_one_that_was_kept() -> None:
    lines = [{"step": step, "accuracy": 0.5} for step in (25, 50, 100)]
    page = report_page(make(lines=lines, best_step=100))
    assert "best 50.0% at step 100" in page
    assert "at step 25<" not in page
