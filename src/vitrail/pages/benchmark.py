"""The page of a benchmark: how fast models ran, on which engines, and how that was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.pages.charts import Chart, bar_chart
from vitrail.pages.render import Section, count, render, render_page

LEFT = 2  # columns of text: the model and the engine
MAX_NAME = 26  # letters beside a bar


def benchmark_page(
    facts: Mapping[str, Any], titles: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """The page of a benchmark's facts, with its table as text."""
    heads = [*titles[:LEFT], *(f"#{title}" for title in titles[LEFT:])]
    problems = {
        f"{row['model']}, {row['engine']}, batch {row['batch_size']}": row["problem"]
        for row in facts["rows"]
        if row["problem"] is not None
    }
    sections = [
        Section(
            "speed",
            "Speed",
            render("bench_table.html", heads=heads, rows=rows, charts=speed_charts(facts["rows"])),
        ),
        Section(
            "problems",
            "What failed",
            render("facts.html", facts=problems) if problems else Markup(),
        ),
        Section("how", "How it was measured", render("bench_how.html", facts=facts)),
    ]
    models = len({row["model"] for row in facts["rows"]})
    return render_page(f"Speed of {count(models, 'model')}", sections, kind="benchmark")


def speed_charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """A chart for each batch size with a bar for each model and engine, the fastest first; none
    where there is nothing to compare."""
    measured: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["problem"] is None and row["images_per_second"]:
            measured.setdefault(row["batch_size"], []).append(row)
    charts = []
    for size, several in measured.items():
        several.sort(key=lambda row: -row["images_per_second"])
        engines = len({row["engine"] for row in several}) > 1
        bars = {bar_name(row, engines): row["images_per_second"] for row in several}
        if len(bars) > 1:
            title = f"Images per second, batch {size}"
            charts.append(bar_chart(title, bars, column="images per second"))
    return charts


def bar_name(row: Mapping[str, Any], with_engine: bool) -> str:
    """The end of the model's name, which tells runs apart, and the engine.

    >>> bar_name({"model": "runs/pets/2026-11-17/best", "engine": "openvino"}, with_engine=True)
    '…/2026-11-17/best openvino'
    """
    tail = f" {row['engine']}" if with_engine else ""
    room = MAX_NAME - len(tail)
    name = str(row["model"])
    return f"{name if len(name) <= room else '…' + name[1 - room :]}{tail}"
