"""The page of a service with API keys, and of one whose model is an exported file: in a browser,
on the real service."""

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
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
from tests.serving.running import Running, png, running
from vitrail.serving.launcher import Launcher

pytestmark = pytest.mark.slow

KEY = "a key of 16 letters".replace(" ", "-")
VIEWS = ("walk", "attention", "lens", "what_if", "compare", "data")
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def keyed(
    launcher: Launcher, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Keys, a model, and images beside it."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text(f"{KEY}\n", encoding="utf-8")
    for label in ("cat", "dog"):
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(2):
            (folder / "photos" / label / f"{number}.png").write_bytes(png(number))
    options: dict[str, Any] = {
        "api_key_file": str(folder / "keys"),
        "data": (str(folder / "photos"),),
    }
    with running(launcher, str(checkpoints / "pets"), **options) as found:
        yield found


@pytest.fixture
def visitor(browser: Any, keyed: Running) -> Iterator[Visitor]:
    found = Visitor(browser, f"{keyed.address}/", seconds=120)
    yield found
    found.close()


def locked_page(visitor: Visitor, link: str = "", **options: Any) -> Any:
    page = visitor.open(link, inspected=False, **options)
    page.wait_for_selector("#sign-in:not([hidden])")
    return page


def type_key(page: Any, key: str) -> None:
    page.locator("#key").fill(key)
    page.keyboard.press("Enter")


def test_the_page_asks_for_a_key_and_sends_it_with_every_request(visitor: Visitor) -> None:
    """Also for samples, small pictures of the data and packed arrays; never in an address."""
    sent: list[tuple[str, str | None]] = []
    page = locked_page(visitor, "view=data")
    page.on("request", lambda one: sent.append((one.url, one.headers.get("x-api-key"))))
    assert page.evaluate("document.activeElement.id") == "key"
    for hidden in (".bar", "nav", "#panels"):
        assert not page.locator(hidden).is_visible()
    type_key(page, KEY)
    page.wait_for_selector("html[data-inspected]")
    page.wait_for_selector(".gallery.small img")
    for name in (".gallery img", ".sample img"):  # they are asked for when they come into sight
        for picture in page.locator(name).all():
            picture.scroll_into_view_if_needed()
        loaded = f"[...document.querySelectorAll('{name}')].every((one) => one.naturalWidth)"
        wait_until(page, loaded, seconds=90)
    for view in ("attention", "walk", "model"):
        page.click(f"#tab-{view}")
        settle(page)
    page.wait_for_selector(".facts dd")
    asked = [(url, key) for url, key in sent if "/v1/" in url]
    kinds = ("models", "samples", "samples/0", "data?", "data/0/image", "inspect", "neighbours")
    assert not [kind for kind in kinds if not any(f"/v1/{kind}" in url for url, _ in asked)]
    assert {key for _, key in asked} == {KEY}
    assert not [url for url, _ in sent if KEY in url]
    assert KEY not in page.url
    assert not page.locator("#notice").is_visible()
    kept = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage)]")
    assert KEY in kept[0]
    assert KEY not in kept[1]
    page.reload()
    page.wait_for_selector("html[data-inspected]")
    assert not page.locator("#sign-in").is_visible()


def test_a_wrong_key_is_said_in_words_and_a_key_is_forgotten(visitor: Visitor) -> None:
    page = locked_page(visitor, "lang=en")
    problem = page.locator("#key-problem")
    type_key(page, "")
    assert problem.inner_text() == "Type or paste the key first."
    for wrong in ("wrong-wrong-wrong-wrong", "열쇠 열쇠 열쇠 열쇠"):
        type_key(page, wrong)
        wait_until(page, "document.getElementById('key-problem').textContent.includes('not know')")
        assert page.locator("#key").get_attribute("aria-invalid") == "true"
        assert page.evaluate("document.activeElement.id") == "key"
    page.click("#language")
    settle(page)
    assert re.search("[가-힣]", problem.inner_text())
    type_key(page, KEY)
    page.wait_for_selector("html[data-inspected]")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "tab"
    assert page.locator("#key").input_value() == ""
    page.click("#key-forget")
    page.wait_for_selector("#sign-in:not([hidden])")
    assert page.evaluate("sessionStorage.length") == 0
    assert not page.locator("#key-forget").is_visible()
    assert not page.locator("#panels").is_visible()


def test_a_key_that_is_taken_back_is_asked_for_again(visitor: Visitor) -> None:
    page = locked_page(visitor)
    type_key(page, KEY)
    page.wait_for_selector("html[data-inspected]")
    refuse = {"status": 401, "json": {"error": "an API key is needed", "code": 401}}
    page.route("**/v1/inspect*", lambda route: route.fulfill(**refuse))
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(1)})
    page.wait_for_selector("#sign-in:not([hidden])")
    assert "does not know this key" in page.locator("#key-problem").inner_text()
    page.unroute("**/v1/inspect*")
    type_key(page, KEY)
    page.wait_for_selector("html[data-inspected]:not(.locked)")
    assert page.locator("#panels").is_visible()


