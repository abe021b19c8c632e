"""The Attention and Lens views in a real browser: what they show is what `capture` computes."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from tests.pages.window_browser import (
    OVERFLOW,
    Visitor,
    accessibility_problems,
    cells_of,
    cells_where,
    go,
    hover_cell,
    open_browser,
    settle,
    wait_until,
)
from tests.pages.window_server import WindowServer, serve_window
from tests.serving.conftest import make_model
from tests.serving.running import Running
from vitrail.explanation.attention_sinks import sink_tokens
from vitrail.explanation.capture import AttentionMap, capture
from vitrail.explanation.distance import mean_distance
from vitrail.explanation.lens import logit_lens
from vitrail.explanation.methods import explain_tensor
from vitrail.explanation.propagation import global_attention
from vitrail.models.model import Model
from vitrail.tasks.seen_image import see

LABELS = ("cat", "dog", "고양이")
GRID = (8, 8)
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
}


def sharpened(model: Model) -> Model:
    """Random weights large enough that heads look at few places, and not all at the same."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
            if "qkv" in name:
                parameter.mul_(3)
    model.passport = replace(model.passport, labels=LABELS)
    return model.eval()


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    torch.manual_seed(0)
    small = {"num_classes": 3, "image_size": 64}
    return {
        "vit": sharpened(vitrail.create("vit_ti_16", depth=3, patch_size=8, **small)),
        "swin": sharpened(
            vitrail.create("swin_t", dim=24, depths=(2, 2), heads=(2, 4), window_size=4, **small)
        ),
        "mobilevit": sharpened(vitrail.create("mobilevit_xxs", **small)),
    }


@pytest.fixture(scope="module")
def samples() -> dict[str, Image.Image]:
    noise = np.random.default_rng(0)
    pixels = [noise.integers(0, 256, (80, 96, 3), dtype=np.uint8) for _ in range(2)]
    return dict(zip(("first", "second"), map(Image.fromarray, pixels), strict=True))


@pytest.fixture(scope="module")
def server(models: dict[str, Model], samples: dict[str, Image.Image]) -> Iterator[WindowServer]:
    with serve_window(models, samples) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def visitor(browser: Any, server: WindowServer) -> Iterator[Visitor]:
    found = Visitor(browser, server.address)
    yield found
    found.close()


@pytest.fixture(scope="module")
def maps(
    models: dict[str, Model], samples: dict[str, Image.Image]
) -> dict[str, list[AttentionMap]]:
    """Of the first sample, every attention of every model."""
    return {name: captured(model, samples["first"]) for name, model in models.items()}


@torch.no_grad()
def captured(model: Model, image: Image.Image) -> list[AttentionMap]:
    with capture(model) as found:
        model(see(model, image).tensor)
    return list(found.values())


def expected_row(one: AttentionMap, head: int, query: Any) -> Tensor:
    every = one.on_grid(query)[0]
    return (every.mean(dim=0) if head < 0 else every[head]).flatten()


