"""The views Walk, What if, Compare, Data and Model in a real browser, on a real service: what they
show is what Python computes."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.pages.window_browser import (
    OVERFLOW,
    Visitor,
    accessibility_problems,
    go,
    open_browser,
    settle,
    wait_until,
)
from tests.pages.window_server import WindowServer, serve_window
from tests.serving.running import running
from tests.serving.small_models import model_of, photo
from tests.serving.test_page_attention import sharpened
from vitrail import pages
from vitrail.core.passport import Interpolation, Preprocessing
from vitrail.evaluation.classify import score
from vitrail.evaluation.corruptions import STRENGTHS
from vitrail.evaluation.metrics import compute_metrics
from vitrail.explanation.capture import capture
from vitrail.explanation.hooks import grid_layouts
from vitrail.explanation.methods import explain_tensor
from vitrail.explanation.walk import STEP_IDS
from vitrail.explanation.what_if import blur_cells, erase_cells, shift_pixels
from vitrail.models.model import Model
from vitrail.serving.launcher import Launcher
from vitrail.serving.operations import OPERATIONS, embedding_map
from vitrail.serving.operations.context import Context
from vitrail.tasks.seen_image import from_pixels, see, to_scores

VIEWS = ("walk", "what_if", "compare", "data", "model")
LABELS = ("cat", "dog", "고양이")
GRID = (8, 8)
KEYS = "|".join((*VIEWS, "views"))  # first words of the keys in strings/views.json
PAGE = Path(pages.__file__).parent / "window"
CLOSE = 2e-5
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
}
# what the view must show before it is looked at
READY = {
    "walk": ".step h2",
    "what_if": "[data-answered]",
    "compare": "[data-side=second][data-layer]",
    "data": ".gallery.small li",
    "model": ".facts dd",
}


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    torch.manual_seed(0)
    small = {"num_classes": 3, "image_size": 64}
    vit = sharpened(vitrail.create("vit_ti_16", depth=3, patch_size=8, **small))
    vit.passport = replace(vit.passport, scores={"accuracy": 0.875, "nll": 0.4})
    return {
        "vit": vit,
        "swin": sharpened(
            vitrail.create("swin_t", dim=24, depths=(2, 2), heads=(2, 4), window_size=4, **small)
        ),
    }


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images of each class, noise around a square whose colour is the class."""
    folder, noise = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number, label in enumerate(LABELS):
        (folder / label).mkdir()
        for count in range(3):
            pixels = noise.integers(0, 160, (72, 64 + 8 * count, 3), dtype=np.uint8)
            pixels[20:50, 16:48, number] = 250
            Image.fromarray(pixels).save(folder / label / f"{count}.png")
    return folder


@pytest.fixture(scope="module")
def first() -> Image.Image:
    """The sample that the page begins with."""
    pixels = np.random.default_rng(7).integers(0, 200, (80, 96, 3), dtype=np.uint8)
    pixels[20:60, 30:70] = (250, 220, 40)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def server(models: dict[str, Model], first: Image.Image, photos: Path) -> Iterator[WindowServer]:
    """Real operations in this process; one test below goes through the service itself."""
    samples = {"first": first, "second": first.transpose(Image.Transpose.ROTATE_90)}
    with serve_window(models, samples, photos) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def visitor(browser: Any, server: WindowServer) -> Iterator[Visitor]:
    found = Visitor(browser, server.address)
    yield found
    found.close()


@torch.no_grad()
def scores_of(model: Model, pixels: np.ndarray) -> list[float]:
    found: list[float] = to_scores(model, model(from_pixels(model, pixels))[0]).tolist()
    return found


def numbers(page: Any, step: str, name: str) -> list[float]:
    found = page.get_attribute(f'[data-step="{step}"] [data-name="{name}"]', "data-numbers")
    return [float(number) for number in json.loads(found)]


def bars(page: Any, when: str) -> dict[int, float]:
    """Scores by class, as the bars have them."""
    items = page.locator("#panel-what_if .answers li")
    read = f"all => all.map((one) => [Number(one.dataset.index), Number(one.dataset.{when})])"
    return {int(index): float(score) for index, score in items.evaluate_all(read)}


def answered(page: Any, **edits: Any) -> None:
    """Wait until the answer for these edits is shown."""
    wanted = json.dumps(edits)
    wait_until(
        page,
        "(() => { const found = JSON.parse("
        "document.querySelector('#panel-what_if [data-answered]')?.dataset.answered ?? '{}');"
        f"return Object.entries({wanted}).every(([key, value]) =>"
        "JSON.stringify(found[key]) === JSON.stringify(value)); })()",
    )


def cell_point(page: Any, selector: str, cell: tuple[float, float], grid: Any) -> tuple[Any, Any]:
    box = page.locator(selector).bounding_box()
    return (
        box["x"] + box["width"] * (cell[1] + 0.5) / grid[1],
        box["y"] + box["height"] * (cell[0] + 0.5) / grid[0],
    )


