"""Pages in another language: no text of ours stays English, and English pages are unchanged."""

import json
import re
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tools.page_texts import template_texts

from tests.models.kinds import KINDS
from tests.pages.html import check_page
from tests.pages.task_values import (
    comparison_facts,
    explanations,
    probe_facts,
    reproduction_facts,
)
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
from vitrail.cli.language import read_page_texts, translate_to, use_language
from vitrail.core.language import chosen_language
from vitrail.core.passport import Preprocessing
from vitrail.evaluation.corruptions import DIFFERS
from vitrail.evaluation.intervals import METHODS
from vitrail.explanation.figures import FIGURES
from vitrail.models.catalogue import build, change, find
from vitrail.pages.benchmark import benchmark_page
from vitrail.pages.charts import new_figure
from vitrail.pages.comparison import comparison_page
from vitrail.pages.data_report import data_body, data_page
from vitrail.pages.evaluation import evaluation_page
from vitrail.pages.predictions import ImageCard, duplicates_page, predictions_page, search_page
from vitrail.pages.probe import ProbeRow, probe_page
from vitrail.pages.reproduction import reproduction_page
from vitrail.pages.runs import RunSummary, runs_page
from vitrail.pages.training import HeldOutScore, pretraining_page, training_page
from vitrail.pages.translation import texts_in_script
from vitrail.tasks.claims.catalogue import ALL
from vitrail.tasks.evaluation import preprocessing_sentence
from vitrail.tasks.explain_page import explain_page
from vitrail.tasks.figures import Figures, figures

CLAIMS = sorted((Path(__file__).parents[2] / "docs" / "reproduce").glob("*.json"))
BROKEN = {"photos/x.jpg": "the file is empty"}
READ = ("alt", "title", "aria-label", "data-filter", "data-what", "placeholder")
# Names of the test's data, of runs and of the program, which no language changes.
NAMES = (
    *("Egyptian Mau", "vitrail doctor photos --out findings", "vitrail reproduce hybrid"),
    *("fine-tuned at the same size", "fine-tuned at higher", "after masked patches"),
    "resized, in random places",
)
SENTENCE = re.compile(r"\b[A-Za-z][a-z]+ [a-z]+ [a-z]+\b")


def evaluation() -> str:
    _, truth, predicted = confusion_of(6, 80)
    examples = examples_of(labels_of(6), truth, predicted, 30)
    wrong = [one for one in examples if one.truth != one.predicted]
    facts = evaluation_facts(6, 80)
    facts["corruptions"]["differs"] = DIFFERS
    facts["intervals_are"]["how"] = METHODS
    facts["temperature"] |= {"fitted_on": "two random halves", "at_limit": True}
    facts["notes"] = ["the output is NaN or infinite for 3 of 80 images: it counts as zeros"]
    facts["resolutions"] = [facts["resolutions"][0] | {"changes": []}]
    facts["patch_sizes"] = facts["resolutions"]
    return evaluation_page(
        facts | {"broken": BROKEN},
        title="photos",
        preprocessing=preprocessing_sentence(Preprocessing(size=(224, 224), resize=(256, 256))),
        mistakes={"Most confident": wrong[:3], "Lowest probability for the true class": wrong[3:]},
        by_class=examples,
        wrong=len(wrong),
        corrupted={"fog": picture(1)},
    )


def evaluation_of_several_labels() -> str:
    facts = evaluation_facts(30, 80)
    facts |= {"confusion": None, "temperature": None, "corruptions": None, "resolutions": []}
    facts |= {"notes": [], "mean_precision": 0.7, "exact": 0.4, "broken": {}}
    facts["intervals_are"]["how"] = METHODS
    return evaluation_page(facts, title="photos", preprocessing="", mistakes={}, wrong=3)


