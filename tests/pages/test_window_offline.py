"""`explain --html`: one file that shows all attention without a server, in a real browser too."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.pages.window_browser import Visitor, cells_of, go, hover_cell, open_browser, settle
from vitrail.core.errors import UserError
from vitrail.explanation.capture import capture
from vitrail.models.model import Model
from vitrail.tasks.offline_page import MAX_IMAGES

GRID = (4, 4)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    made = vitrail.create("vit_ti_16", depth=2, image_size=32, patch_size=8, num_classes=3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    made.passport = replace(made.passport, labels=("cat", "dog", HOSTILE))
    return made.eval()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / name for name in ("first.png", "<b>second.png")]
    for seed, path in enumerate(paths):
        pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return paths


def explain(model: Model, images: Any, **options: Any) -> Any:
    return vitrail.explain(model, images, method=["gradcam", "rollout"], verdict=False, **options)


def test_explain_writes_the_page_and_names_it(
    model: Model, images: list[Path], tmp_path: Path
) -> None:
    page = tmp_path / "look.html"
    found = explain(model, images, html=page)
    assert found.facts()["html"] == str(page)
    html = page.read_text(encoding="utf-8")
    assert html.count('"packed":') == 2
    assert HOSTILE not in html
    assert "<b>second" not in html
    assert not re.search(r'(?:src|href)="(?!data:)', html)
    with pytest.raises(UserError, match="already exists"):
        explain(model, images, html=page)
    explain(model, images, html=page, overwrite=True)


def test_a_page_inside_of_the_output_directory_is_one_of_its_files(
    model: Model, images: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for overwrite in (False, True):
        explain(model, images[0], out=out, html=out / "look.html", overwrite=overwrite)
        assert (out / "look.html").is_file()


def test_what_cannot_be_written_is_refused_before_the_work(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="html must be a file"):
        explain(model, Image.new("RGB", (8, 8)), html=tmp_path)
    plan = explain(model, Image.new("RGB", (8, 8)), html=tmp_path / "a.html", dry_run=True)
    assert plan.facts()["html"] == str(tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


@pytest.mark.slow
def test_a_page_has_the_first_images(model: Model, tmp_path: Path) -> None:
    pixels = [np.full((8, 8, 3), shade, np.uint8) for shade in range(MAX_IMAGES + 1)]
    explain(model, pixels, html=tmp_path / "many.html")
    html = (tmp_path / "many.html").read_text(encoding="utf-8")
    assert html.count('"packed":') == MAX_IMAGES


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.mark.slow
def test_the_file_shows_what_capture_says_without_a_server(
    browser: Any, model: Model, images: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "look.html"
    explain(model, images, html=file, target="dog")
    visitor = Visitor(browser, file.as_uri())
    page = visitor.open("layer=1&head=2&query=4,20")
    with torch.no_grad(), capture(model) as maps:
        model(model.preprocess([images[0]]))
    one = maps["blocks.1.attention"]
    assert int(np.argmax(cells_of(page, GRID))) == int(one.on_grid((0, 2))[0, 2].argmax())
    go(page, "layer=1&head=0")
    hover_cell(page, (3, 3), GRID)
    assert int(np.argmax(cells_of(page, GRID))) == int(one.on_grid((3, 3))[0, 0].argmax())
    methods = page.locator("#method option").evaluate_all("all => all.map(({ value }) => value)")
    assert methods == ["attention", "rollout", "gradcam"]
    page.select_option("#method", "gradcam")
    settle(page)
    assert page.locator("#say").inner_text().startswith("Grad-CAM for dog.")
    assert page.locator("#samples button").count() == 2
    page.locator("#samples button").nth(1).click()
    page.wait_for_selector("html[data-inspected='2']")
    page.click("#tab-lens")
    settle(page)
    assert page.locator("#lens-table tbody tr").count() == 2
    assert not page.locator("#ways").is_visible()
    visitor.close()  # no request left the file, no error was logged


@pytest.mark.slow
def test_the_file_works_for_one_channel_and_without_a_head(browser: Any, tmp_path: Path) -> None:
    small: dict[str, Any] = {"depth": 2, "image_size": 8, "patch_size": 2}
    models = {
        "grey": vitrail.create("vit_ti_16", num_classes=3, channels=1, **small),
        "headless": vitrail.create("vit_ti_16", num_classes=0, **small),
    }
    for name, model in models.items():
        channels = 1 if name == "grey" else 3
        pixels = np.arange(8 * 8 * channels, dtype=np.uint8).reshape(8, 8, channels)
        file = tmp_path / f"{name}.html"
        vitrail.explain(model.eval(), pixels, method="rollout", verdict=False, html=file)
        visitor = Visitor(browser, file.as_uri())
        page = visitor.open()
        assert max(cells_of(page, GRID)) > 100
        page.click("#tab-lens")
        settle(page)
        text = page.locator("#panel-lens").inner_text()
        assert ("no classes" in text) == (name == "headless")
        visitor.close()