def press_cell(page: Any, selector: str, cell: tuple[int, int], grid: Any = GRID) -> None:
    page.locator(selector).scroll_into_view_if_needed()
    page.mouse.click(*cell_point(page, selector, cell, grid))
    settle(page)


def texts(language: str) -> dict[str, str]:
    found: dict[str, dict[str, str]] = json.loads((PAGE / "strings/views.json").read_text("utf-8"))
    return found[language]


def code() -> str:
    return "\n".join(path.read_text("utf-8") for path in sorted(PAGE.rglob("*.js")))


def test_every_key_has_a_text_and_no_text_is_left_over() -> None:
    """Keys that are put together count by their beginning."""
    used = set(re.findall(rf'"((?:{KEYS})\.[\w.]+)"', code()))
    begun = set(re.findall(rf"`((?:{KEYS})\.[\w.]*)\$\{{", code())) | {"walk.step."}
    keys = set(texts("en"))
    assert not used - keys
    assert not [key for key in keys - used if not key.startswith(tuple(begun))]


def test_korean_is_korean() -> None:
    found = texts("ko").items()
    assert [key for key, text in found if not re.search("[가-힣]", text)] == [
        "what_if.brush_size",
        "what_if.cells",
        "what_if.from_to",
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        "vit",
        "swin",
        "swinv2",
        "mobilevit",
        "mobilevitv2",
        "coatnet",
        "resnet",
        "bit",
        "mobilenetv2",
        "beit",
        "vit, hybrid",
        "vit, distilled",
    ],
)
def test_every_step_and_value_of_a_family_has_its_words(name: str) -> None:
    """And every place in them is filled by a fact of the step."""
    operation: Any = OPERATIONS["walk"]
    model = model_of(name)
    last, keys = len(grid_layouts(model)) - 1, texts("en")
    answers = [
        operation.run(Context(model), photo(), operation.read_options({"block": block}))
        for block in {0, last}
    ]
    for step in [step for answer in answers for step in answer["steps"]]:
        assert step["title_key"] in keys
        for value in step["values"].values():
            assert value["note_key"] in keys, value["note_key"]
        facts = {*step["text_args"], "top"}
        own = [key for key in keys if f"{key}.".startswith(f"walk.text.{step['id']}.")]
        assert own
        assert set(re.findall(r"\{(\w+)\}", keys[f"walk.text.{step['id']}"])) <= facts


def test_the_page_knows_every_step_and_corruption() -> None:
    keys = texts("en")
    assert not [step for step in STEP_IDS if f"walk.text.{step}" not in keys]
    listed = re.search(r"CORRUPTIONS = \[(.*?)\]", code(), re.DOTALL)
    assert listed is not None
    assert re.findall(r'"([a-z ]+)"', listed[1]) == list(STRENGTHS)


def test_the_page_has_words_for_preprocessing_and_scores() -> None:
    """In both languages: for every interpolation, and for every score that a passport may have."""
    names, logits = {"loss", "val_loss"}, np.random.default_rng(0).normal(size=(8, 7))
    for multi_label in (False, True):
        targets = np.eye(7)[np.arange(8) % 7]
        names |= set(compute_metrics(logits, targets, multi_label=multi_label).values)
        names |= set(score(logits, targets, multi_label=multi_label).values)
    assert {"accuracy", "top5", "mean_precision", "ece"} <= names
    for language in ("en", "ko"):
        known = texts(language)
        assert not [name for name in names if f"model.score.{name}" not in known]
        kinds = get_args(Interpolation)
        assert not [kind for kind in kinds if f"model.interpolation.{kind}" not in known]
        values = {"fresh", *get_args(get_type_hints(Preprocessing)["crop"])}
        assert not [one for one in values if f"views.value.{one}" not in known]


@pytest.mark.parametrize(
    "how",
    [
        Preprocessing(size=(32, 32)),
        Preprocessing(size=(224, 160), resize=(256, 256), interpolation="bicubic"),
        Preprocessing(size=(224, 224), resize=(224, 224)),
        Preprocessing(size=(224, 224), resize=(256, 256), squeeze=True, interpolation="lanczos"),
    ],
)
def test_preprocessing_is_in_the_words_of_python(how: Preprocessing) -> None:
    """The page puts its sentence together from the catalogue, `in_words` from its own parts."""
    english, parts = texts("en"), how.in_words().split(", ")
    size, scaled = (f"{high}x{wide}" for high, wide in (how.size, how.resize or how.size))
    known = [
        english["model.prepared.stretch"].format(size=scaled),
        english["model.prepared.cover"].format(size=scaled),
        english["model.prepared.crop"].format(size=size),
        english[f"model.interpolation.{how.interpolation}"],
    ]
    assert set(parts) <= set(known)


