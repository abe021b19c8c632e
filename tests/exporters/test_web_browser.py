"""The exported page in a real Chromium: it answers what Python answers, without a server's help."""

import functools
import json
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.golden import golden
from vitrail import UserError
from vitrail.evaluation.fewshot import Ridge, fit_ridge
from vitrail.exporters.web.runtime import fetch_archive
from vitrail.models.model import Model

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--disable-background-networking",
)
CLASSES = ("daisy", "roses", "sunflowers")
SHOTS = 5
CLOSE = 1e-4
READY = "html[data-ready]"
HEAT = """() => {
  const heat = document.getElementById("heat");
  if (heat.hidden) return "hidden";
  return Array.from(heat.getContext("2d").getImageData(0, 0, heat.width, heat.height).data).join();
}"""
# no element may stick out to the right of the screen, and no text may be cut off by it
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Cameras, decoders and models that are slow, busy or broken, at the will of a test.
BUSY = """
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
self.busy = { streams: [], camera: 0, refused: false, decode: {}, held: null, problem: null };
const media = navigator.mediaDevices;
if (media) {
  const open = media.getUserMedia.bind(media);
  media.enumerateDevices = async () => [{ kind: "videoinput" }, { kind: "videoinput" }];
  media.getUserMedia = async (wishes) => {
    await pause(busy.camera);
    if (busy.refused) throw new Error("in use");
    const stream = await open(wishes);
    busy.streams.push(stream);
    return stream;
  };
}
const decode = self.createImageBitmap.bind(self);
self.createImageBitmap = async (image, ...rest) => {
  const bitmap = decode(image, ...rest);
  await pause(busy.decode[image.name] ?? 0);
  return bitmap;
};
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, transfer) {
  if (busy.problem) this.onmessage({ data: { id: message.id, problem: busy.problem } });
  else if (busy.held) busy.held.push(() => send.call(this, message, transfer));
  else send.call(this, message, transfer);
};
self.release = () => {
  for (const call of busy.held.splice(0)) call();
  busy.held = null;
};
"""
STAGE = "document.getElementById('photo').toDataURL()"


@pytest.fixture(scope="module")
def model() -> Model:
    """Two blocks, every parameter at random, and a passport that resizes, crops and stretches."""
    torch.manual_seed(0)
    made = vitrail.create("vit_ti_16", depth=2, num_classes=4, image_size=96)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    how = replace(made.passport.preprocessing, resize=(110, 110), interpolation="bicubic")
    made.passport = replace(
        made.passport, labels=("cat", "dog", "horse", "고양이"), preprocessing=how
    )
    return made.eval()


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        fetch_archive()
    except UserError as error:
        pytest.skip(f"no ONNX Runtime Web: {error}")
    out = tmp_path_factory.mktemp("web") / "page"
    vitrail.export(model, out, to="web")
    return out


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The folder by Python's own static server, below a path of its own."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder.parent))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{folder.name}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def launch() -> Iterator[Any]:
    """Starts a headless Chromium with some more flags."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser is installed: needs one of {', '.join(BROWSERS)}")
    with api.sync_playwright() as driver:
        yield lambda *flags: driver.chromium.launch(executable_path=path, args=[*FLAGS, *flags])


@pytest.fixture(scope="module")
def browser(launch: Any) -> Iterator[Any]:
    opened = launch()
    yield opened
    opened.close()


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Any]:
    """Opens the page, after a script of ours, and waits for the model; it must log no error and ask
    nobody else."""
    contexts: list[Any] = []
    problems: list[str] = []

    def check_request(request: Any) -> None:
        if not request.url.startswith((address, "blob:")):
            problems.append(request.url)

    def check_message(message: Any) -> None:
        if message.type == "error":
            problems.append(message.text)

    def visited(*, script: str = "", **options: Any) -> Any:
        settings = {"viewport": {"width": 1280, "height": 900}, "locale": "en-US"} | options
        context = browser.new_context(reduced_motion="reduce", **settings)
        contexts.append(context)
        context.add_init_script(script)
        context.on("request", check_request)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", check_message)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        page.wait_for_selector(READY)
        return page

    yield visited
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Flowers as PNG, which every decoder reads to the same bytes: five to learn, two to ask."""
    place, flowers = tmp_path_factory.mktemp("photos"), golden("flowers") / "train"
    found: dict[str, list[Path]] = {}
    for name in CLASSES:
        found[name] = []
        for number, file in enumerate(sorted((flowers / name).iterdir())[: SHOTS + 2]):
            with Image.open(file) as image:
                found[name].append(place / f"{name}-{number}.png")
                image.convert("RGB").save(found[name][-1])
    return found