def patch_link(cell: tuple[int, int], cell_size: int = 8) -> str:
    return ",".join(str(place * cell_size + cell_size // 2) for place in cell)


def test_the_overlay_is_what_capture_says_for_every_layer_and_head(
    visitor: Visitor, maps: dict[str, list[AttentionMap]]
) -> None:
    page = visitor.open()
    seen = set()
    for layer, one in enumerate(maps["vit"]):
        for head, cell in ((-1, (0, 0)), (0, (3, 5)), (2, (3, 5))):
            go(page, f"layer={layer}&head={head}&query={patch_link(cell)}")
            expected = expected_row(one, head, cell)
            found = cells_where(page, GRID, int(expected.argmax()))
            assert int(np.argmax(found)) == int(expected.argmax())
            # opacity rises with the share: the same order, but for shares that are nearly equal
            strength = np.array(found) / max(found)
            shares = (expected / expected.max()).numpy()
            assert np.abs(strength - (0.05 + 0.95 * shares)).max() < 0.03
            seen.add(tuple(found))
    assert len(seen) == 9  # another head, another picture


@pytest.mark.slow
def test_a_tip_and_a_sentence_give_the_shares(
    visitor: Visitor, maps: dict[str, list[AttentionMap]]
) -> None:
    page = visitor.open(f"layer=1&head=1&query={patch_link((2, 2))}")
    expected = expected_row(maps["vit"][1], 1, (2, 2))
    best = int(expected.argmax())
    hover_cell(page, (best // 8, best % 8), GRID)
    share, times = re.findall(r"([\d.]+)(?:%| times)", page.locator(".tip").inner_text())
    assert float(share) == pytest.approx(100 * float(expected[best]), abs=1)
    assert float(times) == pytest.approx(65 * float(expected[best]), abs=0.7)
    order = expected.sort(descending=True).values.cumsum(0)
    half = int((order < expected.sum() / 2).sum()) + 1
    words = page.locator("#say").inner_text()
    assert words.startswith("Layer 2, head 2.")
    assert abs(int(re.search(r"from (\d+) of 64", words)[1]) - half) <= 1  # type: ignore[index]
    assert page.locator(".scale span").last.inner_text() == f"{share}%"


@pytest.mark.slow
def test_who_looks_here_is_the_column(
    visitor: Visitor, maps: dict[str, list[AttentionMap]]
) -> None:
    page = visitor.open(f"layer=2&head=0&query={patch_link((4, 4))}")
    before = cells_of(page, GRID)
    page.click("#back")
    settle(page)
    column = global_attention(maps["vit"][2])[0, 0, 1:, 1 + 4 * 8 + 4]
    found = cells_of(page, GRID)
    assert found != before
    assert int(np.argmax(found)) == int(column.argmax())
    assert "look at this patch" in page.locator("#say").inner_text()


@pytest.mark.slow
def test_the_class_token_can_be_chosen(
    visitor: Visitor, maps: dict[str, list[AttentionMap]]
) -> None:
    page = visitor.open("layer=2&head=1")
    page.click("#tokens button")
    settle(page)
    assert page.locator("#tokens button").get_attribute("aria-pressed") == "true"
    expected = expected_row(maps["vit"][2], 1, 0)
    assert int(np.argmax(cells_of(page, GRID))) == int(expected.argmax())
    assert page.locator("#say").inner_text().find("class token") > 0


def test_hovering_shows_another_patch_and_asks_nobody(
    visitor: Visitor, server: WindowServer, maps: dict[str, list[AttentionMap]]
) -> None:
    page = visitor.open("layer=1&head=0")
    asked, pictures = server.questions, set()
    for cell in ((0, 0), (2, 6), (7, 3)):
        hover_cell(page, cell, GRID)
        found = cells_of(page, GRID)
        assert int(np.argmax(found)) == int(expected_row(maps["vit"][1], 0, cell).argmax())
        pictures.add(tuple(found))
    page.mouse.move(0, 0)
    page.click("[data-layer='2'][data-head='1']")
    settle(page)
    assert len(pictures) == 3
    assert server.questions == asked
    # a click keeps the patch: the pointer then reads shares and changes nothing
    hover_cell(page, (2, 6), GRID)
    page.mouse.down()
    page.mouse.up()
    settle(page)
    kept = cells_of(page, GRID)
    hover_cell(page, (5, 1), GRID)
    assert cells_of(page, GRID) == kept
    assert "times an even share" in page.locator(".tip").inner_text()
    assert server.questions == asked


@pytest.mark.slow
def test_the_keyboard_is_enough_and_the_address_follows(visitor: Visitor) -> None:
    page = visitor.open("layer=0&query=4,4")
    page.focus("#stage")
    pictures = {tuple(cells_of(page, GRID))}
    for key in ("ArrowRight", "ArrowDown", "]", ".", "b"):
        page.keyboard.press(key)
        settle(page)
        pictures.add(tuple(cells_of(page, GRID)))
    assert len(pictures) == 6
    wait_until(page, "location.hash.includes('back=1')")
    words = dict(part.split("=") for part in page.evaluate("location.hash.slice(1)").split("&"))
    assert words["query"] == "12%2C12"
    assert (words["layer"], words["head"], words["back"]) == ("1", "0", "1")
    page.keyboard.press("[")
    page.keyboard.press(",")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # above the first row are the prefix tokens
    settle(page)
    assert page.locator("#layer").input_value() == "0"
    assert page.locator("#head").input_value() == "-1"
    assert page.locator("#tokens button").get_attribute("aria-pressed") == "true"
    assert "class token" in page.locator("#stage").get_attribute("aria-label")


@pytest.mark.slow
def test_small_maps_move_by_arrow_keys_and_choose(visitor: Visitor) -> None:
    page = visitor.open("layer=1&head=1")
    assert page.locator(".tile").count() == 3 * 4
    assert page.locator(".tile[tabindex='0']").count() == 1
    page.focus(".tile[tabindex='0']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.locator("#layer").input_value() == "2"
    assert page.locator("#head").input_value() == "2"
    assert page.evaluate("document.activeElement.dataset.head") == "2"


@pytest.mark.slow
def test_a_deep_link_brings_everything_back(visitor: Visitor) -> None:
    link = "image=sample:second&layer=1&head=2&query=20,44&back=1&opacity=0.5&lang=ko&theme=dark"
    page = visitor.open(link)
    picture = cells_of(page, GRID)
    assert page.locator("html").get_attribute("lang") == "ko"
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.locator("#opacity").input_value() == "0.5"
    assert page.locator("[data-id=second]").get_attribute("aria-pressed") == "true"
    page.focus("#stage")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    wait_until(page, "location.hash.includes('query=20%2C44')")
    again = visitor.open(page.evaluate("location.hash.slice(1)"))
    assert cells_of(again, GRID) == picture


@pytest.mark.slow
def test_windows_are_drawn_and_nothing_is_seen_outside(
    visitor: Visitor, maps: dict[str, list[AttentionMap]]
) -> None:
    grid = maps["swin"][1].layout.grid
    page = visitor.open(f"model=swin&layer=1&head=0&query={patch_link((6, 6), 4)}")
    assert maps["swin"][1].layout.shift == (2, 2)
    for name in ("windows", "group", "query"):
        assert page.locator(f".mark-{name}").get_attribute("d")
    found, expected = cells_of(page, grid), expected_row(maps["swin"][1], 0, (6, 6))
    assert int(np.argmax(found)) == int(expected.argmax())
    outside = expected == 0
    assert max(np.array(found)[outside.numpy()]) <= 0.06 * 255
    assert "of its window" in page.locator("#say").inner_text()
    page.uncheck("#windows")
    settle(page)
    assert not page.locator(".mark-windows").get_attribute("d")


@pytest.mark.slow
def test_folds_are_drawn(visitor: Visitor, maps: dict[str, list[AttentionMap]]) -> None:
    page = visitor.open("model=mobilevit&layer=0&head=1&query=12,12")
    one = maps["mobilevit"][0]
    found, expected = cells_of(page, one.layout.grid), expected_row(one, 1, (1, 1))
    assert int(np.argmax(found)) == int(expected.argmax())
    assert page.locator(".mark-members").get_attribute("d").count("M") == 16
    assert "that it can see" in page.locator("#say").inner_text()


@pytest.mark.slow
def test_distances_and_sinks_are_those_of_the_photo(
    visitor: Visitor, maps: dict[str, list[AttentionMap]]
) -> None:
    page = visitor.open("layer=1")
    assert page.locator("#distance .chart-dot").count() == 9
    page.locator("#panel-attention details", has=page.locator("#distance-table")).click()
    for number, row in enumerate(page.locator("#distance-table tbody tr").all()):
        cells = [int(cell) for cell in row.locator("td").all_inner_texts()]
        assert cells[2:] == pytest.approx(mean_distance(maps["vit"][number])[0].tolist(), abs=0.51)
    for number, one in enumerate(maps["vit"]):
        go(page, f"layer={number}")
        shown = page.locator("#sink-list li:visible").all_inner_texts()
        assert len(shown) == len(sink_tokens(one))


@pytest.mark.slow
def test_layers_are_played_one_after_the_other(visitor: Visitor) -> None:
    page = visitor.open("layer=2")
    page.click("#play")
    assert page.locator("#play").get_attribute("aria-pressed") == "true"
    seen = []
    for _ in range(100):
        layer = page.locator("#layer").input_value()
        seen += [layer] if layer not in seen else []
        if page.locator("#play").get_attribute("aria-pressed") == "false":
            break
        page.wait_for_timeout(50)
    assert seen == ["0", "1", "2"]


@pytest.mark.slow
def test_rollout_is_there_without_a_question(visitor: Visitor, server: WindowServer) -> None:
    page = visitor.open()
    asked = server.questions
    page.select_option("#method", "rollout")
    settle(page)
    assert page.locator("#say").inner_text().startswith("Attention rollout.")
    assert not page.locator("#layer").is_visible()
    assert not page.locator("#target").is_visible()
    assert server.questions == asked


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gradcam", "saliency", "occlusion"])
def test_a_method_shows_its_map_for_the_chosen_class(
    visitor: Visitor, models: dict[str, Model], samples: dict[str, Image.Image], method: str
) -> None:
    page = visitor.open()
    page.select_option("#method", method)
    pictures = set()
    for target in (2, 0):
        page.select_option("#target", str(target))
        wait_until(page, f"document.getElementById('say').innerText.includes('{LABELS[target]}')")
        settle(page)
        model, image = models["vit"], see(models["vit"], samples["first"]).tensor
        expected = explain_tensor(model, image, method, target=target).map[0].clamp(min=0)
        found = cells_of(page, GRID)
        assert int(np.argmax(found)) == int(expected.flatten().argmax())
        pictures.add(tuple(found))
    assert len(pictures) == 2
    page.click("[data-layer='1'][data-head='0']")  # a small map leads back to attention
    settle(page)
    assert page.locator("#method").input_value() == "attention"


@pytest.mark.slow
def test_the_lens_gives_the_scores_after_every_block(
    visitor: Visitor, models: dict[str, Model], samples: dict[str, Image.Image]
) -> None:
    page = visitor.open("view=lens")
    model = models["vit"]
    scores = logit_lens(model, see(model, samples["first"]).tensor).logits.softmax(dim=1)
    heads = page.locator("#lens-table thead th").all_text_contents()[1:]
    rows = page.locator("#lens-table tbody tr").all()
    assert len(rows) == 3
    for row, expected in zip(rows, scores, strict=True):
        found = [float(cell.rstrip("%")) for cell in row.locator("td").all_text_contents()]
        for label, value in zip(heads, found, strict=True):
            assert value == pytest.approx(100 * float(expected[LABELS.index(label)]), abs=0.06)
    best = scores.argmax(dim=1).tolist()
    assert LABELS[best[-1]] in page.locator("#lens-say").inner_text()
    first = page.locator("#lens-bars").inner_text()
    page.focus("#lens-block")
    page.keyboard.press("Home")
    settle(page)
    assert page.locator("#lens-bars").inner_text() != first
    assert LABELS[best[0]] == page.locator("#lens-bars li span").first.inner_text()


@pytest.mark.slow
def test_both_languages_are_complete_on_the_page(visitor: Visitor) -> None:
    page = visitor.open("model=swin&layer=1")
    for view in ("attention", "lens"):
        go(page, f"model=swin&layer=1&view={view}")
        for _ in range(2):
            page.click("#language")
            settle(page)
            words = page.locator("body").inner_text()
            assert not re.search(r"\b(?:frame|attention|lens)\.[a-z_.]+\b", words)
            language = page.locator("html").get_attribute("lang")
            korean = re.search("[가-힣]{3}", words.replace("한국어", "").replace("고양이", ""))
            assert (korean is not None) == (language == "ko")


@pytest.mark.parametrize("model", [pytest.param("vit", marks=pytest.mark.slow), "swin"])
def test_a_phone_shows_all_without_scrolling_sideways(visitor: Visitor, model: str) -> None:
    page = visitor.open(f"model={model}", **PHONE)
    for view in ("attention", "lens"):
        for lang in ("en", "ko"):
            go(page, f"model={model}&view={view}&lang={lang}&layer=1")
            assert page.evaluate(OVERFLOW) == 0, (view, lang)
    go(page, f"model={model}")
    assert page.locator("#heads-one").get_attribute("aria-pressed") == "true"
    box = page.locator("#stage").bounding_box()
    page.touchscreen.tap(box["x"] + 3, box["y"] + 3)
    settle(page)
    assert "1행 1열" in page.locator("#stage").get_attribute("aria-label")


@pytest.mark.slow
def test_photos_come_in_by_file_paste_drop_and_camera(
    visitor: Visitor, server: WindowServer, tmp_path: Path
) -> None:
    page = visitor.open(permissions=["camera"])
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(1)})
    wait_until(page, "document.documentElement.dataset.inspected === '2'")
    assert page.locator(".sample[aria-pressed=true]").count() == 0
    for number, kind in ((2, "paste"), (3, "drop")):
        page.evaluate(DROP, [kind, list(png(number)), "b.png"])
        wait_until(page, f"document.documentElement.dataset.inspected === '{number + 1}'")
    page.click("#camera-open")
    page.wait_for_selector("#camera[open]")
    wait_until(page, "document.getElementById('video').videoWidth > 0")
    page.click("#camera-take")
    wait_until(page, "document.documentElement.dataset.inspected === '5'")
    page.click("[data-id=second]")
    wait_until(page, "document.documentElement.dataset.inspected === '6'")
    assert not page.locator("#notice").is_visible()


DROP = """([kind, content, name]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(content)], name, { type: "image/png" }));
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true })
    : new DragEvent("drop", { dataTransfer: transfer, bubbles: true });
  document.body.dispatchEvent(event);
}"""


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.mark.slow
def test_what_goes_wrong_is_said_in_words(visitor: Visitor) -> None:
    page = visitor.open()
    page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"words"})
    assert "a.txt is not an image" in page.locator("#notice").inner_text()
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"words"})
    wait_until(page, "document.documentElement.dataset.inspected === '2'")
    assert (
        "a.png cannot be shown: the file must be an image" in page.locator("#notice").inner_text()
    )
    page.click("#notice-close")
    assert not page.locator("#notice").is_visible()
    page.route("**/v1/**", lambda route: route.abort())
    page.set_input_files("#file", {"name": "b.png", "mimeType": "image/png", "buffer": png(4)})
    page.wait_for_selector("#notice:not([hidden])")
    assert "server does not answer" in page.locator("#notice").inner_text()
    visitor.problems.clear()  # the browser logs the aborted request


