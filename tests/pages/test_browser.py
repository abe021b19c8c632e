"""Pages in a real browser: the script sorts, chooses, zooms and picks, and nothing overflows."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.pages.test_pages import evaluated
from tests.pages.values import (
    benchmark_values,
    classified,
    doctor_facts,
    lines_of,
    picture,
    run_facts,
)
from vitrail.pages.benchmark import benchmark_page
from vitrail.pages.data_report import data_page
from vitrail.pages.predictions import ImageCard, duplicates_page, predictions_page, search_page
from vitrail.pages.runs import RunSummary, runs_page
from vitrail.pages.training import training_page

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "<img src=x onerror=alert(1)>"
KOREAN = "강아지와 고양이"
LONG = "incomprehensibilities_and_counterrevolutionaries_of_the_antidisestablishmentarians"
NUMBER = re.compile(r"[\d.]+")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; playwright drives the one that is installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser is installed: needs one of {', '.join(BROWSERS)}")
    with api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page; at the end it must have logged no error and run no foreign script."""
    contexts: list[Any] = []
    problems: list[Any] = []

    def note_error(message: Any) -> None:
        if message.type == "error":
            problems.append(message.text)

    def note_request(request: Any) -> None:
        if request.url.startswith("http"):
            problems.append(request.url)

    def shown(html: str, *, width: int = 1280, script: bool = True, theme: str = "light") -> Any:
        file = tmp_path / "report.html"
        file.write_text(html, encoding="utf-8")
        size = {"width": width, "height": 900}
        context = browser.new_context(
            viewport=size, color_scheme=theme, java_script_enabled=script, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", note_error)
        page.on("pageerror", lambda error: problems.append(error))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", note_request)
        page.goto(file.as_uri())
        return page

    yield shown
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture(scope="module")
def training() -> str:
    lr_finder = {"lr": 1e-3, "rates": [1e-4, 1e-3, 1e-2], "losses": [2.0, 1.5, 1.8]}
    run = run_facts(lr_finder=lr_finder, augmented=[picture(place) for place in range(4)])
    return training_page(run, classified(37, 800))


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    model = vitrail.create(
        "vit_ti_16", depth=2, dim=24, heads=3, image_size=48, num_classes=3, head="linear"
    )
    pixels = np.random.default_rng(0).integers(0, 256, (60, 48, 3), dtype=np.uint8)
    out = tmp_path_factory.mktemp("explained") / "report.html"
    vitrail.explain(model, pixels, method="attention", verdict=False).save_html(out)
    return out.read_text(encoding="utf-8")


def column(table: Any, number: int) -> list[str]:
    cells = table.locator(f"tbody tr td:nth-child({number})").all_inner_texts()
    return [str(cell) for cell in cells]


def test_a_heading_sorts_its_column_by_mouse_and_by_keyboard(show: Any, training: str) -> None:
    page = show(training)
    table = page.locator("#classes table")
    assert page.locator("#classes tbody tr:visible").count() == 25
    heading = table.locator("thead th", has_text="images")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    values = [int(value) for value in column(table, 2)]
    assert values == sorted(values, reverse=True)
    assert len(values) == 37
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [int(value) for value in column(table, 2)] == sorted(values)
    table.locator("thead th", has_text="class").locator("button").click()
    assert heading.get_attribute("aria-sort") is None
    names = column(table, 1)
    assert names.index("samoyed 4") < names.index("samoyed 10")


def test_undefined_values_sort_last(show: Any, training: str) -> None:
    page = show(training)
    table = page.locator("#classes table")
    button = table.locator("thead th", has_text="recall").locator("button")
    for _ in range(2):
        button.click()
        values = column(table, 4)
        assert "–" in values
        assert set(values[values.index("–") :]) == {"–"}


def test_the_filter_finds_rows_beyond_the_first(show: Any, training: str) -> None:
    page = show(training)
    page.get_by_label("Filter classes").fill("SAMOYED")
    shown = page.locator("#classes tbody tr:visible td:first-child").all_inner_texts()
    assert len(shown) == 6
    assert all(name.startswith("samoyed") for name in shown)
    page.get_by_label("Filter classes").fill("")
    assert page.locator("#classes tbody tr:visible").count() == 25


def test_a_confusion_shows_its_images(show: Any, training: str) -> None:
    page = show(training)
    gallery = page.locator("[data-choose] figure")
    total = gallery.count()
    figure = page.locator("[data-choose] figure[data-truth]").first
    truth, predicted = (figure.get_attribute(f"data-{what}") for what in ("truth", "predicted"))
    place = f'[data-truth="{truth}"][data-predicted="{predicted}"]'
    assert not figure.is_visible()
    page.locator(f"table.cells a{place}").click()
    assert figure.is_visible()
    visible = page.locator("[data-choose] figure:visible")
    assert 0 < visible.count() < total
    assert visible.count() == page.locator(f"[data-choose] figure{place}").count()
    assert page.locator("td.chosen").count() == 1
    assert "predicted as" in page.locator("#by-class [role=status]").inner_text()
    page.get_by_role("button", name="Show all").click()
    assert page.locator("[data-choose] figure:visible").count() == total


def test_a_class_shows_its_images_by_keyboard(show: Any, training: str) -> None:
    page = show(training)
    truth = page.locator("[data-choose] figure[data-truth]").first.get_attribute("data-truth")
    page.locator(f'#classes a[data-truth="{truth}"]').focus()
    page.keyboard.press("Enter")
    places = page.locator("[data-choose] figure:visible").evaluate_all(
        "figures => figures.map((figure) => figure.dataset.truth)"
    )
    assert set(places) == {truth}


def drag(page: Any, svg: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    for place, action in ((start, page.mouse.down), (end, page.mouse.up)):
        page.mouse.move(
            box["x"] + place[0] * box["width"], box["y"] + place[1] * box["height"], steps=3
        )
        action()


def test_a_curve_zooms_by_dragging_and_returns(show: Any, training: str) -> None:
    page = show(training)
    figure = page.locator("figure.chart").first
    svg, reset = figure.locator("svg"), figure.get_by_role("button", name="Reset zoom")
    assert not reset.is_visible()
    drag(page, svg, (0.4, 0.3), (0.7, 0.7))
    assert reset.is_visible()
    line = svg.locator("g.series path").first.get_attribute("transform")
    scale = [float(value) for value in NUMBER.findall(line)]
    assert scale[0] > 2
    assert not svg.locator("g.x-axis").is_visible()
    assert svg.locator("g:not([class]) > text:visible").count() >= 4
    assert svg.locator("line.rule").count() >= 2
    reset.click()
    assert svg.locator("g.x-axis").is_visible()
    drag(page, svg, (0.4, 0.3), (0.7, 0.7))
    svg.dblclick(position={"x": 150, "y": 60})
    assert not reset.is_visible()


def test_a_curve_with_a_logarithmic_axis_zooms_too(show: Any, training: str) -> None:
    page = show(training)
    figure = page.locator("figure.chart", has_text="Learning rate finder")
    drag(page, figure.locator("svg"), (0.3, 0.2), (0.7, 0.8))
    assert figure.get_by_role("button", name="Reset zoom").is_visible()
    assert "e-" in " ".join(figure.locator("svg > g > text").all_text_contents())


def test_a_curve_is_read_by_mouse_and_by_keyboard(show: Any, training: str) -> None:
    page = show(training)
    figure = page.locator("figure.chart").first
    svg, words = figure.locator("svg"), figure.locator(".reading span")
    svg.hover(position={"x": 200, "y": 60})
    assert re.fullmatch(r"step [\d,]+, training [\d.]+, validation [\d.–]+", words.inner_text())
    svg.focus()
    for _ in range(80):
        page.keyboard.press("ArrowRight")
    assert words.inner_text().startswith("step 1,500, ")
    page.keyboard.press("ArrowLeft")
    assert words.inner_text().startswith("step 1,475, ")
    page.keyboard.press("+")
    assert figure.get_by_role("button", name="Reset zoom").is_visible()
    page.keyboard.press("Escape")
    assert not figure.get_by_role("button", name="Reset zoom").is_visible()


def drawn(page: Any) -> list[int]:
    """The pixels of the picker's map."""
    page.wait_for_timeout(50)
    pixels = """canvas => Array.from(
        canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data)"""
    return list(page.locator(".pick canvas").evaluate(pixels))


def test_the_picker_shows_any_patch_layer_and_head(show: Any, explained: str) -> None:
    page = show(explained)
    page.wait_for_selector(".pick canvas")
    status = page.locator(".picker [role=status]")
    pooled = drawn(page)
    assert any(pooled)
    page.locator(".pick").click(position={"x": 5, "y": 5})
    assert "row 1 of 3, column 1 of 3" in status.inner_text()
    corner = drawn(page)
    assert corner != pooled
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "row 2 of 3, column 2 of 3" in status.inner_text()
    assert drawn(page) != corner
    page.get_by_role("button", name="Pooled output").click()
    assert drawn(page) == pooled
    page.get_by_label("Head").select_option("head 1")
    one_head = drawn(page)
    assert one_head != pooled
    page.get_by_label("Layer").select_option(index=0)
    assert drawn(page) != one_head


def test_the_slider_fades_the_maps_but_not_the_image(show: Any, explained: str) -> None:
    page = show(explained)
    opacity = "image => getComputedStyle(image).opacity"
    heat = page.locator(".grid .overlay img + img").first
    image = page.locator(".grid .overlay img:first-child").nth(1)
    slider = page.get_by_label("Opacity of the maps")
    for value in ("0", "30", "100"):
        slider.fill(value)
        assert float(heat.evaluate(opacity)) == int(value) / 100
        assert float(image.evaluate(opacity)) == 1


def test_without_the_script_everything_is_there(show: Any, training: str, explained: str) -> None:
    page = show(training, script=False)
    assert page.locator("#classes tbody tr:visible").count() == 25
    page.get_by_text("Show all 37 rows").click()
    assert page.locator("#classes tbody tr:visible").count() == 37
    page.locator("summary", has_text="examples of each confusion").click()
    assert page.locator("[data-choose] figure:visible").count() > 20
    assert not page.get_by_text("Click a number").is_visible()
    page = show(explained, script=False)
    assert page.locator(".grid .overlay img + img").is_visible()
    assert not page.get_by_label("Opacity of the maps").is_visible()
    page.locator("summary", has_text="All layers and heads").click()
    assert page.get_by_alt_text("layers and heads").is_visible()


def hostile_predictions() -> str:
    names = (HOSTILE, KOREAN, LONG)
    images = [
        ImageCard(f"{name}/{place}.jpg", picture(place), [(name, 0.5), (LONG, 0.1)])
        for place, name in enumerate(names * 2)
    ]
    return predictions_page(images, model=HOSTILE, broken={f"{LONG}.jpg": HOSTILE})


def alike(number: int) -> list[ImageCard]:
    return [ImageCard(f"{LONG}/{n}.jpg", picture(n), score=1 - n / 50) for n in range(number)]


PAGES: dict[str, Callable[[], str]] = {
    "evaluation of 2": lambda: evaluated(2, 40),
    "evaluation of 1,000": lambda: evaluated(1000, 4000),
    "training": lambda: training_page(run_facts(), classified(37, 800)),
    "data": lambda: data_page(
        (found := doctor_facts(37))[0], samples=found[1], thumbnails=found[2]
    ),
    "predictions": hostile_predictions,
    "search": lambda: search_page(alike(1)[0], alike(5), index=LONG),
    "duplicates": lambda: duplicates_page(
        [alike(2), alike(9)], index=HOSTILE, threshold=0.97, source="given"
    ),
    "runs": lambda: runs_page(
        [RunSummary(name, {}, lines_of()) for name in (f"runs/{LONG}", KOREAN, HOSTILE)]
    ),
    "benchmark": lambda: benchmark_page(*benchmark_values()),
}


@pytest.mark.parametrize("kind", PAGES)
def test_no_page_is_wider_than_its_window(show: Any, kind: str) -> None:
    html = PAGES[kind]()
    for width, theme in ((360, "dark"), (1280, "light")):
        page = show(html, width=width, theme=theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = sum(map(int, NUMBER.findall(background)[:3])) < 200
        assert dark == (theme == "dark")


def test_paper_has_no_controls_and_says_what_is_left_out(show: Any, training: str) -> None:
    page = show(training, theme="dark")
    page.emulate_media(media="print")
    assert not page.locator("nav.toc").is_visible()
    assert not page.get_by_label("Filter classes").is_visible()
    assert not page.locator(".chart .reading").first.is_visible()
    assert page.get_by_text("The first 25 of 37 rows").is_visible()
    colours = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    ink, paper = (sum(map(int, NUMBER.findall(colour)[:3])) for colour in colours)
    assert ink < 150
    assert paper > 700


def test_every_column_of_a_table_of_classes_is_seen_on_a_phone(show: Any) -> None:
    found = classified(37, 800)
    names = ("american_pit_bull_terrier", "n0022 European fire salamander")
    rows = [{**row, "label": names[place % 2]} for place, row in enumerate(found.classes)]
    page = show(training_page(run_facts(), replace(found, classes=rows)), width=360)
    tables = page.locator("#classes .sideways, #confusions .sideways:has(.sortable)")
    assert tables.count() == 2
    assert all(tables.evaluate_all("boxes => boxes.map((b) => b.scrollWidth <= b.clientWidth)"))


def test_a_benchmark_fits_a_screen_and_sorts_by_value(show: Any) -> None:
    page = show(benchmark_page(*benchmark_values()))
    box = page.locator("#speed .sideways:has(table.many)")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    table = box.locator("table")
    table.get_by_role("button", name="images/s").click()
    speeds = [float(value) for value in column(table, 4)]
    assert speeds == sorted(speeds, reverse=True)


def test_no_word_is_broken_in_a_narrow_gallery(show: Any) -> None:
    page = show(evaluated(37, 800), width=360)
    broken = page.locator("#mistakes .pair .wrong, #mistakes .pair .right").evaluate_all(
        """labels => labels.filter((label) => Array.from(label.childNodes).some((part) => {
          if (part.nodeType !== 3) return false;
          return part.textContent.split(" ").some((word, place, words) => {
            const range = document.createRange();
            const start = words.slice(0, place).join(" ").length + (place ? 1 : 0);
            range.setStart(part, start);
            range.setEnd(part, start + word.length);
            return word && word.length < 15 && range.getClientRects().length > 1;
          });
        })).map((label) => label.textContent)"""
    )
    assert not broken


def test_the_order_that_a_table_begins_with_is_marked(show: Any, training: str) -> None:
    page = show(training)
    heading = page.locator("#classes thead th[aria-sort]")
    assert heading.inner_text().startswith("F1")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"


def test_links_lead_to_images_that_are_there(show: Any) -> None:
    page = show(evaluated(1000, 4000))
    links = page.locator("a[data-what]")
    assert links.count() > 20
    empty = links.evaluate_all(
        """links => links.filter(({ dataset: { truth, predicted } }) => !document.querySelector(
          `figure[data-truth="${truth}"]`
          + (predicted ? `[data-predicted="${predicted}"]` : "")))"""
    )
    assert not empty


def test_groups_of_duplicates_stand_beside_each_other(show: Any) -> None:
    html = duplicates_page([alike(2), alike(2)], index="vectors", threshold=0.97, source="given")
    for width, beside in ((1280, True), (360, False)):
        groups = show(html, width=width).locator(".group")
        one, other = (groups.nth(place).bounding_box() for place in range(2))
        assert (one["y"] == other["y"]) == beside


def test_the_slider_stays_in_sight_while_maps_are_looked_at(show: Any, explained: str) -> None:
    page = show(explained)
    page.locator(".picker").scroll_into_view_if_needed()
    page.mouse.wheel(0, 500)
    page.wait_for_timeout(100)
    slider = page.get_by_label("Opacity of the maps")
    assert 0 <= slider.bounding_box()["y"] < 900


def test_paper_keeps_rows_whole_and_sums_once(show: Any, training: str) -> None:
    page = show(training)
    page.emulate_media(media="print")
    style = "(part, name) => getComputedStyle(part).getPropertyValue(name)"
    row, foot = page.locator("#classes tbody tr").first, page.locator("#classes tfoot")
    assert row.evaluate(style, "break-inside") == "avoid"
    assert foot.evaluate(style, "display") == "table-row-group"
    assert not page.get_by_text("Click a number").is_visible()


def contrast(page: Any, selector: str) -> float:
    """The least contrast of texts with the card or the page behind them (WCAG)."""
    script = """(parts) => {
      const channels = (text) => text.match(/[\\d.]+/g).map(Number);
      const light = (text) => channels(text).slice(0, 3).map((value) => value / 255)
        .map((value) => value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4)
        .reduce((sum, value, place) => sum + value * [.2126, .7152, .0722][place], 0);
      const behind = (part) => {
        const colour = getComputedStyle(part).backgroundColor, alpha = channels(colour)[3] ?? 1;
        return alpha === 1 ? colour : behind(part.parentElement);
      };
      return Math.min(...parts.map((part) => {
        const [a, b] = [light(getComputedStyle(part).color), light(behind(part))];
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
      }));
    }"""
    found = page.locator(selector)
    assert found.count()
    return float(found.evaluate_all(script))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(show: Any, training: str, theme: str) -> None:
    page = show(training, theme=theme)
    for selector in (
        "p",
        "a",
        "th",
        "summary",
        "figcaption span",
        ".wrong",
        ".right",
        "dt",
        "small",
    ):
        assert contrast(page, selector) >= 4.5, selector