def show(page: Any, photo: Path) -> dict[str, float]:
    """The scores by label that the page shows for a photo."""
    page.evaluate("document.getElementById('bars').replaceChildren()")
    page.set_input_files("#file", photo)
    page.wait_for_selector("#bars li")
    return shown_scores(page)


def shown_scores(page: Any) -> dict[str, float]:
    read = "all => all.map((one) => [one.dataset.name, Number(one.dataset.score)])"
    return dict(page.locator("#bars li").evaluate_all(read))


def wait_until(page: Any, condition: str, seconds: float = 60) -> None:
    """As `wait_for_function`, which evaluates text inside the page: its policy forbids that."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def teach(page: Any, name: str, files: list[Path]) -> None:
    page.fill("#class-name", name)
    page.click("#new-class button")
    card = page.locator("#classes > li").last
    card.locator("input[type=file]").set_input_files(files)
    card.locator(".pictures li").nth(len(files) - 1).wait_for()
    wait_until(page, "!document.getElementById('few-shot-status').textContent.includes('…')")


def few_shot(model: Model, photos: dict[str, list[Path]]) -> Ridge:
    """What `probe --method fewshot` solves from the same photos."""
    files = [file for name in photos for file in photos[name][:SHOTS]]
    targets = np.repeat(np.arange(len(photos)), SHOTS)
    return fit_ridge(features(model, files), targets, len(photos))


def features(model: Model, files: list[Path]) -> np.ndarray:
    with torch.inference_mode():
        found: np.ndarray = model.features(model.preprocess([str(file) for file in files])).numpy()
    return found


def test_photos_get_the_scores_that_python_gives(
    visit: Any, model: Model, photos: dict[str, list[Path]]
) -> None:
    page = visit()
    assert page.evaluate("crossOriginIsolated")
    for file in (photos["daisy"][0], photos["roses"][5]):
        (expected,) = vitrail.predict(model, [file], top=4)
        found = show(page, file)
        assert list(found) == [label for label, _ in expected.top]
        assert list(found.values()) == pytest.approx(
            [score for _, score in expected.top], abs=CLOSE
        )
    assert "ms" in page.locator("#run-ms").text_content()
    assert "WebAssembly" in page.locator("#backend").text_content()
    assert page.locator("#announcement").text_content().startswith(expected.label)


def test_webgpu_gives_the_same_scores(
    launch: Any, folder: Path, address: str, model: Model, photos: dict[str, list[Path]]
) -> None:
    """By an adapter in software, which is slow: the page is told to take it all the same."""
    worker = folder / "app" / "worker.js"
    code = worker.read_text(encoding="utf-8")
    slow = code.replace("const FAST = 100;", "const FAST = 1e9;").replace("&& !software", "")
    assert slow.count("1e9") == 1
    opened = launch("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
    try:
        worker.write_text(slow, encoding="utf-8")
        page = opened.new_page(locale="en-US")
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector(READY)
        if not page.evaluate("async () => Boolean(await navigator.gpu?.requestAdapter())"):
            pytest.skip("this browser has no WebGPU, not even in software")
        assert page.locator("#backend").text_content() == "WebGPU"
        (expected,) = vitrail.predict(model, [photos["daisy"][0]], top=4)
        assert show(page, photos["daisy"][0]) == pytest.approx(dict(expected.top), abs=CLOSE)
    finally:
        worker.write_text(code, encoding="utf-8")
        opened.close()


def test_a_device_that_computes_other_values_is_refused(
    launch: Any, folder: Path, address: str
) -> None:
    """What the page expects of its test image is changed, as if the device were wrong."""
    facts = folder / "model.json"
    kept = facts.read_text(encoding="utf-8")
    changed = json.loads(kept)
    changed["test"]["values"][0] += 1
    opened = launch()
    try:
        facts.write_text(json.dumps(changed), encoding="utf-8")
        page = opened.new_page(locale="en-US")
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector("#notice:not([hidden])")
        assert "computes other values" in page.locator("#notice").text_content()
    finally:
        facts.write_text(kept, encoding="utf-8")
        opened.close()


def test_a_jpeg_that_lies_on_its_side_is_turned(
    visit: Any, model: Model, photos: dict[str, list[Path]], tmp_path: Path
) -> None:
    """By the browser's decoder, whose pixels may differ a little."""
    side, upright = tmp_path / "side.jpg", tmp_path / "upright.jpg"
    with Image.open(photos["sunflowers"][0]) as image:
        exif = Image.Exif()
        exif[0x0112] = 6
        turned = image.transpose(Image.Transpose.ROTATE_90)
        turned.save(side, quality=98, subsampling=0, exif=exif)
        image.save(upright, quality=98, subsampling=0)
    page = visit()
    (expected,) = vitrail.predict(model, [side], top=4)
    found = show(page, side)
    assert [found[label] for label, _ in expected.top] == pytest.approx(
        [score for _, score in expected.top], abs=1e-2
    )
    box = page.locator("#photo").evaluate("canvas => [canvas.width, canvas.height]")
    show(page, upright)
    assert box == page.locator("#photo").evaluate("canvas => [canvas.width, canvas.height]")