def training() -> str:
    facts, samples, thumbnails = doctor_facts(3)
    run = run_facts(
        warnings=["accuracy 25.0% may still be chance: always predicting 'a' gives 24.0%; train "
                  "longer or on more images"],
        model="ViT (custom), 594,434 parameters, 32x32 pixels, patch 16, dim 192",
        stopped="interrupted at step 3 of 9; resume continues from there",
        recipe={**run_facts().recipe, "reasons": ("1,000 images of 10 classes: batches of 41",)},
        broken=BROKEN,
        facts={"objective": "labels", "best at step": "1,500 of 1,500", "written": "2026"},
        lr_finder={"lr": 1e-3, "rates": [1e-4, 1e-3, 1e-2], "losses": [2.0, 1.5, 1.8]},
        augmented=[picture(place) for place in range(2)],
    )  # fmt: skip
    test = HeldOutScore(split="test", name="accuracy", value=0.5, interval=(0.4, 0.6), images=148)
    body = data_body(facts, samples=samples, thumbnails=thumbnails)
    return training_page(run, classified(45, 300, nonfinite=2), test=test, data_report=body)


def training_without_labels() -> str:
    sheets = {step: picture(step) for step in (0, 10)}
    run = run_facts(recipe={"data": "photos"})
    return pretraining_page(run, sheets=sheets, rows=["original", "masked", "reconstructed"])


def data() -> str:
    facts, samples, thumbnails = doctor_facts(30)
    return data_page(facts, samples=samples, thumbnails=thumbnails)


def probe(method: str) -> str:
    ends = (0.5, 0.7)
    if method == "linear":
        remarks = {"features": "head", "held out": "60.0%", "chosen": "C 1"}
        rows = [ProbeRow("SGD", 0.6, ends, remarks)]
        rows += [ProbeRow("logistic regression", 0.6, ends, remarks)]
        return probe_page(probe_facts(), rows, "head")
    shots = {"images": "50", "std over 5 seeds": "1.0%"}
    rows = [ProbeRow(str(n), 0.6, ends, shots, n) for n in (1, 5)]
    return probe_page(probe_facts(), rows, "images of each class")


def benchmark() -> str:
    facts, titles, cells = benchmark_values()
    return benchmark_page(facts | {"data": "photos"}, titles, [*cells, ["a", "eager", "failed"]])


def predictions() -> str:
    cards = [ImageCard(f"{n}.jpg", picture(n), [(f"label {n}", 0.5)]) for n in range(30)]
    return predictions_page(cards, model="runs/a", broken=BROKEN)


def search() -> str:
    return search_page(ImageCard("a.jpg"), [ImageCard("b.jpg", score=0.9)], index="vectors")


def duplicates() -> str:
    group = [ImageCard(f"{n}.jpg", score=0.99) for n in range(14)]
    return duplicates_page(
        [group] * 101, index="vectors", threshold=0.97, source="chosen from the data"
    )


def runs() -> str:
    recipes = ({"data": "one", "lr": 0.1}, {"data": "two", "lr": 0.2})
    states = ("finished", "not finished")
    return runs_page(
        [
            RunSummary(f"runs/{place}", recipe, lines_of(12, place), {"state": state, "steps": 9})
            for place, (recipe, state) in enumerate(zip(recipes, states, strict=True))
        ]
    )


@cache
def drawn() -> Figures:
    """Of a model with positions, one with biases and one without attention. Labels in drawings stay
    English, so these are empty."""
    cnn = change(find("resnet18"), {"image_size": 64, "width": 8, "num_classes": 5})
    configs = {"ViT": KINDS["registers"], "bias{}": KINDS["relative positions"], "CNN": cnn}
    models = {name: build(config) for name, config in configs.items()}
    found = figures(models, what=(*FIGURES, "equivariance"), ablated=1)
    panels = [replace(one, figure=one.figure and new_figure(1, 1)) for one in found]
    return replace(found, panels=tuple(panels))