def test_an_answer_to_an_older_key_changes_nothing(visitor: Visitor) -> None:
    """Two requests are refused, the second after the person was asked, or has signed in."""
    page, held = locked_page(visitor), list[Any]()
    type_key(page, KEY)
    page.wait_for_selector("html[data-inspected]")
    refuse = {"status": 401, "json": {"error": "an API key is needed", "code": 401}}
    page.route("**/v1/inspect*", lambda route: route.fulfill(**refuse))
    page.route("**/v1/model?model=*", lambda route: held.append(route))
    page.click("#tab-model")
    wait_until(page, "document.querySelector('#panel-model.waiting') !== null")
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(1)})
    page.wait_for_selector("#sign-in:not([hidden])")
    held[0].fulfill(**refuse)
    wait_until(page, "document.querySelector('#panel-model.waiting') === null")
    assert "does not know this key" in page.locator("#key-problem").inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_signing_in_is_usable_by_everybody(visitor: Visitor, theme: str) -> None:
    page = locked_page(visitor, f"theme={theme}", **PHONE)
    type_key(page, "wrong-wrong-wrong-wrong")
    wait_until(page, "document.getElementById('key-problem').textContent !== ''")
    assert page.evaluate(OVERFLOW) == 0
    assert accessibility_problems(page) == []
    assert page.get_by_label("API key", exact=True).is_visible()
    type_key(page, KEY)
    page.wait_for_selector("html[data-inspected]")
    assert page.locator("#key-forget").is_visible()
    assert page.evaluate(OVERFLOW) == 0


@pytest.fixture(scope="module")
def exported(
    launcher: Launcher, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A file beside a checkpoint."""
    pytest.importorskip("onnxruntime", reason="runs exported files")
    file = tmp_path_factory.mktemp("exported") / "pets.onnx"
    vitrail.export(checkpoints / "pets", file)
    with running(launcher, f"file={file}", f"pets={checkpoints / 'pets'}") as found:
        yield found


def test_an_exported_file_predicts_and_says_what_views_need(
    browser: Any, exported: Running, checkpoints: Path
) -> None:
    visitor = Visitor(browser, f"{exported.address}/", seconds=120)
    page = visitor.open("view=attention")  # the first model, the file; a sample is predicted
    assert page.locator(".sample").count() > 0
    image = png(3)
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": image})
    wait_until(page, "document.documentElement.dataset.inspected === '2'")
    expected = vitrail.predict(checkpoints / "pets", Image.open(BytesIO(image)))
    assert expected.label in page.locator("#answer").inner_text()
    shown = page.locator("#exported .answers li")
    scores = [float(one.get_attribute("data-before")) for one in shown.all()]
    assert scores == pytest.approx([score for _, score in expected.top], abs=1e-4)
    sentences = set()
    for view in VIEWS:
        page.click(f"#tab-{view}")
        settle(page)
        words = page.locator("#exported [data-name=needs]").inner_text()
        assert "file" in words
        assert "vitrail serve CHECKPOINT" in words
        assert words.count(". ") == 0  # one sentence
        sentences.add(words)
        assert not page.locator("#panels").inner_text().strip()
        assert not page.locator("#notice").is_visible()
        assert shown.count() == 3
    assert len(sentences) == len(VIEWS)
    page.click("#tab-model")
    page.wait_for_selector("#panel-model [data-fact=classes]")
    assert "vitrail serve CHECKPOINT" in page.locator("#panel-model [data-name=needs]").inner_text()
    how = vitrail.load(checkpoints / "pets").passport.preprocessing
    assert page.locator("[data-fact=preprocessing]").inner_text() == how.in_words()
    assert not page.locator("#notice").is_visible()
    page.select_option("#model", "pets")
    go(page, "view=attention&model=pets")
    page.wait_for_selector("#stage .mark-query[d]", state="attached")
    assert not page.locator("#exported").is_visible()
    visitor.close()


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_an_exported_file_on_a_phone(browser: Any, exported: Running, lang: str) -> None:
    visitor = Visitor(browser, f"{exported.address}/", seconds=120)
    page = visitor.open(f"view=walk&lang={lang}", **PHONE)
    for view in (*VIEWS, "model"):
        go(page, f"view={view}&lang={lang}")
        assert page.evaluate(OVERFLOW) == 0
        words = page.locator("main").inner_text()
        assert not re.findall(r"\b(?:frame|model)\.[a-z_.]+\b", words)
        assert bool(re.search("[가-힣]{3}", words.replace("고양이", ""))) == (lang == "ko")
    assert accessibility_problems(page) == []
    visitor.close()