def test_attention_changes_with_the_layer_and_fades(
    visit: Any, photos: dict[str, list[Path]]
) -> None:
    page = visit()
    show(page, photos["daisy"][0])
    names = page.locator("#layer option").evaluate_all("all => all.map((one) => one.value)")
    assert names == ["maps.rollout", "maps.blocks.1.attention", "maps.blocks.0.attention"]
    seen = set()
    for name in names:
        page.select_option("#layer", name)
        seen.add(page.evaluate(HEAT))
    assert len(seen - {"hidden"}) == 3
    page.locator("#opacity").fill("20")
    assert page.locator("#heat").evaluate("heat => heat.style.opacity") == "0.2"
    page.locator("#show").uncheck()
    assert page.evaluate(HEAT) == "hidden"


def test_the_camera_is_classified_until_it_is_stopped(visit: Any) -> None:
    page = visit()
    page.click("#camera")
    page.wait_for_selector("#live:not([hidden], .still)")
    first = shown_scores(page)
    assert sum(first.values()) == pytest.approx(1, abs=1e-6)
    best = page.locator("#bars li").first.get_attribute("data-score")
    wait_until(page, f"document.querySelector('#bars li').dataset.score !== '{best}'")
    assert page.locator("#camera").text_content() == "Stop the camera"
    page.click("#camera")
    assert page.locator("#camera").text_content() == "Use the camera"
    page.wait_for_selector("#live.still", state="attached")
    track = "() => document.getElementById('photo').toDataURL()"
    last = page.evaluate(track)
    page.wait_for_timeout(300)
    assert page.evaluate(track) == last


def test_three_classes_are_taught_with_five_photos_each(
    visit: Any, model: Model, photos: dict[str, list[Path]], tmp_path: Path
) -> None:
    """Scores equal the few-shot probe's, after a reload without network and from a file too."""
    page = visit()
    page.click("#tab-teach")
    for name in CLASSES:
        teach(page, name, photos[name][:SHOTS])
    page.click("#tab-result")
    ridge = few_shot(model, photos)
    asked = photos["roses"][SHOTS]
    expected = dict(zip(CLASSES, ridge.scores(features(model, [asked]))[0], strict=True))

    def check() -> None:
        found = show(page, asked)
        assert {*found} == {*CLASSES}
        assert found == pytest.approx(expected, abs=CLOSE)
        assert list(found) == sorted(expected, key=lambda name: -expected[name])

    check()
    page.locator("#offline").wait_for()
    page.context.set_offline(True)
    page.reload()
    page.wait_for_selector(READY)
    assert page.evaluate("crossOriginIsolated")
    check()
    page.context.set_offline(False)
    page.click("#tab-teach")
    with page.expect_download() as waiting:
        page.click("#save")
    waiting.value.save_as(tmp_path / "taught.json")
    kept = json.loads((tmp_path / "taught.json").read_text(encoding="utf-8"))
    weights = np.array(kept["head"]["weights"]).reshape(-1, len(CLASSES))
    np.testing.assert_allclose(weights, ridge.weights, atol=CLOSE)
    page.click("#delete")
    page.click("#ask button[value=yes]")
    wait_until(page, "document.querySelectorAll('#classes > li').length === 0")
    page.click("#tab-result")
    assert {*show(page, asked)} == {*(model.passport.labels or ())}
    page.set_input_files("#open", tmp_path / "taught.json")
    wait_until(page, "document.querySelectorAll('#classes > li').length === 3")
    check()