def test_the_walk_shows_the_numbers_of_the_model(
    visitor: Visitor, models: dict[str, Model], first: Image.Image
) -> None:
    """Of another patch and head after a click, too; and arrow keys go from step to step."""
    page = visitor.open("view=walk&layer=1&head=2&query=20,44")
    page.wait_for_selector(READY["walk"])
    model = models["vit"]
    with torch.no_grad(), capture(model) as maps:
        model(see(model, first).tensor)
    weights = list(maps.values())[1].weights[0, 2]
    token = 1 + 2 * GRID[1] + 5
    expected = weights[token].topk(64)
    shown = numbers(page, "softmax", "weights")
    assert sorted(shown, reverse=True) == pytest.approx(expected.values.tolist(), rel=1e-4)
    best = page.locator('[data-step="softmax"] .share-bars li').first
    assert float(best.get_attribute("data-value")) == pytest.approx(max(shown))
    wide = best.locator(".bar-after").evaluate("bar => parseFloat(bar.style.width)")
    assert wide == pytest.approx(100 * max(shown), rel=1e-3)  # as everywhere, a full bar is 100 %
    title = page.locator('[data-step="pool"] h2').inner_text()
    assert title == texts("en")["walk.step.pool.cls"]
    cards = page.locator(".step")
    assert cards.count() > 8
    for name in (".equation", ".step-facts code", ".step-text"):  # of every step
        words = cards.locator(name).all_inner_texts()
        assert len(words) == cards.count()
        assert all(one.strip() for one in words)
    assert page.locator(".code-line code").count() >= 8
    press_cell(page, "[data-name=walk]", (6, 1))
    wait_until(page, "location.hash.includes('query=52%2C12')")
    page.select_option(".walk-pickers label:nth-child(2) select", "0")
    row = list(maps.values())[1].weights[0, 0, 1 + 6 * GRID[1] + 1]
    shares = "document.querySelector('[data-step=softmax] [data-name=weights]').dataset.numbers"
    largest = float(row.max())
    wait_until(page, f"Math.abs(Math.max(...JSON.parse({shares})) - {largest}) < 1e-5")
    page.evaluate("document.activeElement.blur()")
    start = page.locator(".step[aria-current]").get_attribute("data-number")
    page.keyboard.press("ArrowRight")
    settle(page)
    now = page.locator(".step[aria-current]")
    assert int(now.get_attribute("data-number")) == int(start) + 1
    assert page.locator(".walk-title").inner_text().endswith(now.locator("h2").inner_text())


def test_erased_patches_change_the_scores_as_eager_does(
    visitor: Visitor, models: dict[str, Model], first: Image.Image
) -> None:
    """Painted with the mouse, then by keyboard; what the model saw is on the screen."""
    page = visitor.open("view=what_if")
    answered(page, erase=[])
    pixels = see(models["vit"], first).pixels
    before = scores_of(models["vit"], pixels)
    assert bars(page, "before") == pytest.approx(dict(enumerate(before)), abs=CLOSE)
    stage = "[data-name=what_if]"
    page.mouse.move(*cell_point(page, stage, (2, 3), GRID))
    page.mouse.down()
    page.mouse.move(*cell_point(page, stage, (2, 5), GRID), steps=6)
    page.mouse.up()
    cells = [(2, 3), (2, 4), (2, 5)]
    answered(page, erase=cells)
    after = scores_of(models["vit"], erase_cells(pixels, cells, GRID))
    assert bars(page, "after") == pytest.approx(dict(enumerate(after)), abs=CLOSE)
    assert after != pytest.approx(before, abs=1e-3)
    page.focus(stage)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    cells.append((3, 5))
    answered(page, erase=cells)
    after = scores_of(models["vit"], erase_cells(pixels, cells, GRID))
    assert bars(page, "after") == pytest.approx(dict(enumerate(after)), abs=CLOSE)
    assert "row 4, column 6: erased" in page.locator("#said").inner_text().lower()
    page.get_by_role("button", name="Undo all edits").click()
    answered(page, erase=[])
    wait_until(page, "!location.hash.includes('erase')")


@pytest.mark.slow
def test_positions_that_move_along_leave_a_vit_as_it_is(
    visitor: Visitor, models: dict[str, Model], first: Image.Image
) -> None:
    page = visitor.open("view=what_if&permute=3&along=1")
    answered(page, permute=3, permute_positions=True)
    assert bars(page, "after") == pytest.approx(bars(page, "before"), abs=1e-4)
    page.get_by_label("Positions move along").uncheck()
    answered(page, permute=3, permute_positions=False)
    assert bars(page, "after") != pytest.approx(bars(page, "before"), abs=1e-3)
    page.get_by_role("button", name="Undo all edits").click()
    page.get_by_role("button", name="One pixel to the right").click()
    page.get_by_role("button", name="One pixel to the right").click()
    answered(page, permute=None, shift=[2, 0])
    moved = shift_pixels(see(models["vit"], first).pixels, 2, 0)
    after = scores_of(models["vit"], moved)
    assert bars(page, "after") == pytest.approx(dict(enumerate(after)), abs=CLOSE)
    page.select_option("select:has(option[value=fog])", "fog")
    answered(page, corruption={"name": "fog", "severity": 3})
    go(page, "view=what_if&model=swin")
    page.wait_for_selector("html[data-inspected]")
    wait_until(page, "document.querySelector('#panel-what_if .check input').disabled")


