"""A page is one file: escaped, themed, readable in both palettes, whole without its script."""

import re
from base64 import b64decode
from hashlib import sha256
from importlib.resources import files
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from tests.pages.html import NASTY, SAFE, Page, check_page
from vitrail.pages import charts
from vitrail.pages.charts import bar_chart, line_chart, reliability_chart, svg_file, thin
from vitrail.pages.render import (
    HOLE,
    Section,
    as_iframe,
    breakable,
    environment,
    page_around,
    render,
    render_page,
)
from vitrail.pages.thumbnails import data_uri
from vitrail.pages.ticks import ticks

STYLE = (files("vitrail.pages") / "style.css").read_text(encoding="utf-8")


def palettes() -> dict[str, dict[str, str]]:
    """The variables of the light and of the dark palette that are colours."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, flags=re.S)[:2]
    pattern = r"(--[\w-]+): (#[0-9a-f]{6});"
    light_colours = dict(re.findall(pattern, light))
    return {"light": light_colours, "dark": {**light_colours, **dict(re.findall(pattern, dark))}}


def luminance(colour: str) -> float:
    """WCAG 2: relative luminance of #rrggbb."""
    levels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in levels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_can_be_seen_on_their_background(scheme: str) -> None:
    colours = palettes()[scheme]
    for background in ("--page", "--card"):
        for text in ("--ink", "--soft", "--accent", "--good", "--bad", "--warn"):
            assert contrast(colours[text], colours[background]) >= 4.5, (text, background)
        for place in range(1, 7):  # lines of charts: WCAG 1.4.11
            assert contrast(colours[f"--series-{place}"], colours[background]) >= 3
        for place in range(1, 13):
            assert contrast(colours[f"--model-{place}"], colours[background]) >= 3
        assert contrast(colours["--fill"], colours[background]) >= 3


# What people without red, without green and with all three cones see of linear RGB:
# Machado, Oliveira and Fernandes 2009, table 1, severity 1.
VISION = {
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
}


def lab(colour: str, vision: str) -> Any:
    """CIE L*a*b* of #rrggbb under D65, as someone sees it."""
    levels = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ seen / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_of_models_are_apart_for_every_kind_of_vision(scheme: str, vision: str) -> None:
    names = [f"--model-{place}" for place in range(1, 13)]
    seen = [lab(palettes()[scheme][name], vision) for name in names]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 14


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("cell", ["--good-cell", "--bad-cell"])
def test_numbers_can_be_read_in_the_strongest_cell(scheme: str, cell: str) -> None:
    colours = palettes()[scheme]
    blocks = re.findall(rf"{cell}: (\d+) (\d+) (\d+)", STYLE)
    rgb = [int(level) for level in blocks[scheme == "dark"]]
    page = [int(colours["--page"][place : place + 2], 16) for place in (1, 3, 5)]
    mixed = [round(0.72 * a + 0.28 * b) for a, b in zip(rgb, page, strict=True)]
    background = "#" + "".join(f"{level:02x}" for level in mixed)
    assert contrast(colours["--ink"], background) >= 3, background


def test_charts_have_the_colours_of_the_light_palette() -> None:
    light = palettes()["light"]
    for colour, variable in charts.VARIABLES.items():
        name = variable.removeprefix("var(").removesuffix(")")
        assert light["--ink" if name == "currentColor" else name] == colour


def test_only_the_script_of_the_page_may_run() -> None:
    page = render_page(NASTY, [Section("a", NASTY, Markup("<p>x</p>"))], kind=NASTY)
    read = check_page(page)
    allowed = re.search(r"script-src 'sha256-([^']*)'", page)
    assert allowed is not None
    assert b64decode(allowed[1]) == sha256(read.scripts.encode()).digest()
    assert page.count("<script") == 1
    assert SAFE in page


def test_a_page_can_be_written_around_what_comes_in_pieces() -> None:
    head, tail = page_around("t", [Section("images", "Images", HOLE)])
    assert "<h2>Images</h2>" in head
    check_page(head + "<p>an image</p>" + tail)
    assert "\0" not in head + tail


def test_a_notebook_gets_a_frame_of_its_own() -> None:
    frame = as_iframe(render_page("t", []))
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html')
    assert Page(frame + "").opened == []


def test_a_name_is_broken_between_words_only() -> None:
    assert breakable("data/train_set/a<b") == "data/<wbr>train_<wbr>set/<wbr>a&lt;b"
    assert "overflow-wrap: anywhere" not in STYLE


def table(rows: int) -> str:
    macros = '{% import "macros.html" as m %}{{ m.table(["class", "#n"], rows, filter="Filter") }}'
    return environment().from_string(macros).render(rows=[[NASTY, place] for place in range(rows)])


def test_a_long_table_is_whole_without_the_script() -> None:
    short, long = Page(table(25)), Page(table(1000))
    assert len(short.tables["full"]) == 26
    assert len(long.tables["full"]) == 1001
    assert "Show all 1,000 rows" in long.text
    assert "Show all" not in short.text