def test_what_the_camera_shows_can_be_taught(visit: Any, photos: dict[str, list[Path]]) -> None:
    page = visit()
    page.click("#tab-teach")
    teach(page, "daisy", photos["daisy"][:1])
    page.fill("#class-name", "screen")
    page.press("#class-name", "Enter")
    button = page.locator("#classes > li").last.locator(".shown")
    assert button.is_disabled()
    page.click("#camera")
    page.wait_for_selector("#live:not([hidden], .still)")
    button.click()
    page.wait_for_selector("#now:not([hidden])")
    wait_until(page, "document.querySelector('#now b').textContent.startsWith('screen')")


def test_a_file_that_is_no_photo_is_a_sentence(visit: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("no image")
    page = visit()
    page.set_input_files("#file", tmp_path / "bad.png")
    page.wait_for_selector("#notice:not([hidden])")
    assert page.locator("#notice span").text_content() == "bad.png cannot be read as a photo."
    page.set_input_files("#open", tmp_path / "bad.png")
    wait_until(page, "document.querySelector('#notice span').textContent.includes('taught')")


@pytest.mark.parametrize(
    ("locale", "words"), [("en-US", "Choose a photo"), ("ko-KR", "사진 고르기")]
)
def test_a_phone_in_both_languages(
    locale: str, words: str, visit: Any, photos: dict[str, list[Path]]
) -> None:
    """Nothing sticks out of 360 pixels, and the other language is one button away."""
    page = visit(viewport={"width": 360, "height": 740}, locale=locale, is_mobile=True)
    choose = page.locator("label:has(#file) span")
    assert choose.text_content() == words
    assert page.locator("html").get_attribute("lang") == locale[:2]
    show(page, photos["daisy"][0])
    assert page.evaluate(OVERFLOW) == 0
    page.click("#tab-teach")
    teach(page, "incomprehensibilities and counterrevolutionaries", photos["roses"][:SHOTS])
    teach(page, "아주 긴 이름을 가진 새로운 분류", photos["daisy"][:1])
    assert page.evaluate(OVERFLOW) == 0
    page.click("#language")
    assert choose.text_content() != words
    assert page.evaluate(OVERFLOW) == 0
    page.reload()
    page.wait_for_selector(READY)
    assert choose.text_content() != words


def test_a_keyboard_is_enough(visit: Any) -> None:
    page = visit()
    page.focus("#tab-result")
    page.keyboard.press("ArrowRight")
    assert page.locator("#teach").is_visible()
    assert page.locator("#tab-teach").get_attribute("aria-selected") == "true"
    unnamed = """() => [...document.querySelectorAll("button, input, select, textarea")].filter((one) => {
      const words = one.getAttribute("aria-label") || one.textContent || one.labels?.[0]?.textContent;
      return !one.closest("[hidden]") && !words?.trim();
    }).map((one) => one.outerHTML)"""  # noqa: E501
    assert page.evaluate(unnamed) == []
    seen = set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id"))
    assert {"language", "file", "camera", "tab-teach", "class-name", "open"} <= seen


def start_camera(page: Any) -> None:
    page.click("#camera")
    page.wait_for_selector("#live:not([hidden], .still)")


def wait_for_new_scores(page: Any, times: int = 3) -> None:
    """The camera's picture moves, so that every result is another one."""
    for _ in range(times):
        best = page.locator("#bars li").first.get_attribute("data-score")
        wait_until(page, f"document.querySelector('#bars li').dataset.score !== '{best}'", 20)


def test_the_other_camera_is_classified_as_the_first(visit: Any) -> None:
    page = visit(script=BUSY)
    start_camera(page)
    page.evaluate("busy.camera = 300")
    page.click("#flip")
    wait_until(page, "busy.streams.length === 2 && !document.getElementById('flip').disabled")
    last = page.evaluate(STAGE)
    wait_for_new_scores(page)
    assert page.evaluate(STAGE) != last
    assert page.evaluate("busy.streams[0].getTracks()[0].readyState") == "ended"
    page.click("#camera")
    assert page.locator("#camera").text_content() == "Use the camera"
    assert page.evaluate("busy.streams[1].getTracks()[0].readyState") == "ended"


def test_a_camera_that_cannot_be_opened_is_stopped(visit: Any) -> None:
    page = visit(script=BUSY)
    start_camera(page)
    page.evaluate("busy.refused = true")
    page.click("#flip")
    page.wait_for_selector("#notice:not([hidden])")
    assert page.locator("#notice span").text_content() == "The camera cannot be used: in use"
    assert page.locator("#camera").text_content() == "Use the camera"
    assert page.locator("#flip").is_hidden()
    page.evaluate("busy.refused = false")
    start_camera(page)
    assert page.locator("#notice").is_hidden()
    wait_for_new_scores(page)


def test_a_camera_that_opens_after_a_photo_was_chosen_is_closed(
    visit: Any, photos: dict[str, list[Path]]
) -> None:
    page = visit(script=BUSY)
    page.evaluate("busy.camera = 500")
    page.click("#camera")
    expected = show(page, photos["daisy"][0])
    wait_until(page, "busy.streams.length === 1")
    page.wait_for_timeout(300)
    assert page.evaluate("busy.streams[0].getTracks()[0].readyState") == "ended"
    assert page.locator("#camera").text_content() == "Use the camera"
    assert shown_scores(page) == expected


def test_of_two_photos_the_one_chosen_last_is_shown(
    visit: Any, photos: dict[str, list[Path]]
) -> None:
    """Also if the first takes longer to decode."""
    first, last = photos["daisy"][0], photos["roses"][0]
    page = visit(script=BUSY)
    page.evaluate(f"busy.decode['{first.name}'] = 1500")
    page.set_input_files("#file", first)
    expected = show(page, last)
    stage = page.evaluate(STAGE)
    page.wait_for_timeout(2000)
    assert page.evaluate(STAGE) == stage
    assert shown_scores(page) == expected


def test_what_is_shown_cannot_be_added_before_it_is_computed(
    visit: Any, photos: dict[str, list[Path]]
) -> None:
    """The result of the photo before is gone as soon as another one is drawn."""
    page = visit(script=BUSY)
    page.click("#tab-teach")
    teach(page, "daisy", photos["daisy"][:1])
    page.click("#tab-result")
    show(page, photos["daisy"][1])
    page.click("#tab-teach")
    before = page.evaluate(STAGE)
    add = page.locator("#classes .shown")
    assert add.is_enabled()
    page.evaluate("busy.held = []")
    page.set_input_files("#file", photos["roses"][0])
    wait_until(page, f"{STAGE} !== '{before}'")
    assert add.is_disabled()
    assert page.locator("#bars li").count() == 0
    assert page.evaluate(HEAT) == "hidden"
    page.evaluate("release()")
    page.wait_for_selector("#bars li", state="attached")
    assert add.is_enabled()


def test_a_file_replaces_classes_only_if_the_person_agrees(
    visit: Any, photos: dict[str, list[Path]], tmp_path: Path
) -> None:
    page = visit()
    page.click("#tab-teach")
    teach(page, "daisy", photos["daisy"][:1])
    with page.expect_download() as waiting:
        page.click("#save")
    waiting.value.save_as(tmp_path / "classes.json")
    teach(page, "roses", photos["roses"][:1])
    names = "[...document.querySelectorAll('.class-name')].map((one) => one.value).join()"
    for answer, left in (("no", "daisy,roses"), ("yes", "daisy")):
        page.set_input_files("#open", tmp_path / "classes.json")
        page.wait_for_selector("#ask[open]", timeout=5000)
        assert "classes.json" in page.locator("#question").text_content()
        assert page.locator("#ask button[value=yes]").text_content() == "Replace"
        page.click(f"#ask button[value={answer}]")
        wait_until(page, f"{names} === '{left}'")


def test_a_notice_stays_while_the_camera_runs(
    visit: Any, photos: dict[str, list[Path]], tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text("no classes")
    (tmp_path / "bad.png").write_text("no image")
    page = visit()
    start_camera(page)
    page.set_input_files("#open", tmp_path / "bad.json")
    page.wait_for_selector("#notice:not([hidden])")
    wait_for_new_scores(page)
    assert page.locator("#notice").is_visible()
    page.click("#notice button")
    assert page.locator("#notice").is_hidden()
    page.set_input_files("#file", tmp_path / "bad.png")
    page.wait_for_selector("#notice:not([hidden])")
    show(page, photos["daisy"][0])
    assert page.locator("#notice").is_hidden()


def test_a_model_that_no_longer_runs_stops_the_camera(
    visit: Any, photos: dict[str, list[Path]]
) -> None:
    """As after the GPU was lost; it is not the photo's fault either."""
    page = visit(script=BUSY)
    words = "The model cannot be run any more: device lost"
    start_camera(page)
    page.evaluate("busy.problem = 'device lost'")
    page.wait_for_selector("#notice:not([hidden])", timeout=10_000)
    assert page.locator("#notice span").text_content() == words
    assert page.locator("#camera").text_content() == "Use the camera"
    page.evaluate("document.getElementById('notice').hidden = true")
    page.set_input_files("#file", photos["daisy"][0])
    page.wait_for_selector("#notice:not([hidden])")
    assert page.locator("#notice span").text_content() == words
    with page.expect_navigation():
        page.click("#notice button")
    page.wait_for_selector(READY)
    show(page, photos["daisy"][0])


def test_a_class_may_be_deleted_while_its_photos_are_read(
    visit: Any, photos: dict[str, list[Path]]
) -> None:
    page = visit(script=BUSY)
    page.click("#tab-teach")
    page.fill("#class-name", "daisy")
    page.press("#class-name", "Enter")
    page.evaluate("busy.held = []")
    page.locator("#classes input[type=file]").set_input_files(photos["daisy"][:2])
    wait_until(page, "busy.held.length === 1")
    page.click("#classes .cross")
    page.evaluate("release()")
    wait_until(page, "!document.getElementById('few-shot-status').textContent.includes('…')")
    assert page.locator("#classes > li").count() == 0
    assert page.locator("#notice").is_hidden()


def test_the_first_visit_shows_how_much_of_the_model_is_there(browser: Any, folder: Path) -> None:
    """A server that holds back half of the graph; the file is cached when all of it has come."""
    rest = threading.Event()

    class Slow(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def copyfile(self, source: Any, outputfile: Any) -> None:
            data = source.read()
            half = len(data) // 2
            outputfile.write(data[:half])
            if self.path.endswith("model.onnx"):
                outputfile.flush()
                rest.wait(60)
            outputfile.write(data[half:])

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Slow, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page(locale="en-US")
    page.set_default_timeout(120_000)
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("progress[value]", timeout=20_000)
        wait_until(page, "Math.abs(document.querySelector('progress').value - 0.5) < 0.1", 20)
        rest.set()
        page.wait_for_selector(READY)
        page.locator("#offline").wait_for()
    finally:
        rest.set()
        page.close()
        server.shutdown()
        server.server_close()


def test_on_a_phone_names_notices_and_questions_are_in_sight(
    visit: Any, photos: dict[str, list[Path]]
) -> None:
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True)
    page.click("#tab-teach")
    name = "my favourite sunflowers"
    teach(page, name, photos["sunflowers"][:2])
    cut = page.locator(".class-name").evaluate("field => field.scrollWidth - field.clientWidth")
    assert cut <= 0
    page.fill("#class-name", name)
    page.click("#new-class button")
    notice = page.locator("#notice").bounding_box()
    assert 0 <= notice["y"] <= 740 - notice["height"]
    page.click("#delete")
    question = page.locator("#ask").bounding_box()
    assert 8 <= question["x"] <= 360 - 8 - question["width"]