@pytest.mark.slow
def test_a_broken_photo_is_named_and_leaves_the_one_before_whole(visitor: Visitor) -> None:
    """With its maps, its answer and its link; also where one is dropped while another is opened."""
    page = visitor.open("image=sample:second&layer=1&head=1&query=20,44")
    before, answer = cells_of(page, GRID), page.locator("#answer").inner_text()
    address = page.evaluate("location.hash")
    page.set_input_files(
        "#file", {"name": "cat 1.png", "mimeType": "image/png", "buffer": b"words"}
    )
    wait_until(page, "document.documentElement.dataset.inspected === '2'")
    settle(page)
    words = page.locator("#notice").inner_text()
    assert "cat 1.png cannot be shown: the file must be an image" in words
    assert cells_of(page, GRID) == before
    assert page.locator("#answer").inner_text() == answer
    assert page.locator("[data-id=second]").get_attribute("aria-pressed") == "true"
    wait_until(page, "decodeURIComponent(location.hash) === " + json.dumps(address))
    page.focus("#stage")
    page.keyboard.press("ArrowLeft")  # the maps are whole: another patch, another picture
    settle(page)
    assert cells_of(page, GRID) != before
    page.evaluate(DROP, ["drop", list(b"no image"), "b.png"])
    page.evaluate(DROP, ["drop", list(png(9)), "good.png"])
    wait_until(page, "document.documentElement.dataset.inspected === '3'")
    settle(page)
    assert not page.locator("#notice").is_visible()
    assert page.locator(".sample[aria-pressed=true]").count() == 0
    assert cells_of(page, GRID)