PAGES: dict[str, Callable[[], str]] = {
    "evaluation": evaluation,
    "evaluation of several labels": evaluation_of_several_labels,
    "training report": training,
    "pre-training report": training_without_labels,
    "few-shot probe": lambda: probe("fewshot"),
    "linear probe": lambda: probe("linear"),
    "comparison": lambda: comparison_page(comparison_facts()),
    "data report": data,
    "benchmark": benchmark,
    "explanation": lambda: "".join(explain_page(explanations())),
    "figures": lambda: drawn().html(),
    "predictions": predictions,
    "search": search,
    "duplicates": duplicates,
    "training runs": runs,
    "reproduction": lambda: reproduction_page(reproduction_facts()),
}


class VisibleTexts(HTMLParser):
    """What people read: text outside of styles, scripts and code, and attributes that are shown or
    read aloud."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.opened: list[str] = []
        self.feed(page.replace("<wbr>", ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value or "" for name, value in attrs if name in READ]
        if tag in ("style", "script", "code"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.opened:
            self.opened.remove(tag)

    def handle_data(self, data: str) -> None:
        if not self.opened and data.strip():
            self.texts.append(" ".join(data.split()))


def visible_texts(page: str) -> Iterator[str]:
    for text in VisibleTexts(page).texts:
        for name in NAMES:
            text = text.replace(name, "")
        yield text


@cache
def english_pieces() -> re.Pattern[str]:
    """Pieces of two words or more, between values and tags, of all texts of pages."""
    changed = [text for text, translation in read_page_texts("ko").items() if translation != text]
    pieces = {
        piece.strip(" .,;:()") for text in changed for piece in re.split(r"\{\}|<[^>]*>", text)
    }
    words = sorted(re.escape(piece) for piece in pieces if len(piece.split()) > 1)
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)")


def in_korean(make: Callable[[], str]) -> str:
    """A page as another context writes it, so that the language of this one stays."""

    def write() -> str:
        use_language("ko")
        return make()

    return copy_context().run(write)


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_in_korean_has_no_english_sentence(kind: str) -> None:
    page = in_korean(PAGES[kind])
    check_page(page)
    assert '<html lang="ko">' in page
    texts = list(visible_texts(page))
    assert any("가" <= letter <= "힣" for text in texts for letter in text)
    assert not [text for text in texts if english_pieces().search(text)]
    assert not [text for text in texts if SENTENCE.search(text)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", CLAIMS, ids=lambda path: path.stem)
def test_a_claim_in_korean_has_no_english_sentence(path: Path) -> None:
    """Those that were published, with what came of their runs."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    page = in_korean(lambda: reproduction_page(facts))
    assert not [text for text in visible_texts(page) if SENTENCE.search(text)]


def test_every_claim_is_korean() -> None:
    for claim in ALL:
        for text in (claim.sentence, claim.caveat):
            assert not SENTENCE.search(translate_to("ko", text))


@pytest.mark.parametrize("kind", PAGES)
def test_an_english_page_is_the_same_after_a_korean_one(kind: str) -> None:
    before = PAGES[kind]()
    assert in_korean(PAGES[kind]) != before
    assert chosen_language().code == "en"
    assert PAGES[kind]() == before
    assert '<html lang="en">' in before
    assert "data-texts" not in before.partition("<script")[0]
    assert not re.search("[가-힣]", before)


def test_the_checker_finds_what_is_not_translated() -> None:
    page = PAGES["evaluation"]()
    found = [text for text in visible_texts(page) if english_pieces().search(text)]
    assert len(found) > 20
    assert [text for text in visible_texts(page) if SENTENCE.search(text)]


def test_the_script_has_its_texts_in_korean() -> None:
    page = in_korean(PAGES["evaluation"])
    [texts] = re.findall(r'<body data-texts="([^"]*)"', page)
    found = json.loads(texts.replace("&#34;", '"'))
    assert found.keys() == set(texts_in_script())
    assert all(re.search("[가-힣]", text) for text in found.values())


def test_texts_of_templates_are_found() -> None:
    source = '{{ t("a  b" if x else "c {}", 1) }}{{ m.facts({"seed": 1, t("of {}", 2): 3}) }}'
    assert list(template_texts(source)) == ["a b", "c {}", "of {}", "seed"]