@pytest.mark.slow
def test_blurred_patches_change_the_scores_as_eager_does(
    visitor: Visitor, models: dict[str, Model], first: Image.Image
) -> None:
    page = visitor.open("view=what_if&tool=blur&brush=2")
    answered(page, blur=[])
    press_cell(page, "[data-name=what_if]", (3, 3))
    wait_until(page, "location.hash.includes('blur=')")
    wait_until(page, "document.querySelector('[data-answered]').dataset.answered.includes('[3,3]')")
    cells = page.evaluate("JSON.parse(document.querySelector('[data-answered]').dataset.answered)")
    blurred = [(row, column) for row, column in cells["blur"]]
    assert len(blurred) == 4
    after = scores_of(models["vit"], blur_cells(see(models["vit"], first).pixels, blurred, GRID))
    assert bars(page, "after") == pytest.approx(dict(enumerate(after)), abs=CLOSE)


@pytest.mark.slow
def test_of_many_changes_the_last_one_wins(
    visitor: Visitor, models: dict[str, Model], first: Image.Image
) -> None:
    page = visitor.open("view=what_if")
    answered(page, erase=[])
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    pixels = see(models["vit"], first).pixels
    for count in range(1, 13):
        go_fast = f"location.hash = 'view=what_if&erase=0-{count}'"
        page.evaluate(go_fast)
    cells = [(number // 8, number % 8) for number in range(13)]
    answered(page, erase=cells)
    assert sum("what_if" in url for url in asked) <= 3
    after = scores_of(models["vit"], erase_cells(pixels, cells, GRID))
    assert bars(page, "after") == pytest.approx(dict(enumerate(after)), abs=CLOSE)


@pytest.mark.slow
def test_an_explanation_is_tested_by_erasing_what_it_marks(
    visitor: Visitor, models: dict[str, Model], first: Image.Image
) -> None:
    page = visitor.open("view=what_if&test_method=rollout&test_share=20")
    answered(page, erase=[])
    card = page.locator("[data-name=erasure-test]")
    card.get_by_role("button", name="Run the test").click()
    wait_until(page, "document.querySelectorAll('.line-chart tbody tr').length === 16")
    card.locator("summary").click()
    read = "rows => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
    rows = card.locator("tbody tr").evaluate_all(read)
    marked = {share: float(score.rstrip("%")) / 100 for _, share, score in rows[:8]}
    model, seen = models["vit"], see(models["vit"], first)
    heat = explain_tensor(model, seen.tensor, "rollout").map[0]
    order = torch.argsort(-heat.flatten(), stable=True)[: round(0.2 * 64)].tolist()
    before = scores_of(model, seen.pixels)
    best = int(np.argmax(before))
    after = scores_of(model, erase_cells(seen.pixels, [(n // 8, n % 8) for n in order], GRID))
    assert marked["0%"] == pytest.approx(before[best], abs=0.006)
    assert marked["20%"] == pytest.approx(after[best], abs=0.006)
    assert "mean of 3 draws" in card.locator(".chart-key").inner_text()
    verdict = card.locator("[data-verdict]").get_attribute("data-verdict")
    means = [
        np.mean([float(row[2].rstrip("%")) for row in part[1:]]) for part in (rows[:8], rows[8:])
    ]
    assert (
        verdict == "passes" if means[0] < means[1] - 3 else verdict in ("even", "fails", "passes")
    )
    card.get_by_role("button", name="Erase them on the photo").click()
    answered(page, erase=sorted([n // 8, n % 8] for n in order))


@pytest.mark.slow
def test_the_pickers_of_a_comparison_move_both_sides(
    visitor: Visitor, models: dict[str, Model], first: Image.Image
) -> None:
    page = visitor.open("view=compare&other_model=swin&other_image=same")
    page.wait_for_selector(READY["compare"])

    def sides(key: str) -> list[int]:
        read = f"all => all.map((one) => Number(one.dataset.{key}))"
        found: list[int] = page.locator("[data-side]").evaluate_all(read)
        return found

    assert sides("layer") == [2, 3]  # the last of three and of four
    page.locator(".compare-pickers input[type=range]").fill("1")
    settle(page)
    assert sides("layer") == [1, 1]  # a third of the way
    page.locator(".compare-pickers select").first.select_option("1")
    settle(page)
    assert sides("head") == [1, 1]
    press_cell(page, "#compare-first", (2, 6))
    swin_grid = (16, 16)
    assert sides("token") == [1 + 2 * 8 + 6, 5 * 16 + 13]
    press_cell(page, "#compare-second", (10, 3), swin_grid)
    assert sides("token") == [1 + 5 * 8 + 1, 10 * 16 + 3]
    with torch.no_grad():
        for name, layer, cell, place in (("vit", 1, (5, 1), 0), ("swin", 1, (10, 3), 1)):
            with capture(models[name]) as maps:
                models[name](see(models[name], first).tensor)
            expected = list(maps.values())[layer].on_grid(cell)[0, 1].flatten()
            assert sides("brightest")[place] == int(expected.argmax())
    second = page.locator("[data-side=second] .answers li").first.get_attribute("data-before")
    swin = scores_of(models["swin"], see(models["swin"], first).pixels)
    assert float(second) == pytest.approx(max(swin), abs=CLOSE)


@pytest.mark.slow
def test_two_photos_are_compared_and_a_broken_file_leaves_them(
    visitor: Visitor, models: dict[str, Model], first: Image.Image
) -> None:
    page = visitor.open("view=compare&other_model=vit&other_image=sample:second")
    page.wait_for_selector(READY["compare"])
    other = first.transpose(Image.Transpose.ROTATE_90)
    read = "all => all.map((one) => Number(one.dataset.before))"
    for side, image in (("first", first), ("second", other)):
        expected = sorted(scores_of(models["vit"], see(models["vit"], image).pixels), reverse=True)
        found = page.locator(f"[data-side={side}] .answers li").evaluate_all(read)
        assert found == pytest.approx(expected, abs=CLOSE)
    before = page.locator("[data-side=second] .answers").inner_text()
    broken = {"name": "b.png", "mimeType": "image/png", "buffer": b"words"}
    page.set_input_files("#panel-compare input[type=file]", broken)
    page.wait_for_selector("#notice:not([hidden])")
    assert "b.png cannot be shown" in page.locator("#notice").inner_text()
    wait_until(
        page, "document.querySelector('[data-side=second] h2').textContent.includes('second')"
    )
    page.wait_for_selector(READY["compare"])
    assert page.locator("[data-side=second] .answers").inner_text() == before


@pytest.mark.slow
def test_nothing_of_another_comparison_is_shown_under_new_names(visitor: Visitor) -> None:
    """Another model is chosen, and the server takes its time."""
    page = visitor.open("view=compare&model=vit&other_model=swin")
    page.wait_for_selector(READY["compare"])
    held: list[Any] = []
    page.route("**/v1/samples?*", lambda route: held.append(route))
    go(page, "view=compare&model=swin&other_model=vit")
    page.wait_for_selector("[data-side=second].unfilled", state="attached")
    assert page.locator("[data-side=second] .say").is_hidden()
    assert page.locator("[data-side=second]").get_attribute("data-layer") is None
    page.locator(".compare-pickers input[type=range]").fill("1")  # has nothing to move yet
    for route in held:
        route.continue_()
    page.unroute("**/v1/samples?*")
    page.wait_for_selector(READY["compare"])
    assert "vit" in page.locator("[data-side=second] h2").inner_text()


@pytest.mark.slow
def test_networks_without_attention_have_maps_in_its_place(
    browser: Any, first: Image.Image
) -> None:
    """Their maps are explanations; nothing speaks of attention that is not there."""
    with serve_window({name: model_of(name) for name in ("resnet", "bit")}, {"one": first}) as own:
        visitor = Visitor(browser, own.address)
        page = visitor.open("view=attention&method=gradcam")
        wait_until(page, "document.querySelector('#say').textContent.includes('Grad-CAM')")
        title = page.locator("#attention-title")
        assert title.inner_text() == "Which parts of the photo drive the prediction?"
        page.click("#language")
        settle(page)
        assert re.search("[가-힣]", title.inner_text())
        page.click("#language")
        go(page, "view=compare&method=gradcam")
        page.wait_for_selector(READY["compare"])
        assert page.get_by_text("How far attention reaches").is_hidden()
        visitor.close()


@pytest.mark.slow
def test_distances_of_the_photo_stand_beside_those_of_the_data(
    visitor: Visitor, models: dict[str, Model], photos: Path
) -> None:
    page = visitor.open("view=attention")
    assert page.locator("#distance .chart-range").count() == 0
    page.click("#distance-data")
    wait_until(page, "document.querySelectorAll('#distance .chart-range').length === 9")
    assert "9 images" in page.locator("#distance-note").inner_text()


@pytest.mark.slow
def test_the_map_can_be_made_by_umap(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen on the page: principal components are shown until the points are there."""
    pytest.importorskip("umap", reason="umap-learn is not installed")
    monkeypatch.setattr(embedding_map, "FEWEST_FOR_UMAP", 5)
    page = visitor.open("view=data")
    page.wait_for_selector("[data-method=pca]")
    page.locator("select:has(option[value=umap])").select_option("umap")
    page.wait_for_selector("[data-method=umap]", timeout=300_000)
    assert "UMAP of the embeddings" in page.locator("[data-method=umap]").inner_text()
    assert "places=umap" in page.url


@pytest.mark.slow
def test_a_map_that_is_being_computed_is_asked_for_again_with_the_view(visitor: Visitor) -> None:
    """Also the table of its points follows it."""
    page, computed = visitor.open("view=data"), list[bool]()
    page.wait_for_selector("[data-method=pca]")
    page.click("#panel-data details summary")

    def answer(route: Any) -> None:
        found = route.fetch(url=route.request.url.replace("map=umap", "map=pca")).json()
        pending = None if computed else "umap"
        points = [[4321.0, 0.0] for _ in found["images"]]
        found["map"] |= {"points": points, "pending": pending, "methods": ["pca", "umap"]}
        route.fulfill(json=found)

    page.route("**/v1/data?*map=umap*", answer)
    go(page, "view=data&places=umap")
    wait_until(page, "document.querySelector('#panel-data').innerText.includes('being computed')")
    assert "4,321" in page.locator("#panel-data details tbody").inner_text()
    go(page, "view=attention&places=umap")
    computed.append(True)
    go(page, "view=data&places=umap")
    wait_until(page, "!document.querySelector('#panel-data').innerText.includes('being computed')")


@pytest.mark.slow
def test_a_link_to_a_map_that_cannot_be_made_shows_the_other(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_map, "has_umap", lambda: False)
    page = visitor.open("view=data&places=umap")
    page.wait_for_selector("[data-method=pca]")
    assert "umap-learn" in page.locator("#notice").inner_text()
    wait_until(page, "!location.hash.includes('umap')")


@pytest.mark.slow
def test_a_link_to_an_image_that_is_not_there_says_so(visitor: Visitor) -> None:
    page = visitor.open("view=data&image=data:999")
    assert "id must be from 0 to 8, got 999" in page.locator("#notice").inner_text()
    assert page.locator(".sample[aria-pressed=true]").count() == 1


@pytest.mark.slow
def test_the_gallery_of_mistakes_opens_an_image(
    visitor: Visitor, models: dict[str, Model], photos: Path
) -> None:
    page = visitor.open("view=data")
    page.wait_for_selector(READY["data"])
    model = models["vit"]
    files = sorted(photos.glob("*/*.png"))
    predicted = {file: vitrail.predict(model, [file])[0] for file in files}
    wrong = [file for file in files if predicted[file].label != file.parent.name]
    items = page.locator("#panel-data .gallery:not(.small) li")
    assert wrong
    assert items.count() == len(wrong)
    shown = items.first.locator("button > span").all_inner_texts()
    surest = max(wrong, key=lambda file: predicted[file].score or 0)
    assert shown == [surest.parent.name, f"predicted as\n{predicted[surest].label}"]
    items.first.locator("button").click()
    image = items.first.get_attribute("data-id")
    wait_until(page, f"location.hash.includes('image=data%3A{image}')")
    score = round(100 * (predicted[surest].score or 0))
    wait_until(page, f"document.getElementById('answer').textContent.includes('({score}%)')")
    assert predicted[surest].label in page.locator("#answer").inner_text()
    nearest = page.locator("#panel-data .gallery.small li").first
    wait_until(page, f"document.querySelector('.gallery.small li')?.dataset.id === '{image}'")
    assert nearest.inner_text() == "1.00"
    press_cell(page, "[data-name=data]", (3, 3))
    page.wait_for_selector(".gallery.small svg rect")
    assert page.locator(".gallery.small li").first.get_attribute("data-id") == image
    page.focus(".scatter")
    before = page.evaluate("location.hash")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    wait_until(page, f"location.hash !== {json.dumps(before)}")
    page.get_by_role("button", name="Explain it").click()
    assert page.locator("#tab-attention").get_attribute("aria-selected") == "true"


@pytest.mark.slow
def test_the_model_view_has_its_facts_and_commands(
    visitor: Visitor, models: dict[str, Model]
) -> None:
    page = visitor.open("view=model")
    page.wait_for_selector(READY["model"])
    count = sum(weights.numel() for weights in models["vit"].parameters())
    assert f"{count:,}" in page.locator("[data-fact=parameters]").inner_text()
    how = models["vit"].passport.preprocessing.in_words()
    assert page.locator("[data-fact=preprocessing]").inner_text() == how
    assert page.locator("[data-score=accuracy]").inner_text() == "87.5%"
    page.click("#language")
    settle(page)
    korean = page.locator(".facts").all_inner_texts()
    assert "비율" in page.locator("[data-fact=preprocessing]").inner_text()
    assert "정확도" in korean[1]
    page.click("#language")
    settle(page)
    rows = dict(
        page.locator("table.record tr").evaluate_all(
            "rows => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
        )
    )
    assert rows["depth"] == "3"
    assert rows["labels"] == ", ".join(LABELS)
    assert page.locator(".filters img").count() == 28
    assert page.locator("img.positions").count() == 1
    named = page.locator(".commands li > span").all_inner_texts()
    assert len(set(named)) == len(named) == 3
    command = page.locator(".commands pre").first.inner_text()
    assert command == "vitrail export MODEL --out vit.onnx"  # where it is, nobody is told
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".commands button").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == command
    go(page, "view=model&model=swin")
    wait_until(page, "document.querySelector('.facts dd')?.textContent === 'swin'")


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("model", ["vit", "swin"])
def test_a_phone_in_both_languages(view: str, model: str, visitor: Visitor) -> None:
    """Nothing sticks out of 360 pixels, and no text is missing."""
    page = visitor.open(f"view={view}&model={model}", **PHONE)
    page.wait_for_selector(READY[view])
    settle(page)
    assert page.evaluate(OVERFLOW) == 0
    page.click("#language")
    settle(page)
    assert page.locator("html").get_attribute("lang") == "ko"
    assert page.evaluate(OVERFLOW) == 0
    words = page.locator(f"#panel-{view}").inner_text()
    assert re.search("[가-힣]", words)
    # a key that has no text, or a place in a text that was not filled
    assert not re.findall(rf"\b(?:{KEYS}|attention)\.(?!py\b)[a-z_.]+|\{{\w+\}}", words)


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(view: str, theme: str, visitor: Visitor) -> None:
    page = visitor.open(f"view={view}&theme={theme}")
    page.wait_for_selector(READY[view])
    settle(page)
    assert accessibility_problems(page) == []


@pytest.mark.slow
def test_scrolling_walks_and_a_link_leads_to_its_step(visitor: Visitor) -> None:
    page = visitor.open("view=walk&model=swin&layer=1&step=window")
    page.wait_for_selector('.step[data-step=window][aria-current="step"]')
    box = page.locator(".step[data-step=window]").bounding_box()
    assert 0 <= box["y"] < 900
    assert page.get_attribute("[data-name=walk]", "data-scene") == "windows"
    page.wait_for_timeout(800)  # a jump is over
    page.mouse.move(900, 500)
    page.mouse.wheel(0, 2500)
    wait_until(page, "document.querySelector('.step[aria-current]').dataset.step !== 'window'")
    wait_until(page, "!location.hash.includes('step=window')")
    now = page.locator(".step[aria-current]").bounding_box()
    assert now["y"] < 900
    assert now["y"] + now["height"] > 0


@pytest.mark.slow
def test_motion_is_only_for_those_who_want_it(visitor: Visitor) -> None:
    """Patches lift off over time; with reduced motion they are lifted at once."""
    pixels = "document.querySelector('[data-name=walk] canvas').toDataURL()"
    still = visitor.open("view=walk")
    still.wait_for_selector(READY["walk"])
    end = still.evaluate(pixels)
    still.wait_for_timeout(300)
    assert still.evaluate(pixels) == end
    moving = visitor.open("view=walk", reduced_motion="no-preference")
    moving.wait_for_selector(READY["walk"])
    moving.get_by_role("button", name="Play again").click()
    moving.wait_for_timeout(200)
    assert moving.evaluate(pixels) != end
    wait_until(moving, f"{pixels} === {json.dumps(end)}")


@pytest.mark.slow
def test_the_walk_names_the_cell_that_it_marks(visitor: Visitor) -> None:
    """The patches of a later stage are cells of a finer grid."""
    page = visitor.open("model=swin&view=walk&layer=2&query=20,20")
    page.wait_for_selector(READY["walk"])
    words = page.locator(".walk-now").inner_text()
    assert "Following row 3, column 3 through Stage 2 block 1" in words
    cell = "row 6, column 6 of 16 × 16 cells, the middle of row 3, column 3 of 8 × 8"
    assert f"Marked in this step: {cell}" in words
    go(page, "model=swin&view=walk&layer=2&query=20,20&step=qkv")
    assert "Marked" not in page.locator(".walk-now").inner_text()


@pytest.mark.slow
def test_data_that_are_being_computed_are_announced(visitor: Visitor) -> None:
    page, held = visitor.open("view=model"), list[Any]()
    for address, link, words in (
        ("**/v1/data?*", "view=data", "Looking at the images"),
        ("**/v1/neighbours*", "view=data&lang=en", "Comparing with the images"),
    ):
        page.route(address, lambda route: held.append(route))
        go(page, link)
        if "neighbours" in address:
            page.wait_for_selector(READY["data"])
            press_cell(page, "[data-name=data]", (1, 1))
        page.wait_for_selector(f"#panel-data .computing:visible >> text={words}")
        page.wait_for_selector("#panel-data .computing .spinner:visible")
        while held:
            held.pop().continue_()
        page.unroute(address)
        page.wait_for_selector(READY["data"])
        assert not page.locator("#panel-data .computing:visible").count()


@pytest.mark.slow
def test_a_server_that_cannot_answer_yet_is_not_taken_for_one_without_data(
    visitor: Visitor,
) -> None:
    page, asked = visitor.open("view=model"), list[Any]()

    def refuse_first(route: Any) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(status=503, json={"error": "a process is starting", "code": 503})
        else:
            route.continue_()

    page.route("**/v1/data?*", refuse_first)
    go(page, "view=data")
    page.wait_for_selector(READY["data"])
    assert page.locator("#notice").is_hidden()
    assert len(asked) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("view", "address"), [("data", "/v1/data"), ("model", "/v1/model")])
def test_nothing_is_asked_of_a_model_that_is_being_loaded(
    view: str, address: str, visitor: Visitor, server: WindowServer
) -> None:
    server.requests.clear()
    server.loading = 2
    page = visitor.open(f"view={view}")
    page.wait_for_selector(READY[view])
    before = server.requests[: server.requests.index(f"GET {address}")]
    assert before.count("GET /v1/models") == 3


@pytest.mark.slow
def test_classes_that_the_data_do_not_have_are_neither_right_nor_wrong(
    browser: Any, models: dict[str, Model], first: Image.Image, photos: Path
) -> None:
    other = sharpened(vitrail.create("vit_ti_16", depth=1, num_classes=3, image_size=64))
    other.passport = replace(other.passport, labels=("a", "b", "c"))
    with serve_window({"other": other}, {"first": first}, photos) as server:
        visitor = Visitor(browser, server.address)
        page = visitor.open("view=data")
        page.wait_for_selector(READY["data"])
        assert "other classes than the data" in page.locator("[data-name=foreign]").inner_text()
        assert not page.locator("#panel-data .wrong").count()
        assert not page.get_by_role("button", name="Mistakes").count()
        visitor.close()


@pytest.mark.slow
def test_a_link_to_a_model_that_is_not_there_says_so(visitor: Visitor) -> None:
    page = visitor.open("model=nosuch")
    assert "no model called nosuch" in page.locator("#notice").inner_text()
    page.click("#notice-close")
    go(page, "model=nosuch&view=lens")
    page.wait_for_selector("#notice:not([hidden])")
    assert "Shown is vit" in page.locator("#notice").inner_text()
    wait_until(page, "!location.hash.includes('nosuch')")


@pytest.mark.slow
def test_nothing_is_cut_or_broken_within_a_word(visitor: Visitor) -> None:
    """Names of fields are one line each, choices show what is chosen, and an arrow says that there
    are more tabs."""
    lines = "all => all.filter((one) => one.offsetParent && one.offsetHeight > 34).length"
    page = visitor.open("view=compare", **PHONE)
    for view in ("compare", "what_if"):
        go(page, f"view={view}")
        page.wait_for_selector(READY[view])
        assert page.locator(f"#panel-{view} label > span").evaluate_all(lines) == 0
    assert page.locator("nav.more-right.more-left").count() == 1
    wide = visitor.open("view=what_if&corrupt=impulse noise")
    wide.wait_for_selector(READY["what_if"])
    edits = wide.locator(".edits").bounding_box()
    for part in (".edits select", ".edits output"):
        box = wide.locator(part).last.bounding_box()
        assert box["x"] + box["width"] <= edits["x"] + edits["width"] + 1
    assert wide.locator(".edits select").bounding_box()["width"] > 140


@pytest.mark.slow
def test_the_chart_of_a_comparison_fills_its_card(visitor: Visitor) -> None:
    page = visitor.open("view=compare")
    page.wait_for_selector("#panel-compare .line-chart")
    card = page.locator("#panel-compare .card").last.bounding_box()
    chart = page.locator("#panel-compare .line-chart svg").first.bounding_box()
    assert chart["width"] > 0.9 * card["width"]


@pytest.mark.slow
def test_without_data_the_view_says_how(
    browser: Any, models: dict[str, Model], first: Image.Image
) -> None:
    with serve_window({"vit": models["vit"]}, {"first": first}) as bare:
        visitor = Visitor(browser, bare.address)
        page = visitor.open("view=data")
        page.wait_for_selector("#panel-data pre")
        assert "--data" in page.locator("#panel-data pre").inner_text()
        assert page.locator("#notice").is_hidden()
        visitor.close()


@pytest.mark.slow
def test_every_view_on_the_service_itself(
    browser: Any, launcher: Launcher, models: dict[str, Model], photos: Path, tmp_path: Path
) -> None:
    """Its own processes, policy and samples: an image of the data is erased, and the scores are
    those of Python."""
    vitrail.save(models["vit"], tmp_path / "vit")
    with running(launcher, str(tmp_path / "vit"), data=(str(photos),)) as service:
        visitor = Visitor(browser, f"{service.address}/")
        for view in VIEWS:
            page = visitor.open(f"view={view}")
            page.wait_for_selector(READY[view])
        page = visitor.open("view=what_if&image=data:0&erase=9-11")
        answered(page, erase=[(1, 1), (1, 2), (1, 3)])
        pixels = see(models["vit"], Image.open(min(photos.glob("*/*.png")))).pixels
        after = scores_of(models["vit"], erase_cells(pixels, [(1, 1), (1, 2), (1, 3)], GRID))
        assert bars(page, "after") == pytest.approx(dict(enumerate(after)), abs=CLOSE)
        visitor.close()