@pytest.mark.slow
def test_a_broken_first_photo_leaves_an_empty_page(browser: Any, models: dict[str, Model]) -> None:
    with serve_window({"vit": models["vit"]}, {}) as bare:
        visitor = Visitor(browser, bare.address)
        page = visitor.open(inspected=False)
        page.set_input_files(
            "#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"words"}
        )
        page.wait_for_selector("html[data-inspected]")
        settle(page)
        assert "a.png cannot be shown" in page.locator("#notice").inner_text()
        assert page.locator("#panel-attention").inner_text().startswith("Open a photo")
        visitor.close()


@pytest.mark.slow
def test_what_is_shown_is_saved_as_png_and_svg(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open("layer=1&head=0&query=20,20")
    for name in ("png", "svg"):
        with page.expect_download() as waiting:
            page.click(f"#{name}")
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        assert file.name == f"vitrail-layer-2-head-1.{name}"
    with Image.open(tmp_path / "vitrail-layer-2-head-1.png") as image:
        colours = len(image.convert("RGB").getcolors(maxcolors=10**6) or ())
        assert image.width > 1000
    assert colours > 500
    text = (tmp_path / "vitrail-layer-2-head-1.svg").read_text(encoding="utf-8")
    assert text.count("data:image/png") == 2
    assert "Layer 2, head 1 · Where it looks · row 3, column 3" in text
    assert "vit · first" in text
    assert 'stop-opacity="0.05"' in text  # as the scale on the page, which begins without colour


@pytest.mark.slow
def test_a_link_to_an_own_photo_says_that_it_does_not_hold_it(visitor: Visitor) -> None:
    page = visitor.open()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#link")
    page.wait_for_selector("#link >> text=Link copied")
    assert page.locator("#link-note").inner_text() == ""
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(3)})
    wait_until(page, "document.documentElement.dataset.inspected === '2'")
    page.click("#link")
    page.wait_for_selector("#link-note >> text=does not hold your photo")
    page.click(".sample")
    wait_until(page, "document.getElementById('link-note').textContent === ''")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "ticks", "last"),
    [
        ("swin", ["merging", "2.1", "2.2"], "Stage 2 block 2"),
        ("mobilevit", ["conv", "5.1", "5.2", "5.3"], "Stage 5 block 3"),
    ],
)
def test_the_lens_counts_the_blocks_of_a_stage(
    visitor: Visitor, model: str, ticks: list[str], last: str
) -> None:
    page = visitor.open(f"view=lens&model={model}")
    axis = page.locator("#lens-chart text[text-anchor=middle]").all_text_contents()
    assert axis == ticks
    rows = page.locator("#lens-table tbody th").all_text_contents()
    assert len(set(rows)) == len(ticks)
    assert rows[-1] == last
    assert rows[0] in ("Stage 2 patch merging", "Stage 5 convolution")
    note = page.locator("#panel-lens").inner_text()
    left, steps = map(int, re.findall(r"(\d+) of (\d+) steps are left out", note)[0])
    assert left + len(ticks) == steps