def test_a_chart_follows_the_theme_and_has_its_numbers() -> None:
    drawn = line_chart(
        NASTY,
        {"training": [(1, 2.0), (2, float("nan")), (3, 1.0)], NASTY: [(2, 0.5)]},
        mark=(3, 1.0),
    )
    assert not re.search(r"#[0-9a-f]{6}\b", drawn.svg), "a colour that stays in the dark"
    assert drawn.columns == ["step", "training", NASTY]
    assert drawn.rows == [["1", "2", ""], ["2", "–", "0.5"], ["3", "1", ""]]
    page = render_page("t", [Section("c", "Charts", render("chart.html", drawn=drawn))])
    read = check_page(page)
    assert read.charts == 1
    assert 'class="series"' in drawn.svg
    assert "var(--" not in svg_file(drawn.svg)


def test_bars_and_reliability_have_their_numbers() -> None:
    bars = bar_chart("Alike", {NASTY: 0.5, "$x$": 0.25}, limits=(0.3,), share=True)
    assert bars.rows == [[NASTY, "50.0%"], ["$x$", "25.0%"]]
    bins = reliability_chart("As is", [0, 10, 30], [0.1, 0.5, 0.9], [0.0, 0.6, 0.7])
    assert bins.rows == [["10", "50.0%", "60.0%"], ["30", "90.0%", "70.0%"]]
    for drawn in (bars, bins):
        check_page(render_page("t", [Section("c", "C", render("chart.html", drawn=drawn))]))


def test_points_at_one_place_are_all_in_the_table() -> None:
    """Shares of the labels that are trained for as many steps cost the same."""
    lines = {"A": [(1.0, 0.25), (1.0, 0.5)], "B": [(2.0, 0.75)]}
    ends = {"A": [(0.2, 0.3), (0.4, 0.6)], "B": [(0.7, 0.8)]}
    drawn = line_chart("Cost", lines, share=True, intervals=ends)
    assert drawn.rows == [
        ["1", "25.0% (20.0% to 30.0%)", ""],
        ["1", "50.0% (40.0% to 60.0%)", ""],
        ["2", "", "75.0% (70.0% to 80.0%)"],
    ]


def test_a_narrow_log_axis_has_numbers_too() -> None:
    """Models of about equal compute: neither 1, 2 nor 5 times a power of ten lies between."""
    drawn = line_chart("Cost", {"A": [(1.55e10, 0.4)], "B": [(1.7e10, 0.5)]}, log_x=True)
    assert len(re.findall(r">1\.\d+e10<", drawn.svg)) >= 2


def test_a_long_curve_keeps_its_extremes_and_a_short_table() -> None:
    points = [(float(step), 0.0) for step in range(100_000)]
    points[7], points[70_001] = (7.0, -5.0), (70_001.0, 9.0)
    few = thin(points)
    assert len(few) <= 402
    assert {points[0], points[7], points[70_001], points[-1]} <= set(few)
    drawn = line_chart("Loss", {"loss": points})
    assert (len(drawn.rows), drawn.left_out) == (60, 99_940)
    assert len(drawn.svg) < 40_000


@pytest.mark.parametrize(
    "values", [(0.0, 0.0), (1.0, 1.0), (-3.0, 2.0), (0.0, 1e-7), (1e-30, 2e-30), (1e9, 1e9)]
)
def test_ticks_enclose_the_values(values: tuple[float, float]) -> None:
    found = ticks(values)
    assert found[0] <= values[0] <= values[1] <= found[-1]
    assert 2 <= len(found) <= 8
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    "ends", [(0.2, 0.9), (1, 2325), (0.001, 0.0035), (0, 1), (5, 5), (1e5, 2e6), (1e-9, 3e-9)]
)
def test_numbers_below_a_chart_differ(ends: tuple[float, float]) -> None:
    drawn = line_chart("Accuracy", {"one": [(end, 0.5) for end in ends]})
    texts = re.findall(r">([\d.,]+)<", drawn.svg)
    below = texts[: texts.index("0.0", 1)]  # the numbers of the other axis follow
    assert len(below) > 1
    assert len(below) == len(set(below))


def test_noise_does_not_fill_an_axis() -> None:
    assert ticks([0.981, 0.983], share=True) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    low, high = ticks([5.0, 5.001], from_zero=False)[
        :: len(ticks([5.0, 5.001], from_zero=False)) - 1
    ]
    assert high - low >= 0.5


def test_few_pixels_stay_sharp_and_many_stay_small() -> None:
    assert data_uri(np.zeros((28, 28, 1), np.uint8)).startswith("data:image/png")
    noise = np.random.default_rng(0).integers(0, 256, (900, 700, 3), dtype=np.uint8)
    assert data_uri(noise).startswith("data:image/jpeg")
    assert len(data_uri(noise)) < 40_000


@pytest.mark.parametrize(
    ("title", "shown"),
    [("Evaluation of a on b", "Evaluation of a on b"), ("runs/a", "runs/a: evaluation")],
)
def test_the_name_of_a_tab_says_its_kind_once(title: str, shown: str) -> None:
    page = render_page(title, [Section("one", "One", Markup("x"))], kind="evaluation")
    assert f"<title>{shown}</title>" in page
