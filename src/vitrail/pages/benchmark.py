"""The page of a benchmark: how fast models ran, on which engines, and how that was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.pages.charts import Chart, bar_chart
from vitrail.pages.render import Section, render, render_page
from vitrail.pages.translation import count, page_text, translated_sentence

LEFT = 2  # columns of text: the model and the engine
FAILED = "failed"  # in a cell: what follows says why
MAX_NAME = 26  # letters beside a bar,
MIN_MODEL = 12  # of which a model has these; what is more, the table below shows


def benchmark_page(
    facts: Mapping[str, Any], titles: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """The page of a benchmark's facts, with its table as text."""
    heads = [*titles[:LEFT], *(f"#{title}" for title in titles[LEFT:])]
    cells = [[page_text(cell) if cell == FAILED else cell for cell in row] for row in rows]
    problems = {
        row_name(row): translated_sentence(row["problem"])
        for row in facts["rows"]
        if row["problem"] is not None
    }
    sections = [
        Section(
            "speed",
            "Speed",
            render("bench_table.html", heads=heads, rows=cells, charts=speed_charts(facts["rows"])),
        ),
        Section(
            "problems",
            "What failed",
            render("facts.html", facts=problems) if problems else Markup(),
        ),
        Section("how", "How it was measured", render("bench_how.html", facts=facts)),
    ]
    models = len({row["model"] for row in facts["rows"]})
    return render_page(page_text("Speed of {}", count(models, "model")), sections, kind="benchmark")


def speed_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """A chart for each batch size with a bar for each row, the fastest first; none where there is
    nothing to compare."""
    measured: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["images_per_second"]:
            measured.setdefault(row["batch_size"], []).append(row)
    charts = []
    for size, group in measured.items():
        group.sort(key=lambda row: -row["images_per_second"])
        differing = [name for name in ("model", "engine") if len({row[name] for row in group}) > 1]
        bars = {bar_name(row, differing): row["images_per_second"] for row in group}
        if len(bars) > 1:
            title = page_text("Images per second, batch {}", size)
            charts.append(bar_chart(title, bars, column=page_text("images per second")))
    return charts


def row_name(row: Mapping[str, Any]) -> str:
    """What a row is of, as distinct from all others.

    >>> row_name({"model": "vit_b_16", "engine": "eager", "batch_size": 8})
    'vit_b_16, eager, batch 8'
    >>> int8 = {"precision": "int8", "merged_tokens": 16}
    >>> row_name({"model": "vit_b_16", "engine": "openvino", "batch_size": 8, **int8})
    'vit_b_16, openvino, int8, r=16, batch 8'
    """
    batch = page_text("batch {}", row["batch_size"])
    words = [row["model"], row["engine"], *variant_words(row), batch]
    return ", ".join(map(str, words))


def variant_words(row: Mapping[str, Any]) -> list[str]:
    """The precision and the merged tokens of a row, unless the model is computed as it is."""
    precision, merged = row.get("precision", "float32"), row.get("merged_tokens", 0)
    return [*([precision] if precision != "float32" else []), *([f"r={merged}"] if merged else [])]


def bar_name(row: Mapping[str, Any], differing: Sequence[str]) -> str:
    """The end of the model's name, which tells runs apart, and the engine, as far as they differ
    between bars; the precision and the merged tokens.

    >>> row = {"model": "runs/pets/2026-11-17/best", "engine": "openvino"}
    >>> bar_name(row, ["model", "engine"])
    '…/2026-11-17/best openvino'
    >>> bar_name(row | {"precision": "int8", "merged_tokens": 16}, ["engine"])
    'openvino int8 r=16'
    """
    words = [*([row["engine"]] if "engine" in differing else []), *variant_words(row)]
    if "model" in differing or not words:
        room = max(MAX_NAME - len(" ".join(["", *words])), MIN_MODEL)
        name = str(row["model"])
        words.insert(0, name if len(name) <= room else "…" + name[1 - room :])
    return " ".join(words)