@pytest.mark.slow
def test_charts_are_saved_with_their_colours(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open("view=lens")
    page.click("#panel-lens summary")
    with page.expect_download() as waiting:
        page.locator("#panel-lens details button", has_text="SVG").click()
    waiting.value.save_as(tmp_path / "lens.svg")
    text = (tmp_path / "lens.svg").read_text(encoding="utf-8")
    assert text.count("<polyline") == 3
    assert 'stroke="rgb(' in text
    assert "var(--" not in text


@pytest.mark.slow
def test_the_page_waits_for_a_model_that_is_being_loaded(
    visitor: Visitor, server: WindowServer
) -> None:
    server.loading = server.late = 1
    page = visitor.open(inspected=False)
    page.wait_for_selector("html[data-inspected]")
    assert not page.locator("#busy").is_visible()
    assert not page.locator("#notice").is_visible()


@pytest.mark.slow
def test_a_model_that_is_loaded_later_is_waited_for_when_it_is_chosen(
    visitor: Visitor, server: WindowServer
) -> None:
    server.slow = {"swin"}
    page = visitor.open()
    page.select_option("#model", "swin")
    page.wait_for_selector("#busy:not([hidden])")
    assert "being loaded" in page.locator("#busy").inner_text()
    server.slow = set()
    wait_until(page, "document.documentElement.dataset.inspected === '2'")
    settle(page)
    assert not page.locator("#busy").is_visible()
    assert "model=swin" in page.evaluate("location.hash")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, server: WindowServer, theme: str) -> None:
    visitor = Visitor(browser, server.address)
    page = visitor.open("model=swin&layer=1", bypass_csp=True, color_scheme=theme)
    for link in ("model=swin&layer=1&view=attention", "view=lens", "lang=ko&view=attention"):
        go(page, link)
        page.wait_for_selector("html[data-inspected]")
        assert accessibility_problems(page) == []
    visitor.close()


@pytest.mark.slow
def test_the_first_paint_takes_less_than_a_second(visitor: Visitor) -> None:
    page = visitor.open()
    paints = page.evaluate(
        "performance.getEntriesByType('paint').map(({ name, startTime }) => [name, startTime])"
    )
    assert dict(paints)["first-contentful-paint"] < 1000


@pytest.mark.slow
def test_the_service_itself_shows_the_same(browser: Any, service: Running) -> None:
    """Under the service's own policy and headers, with its own samples."""
    visitor = Visitor(browser, f"{service.address}/", seconds=240)
    page = visitor.open("model=pets&layer=1&head=2&query=12,20")
    content = service.get("/v1/samples/0?model=pets").body
    model = make_model(0)
    one = captured(model, Image.open(BytesIO(content)))[1]
    expected = expected_row(one, 2, (1, 2))
    assert int(np.argmax(cells_of(page, (4, 4)))) == int(expected.argmax())
    page.select_option("#method", "saliency")
    wait_until(page, "document.getElementById('say').innerText.startsWith('Saliency')")
    page.click("#tab-lens")
    settle(page)
    assert page.locator("#lens-table tbody tr").count() == 2
    visitor.close()
