"""The page of a benchmark: how fast models ran, on which engines, and how that was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.pages.render import Section, count, render, render_page

LEFT = 2  # columns of text: the model and the engine


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
        Section("speed", "Speed", render("bench_table.html", heads=heads, rows=rows)),
        Section(
            "problems",
            "What failed",
            render("facts.html", facts=problems) if problems else Markup(),
        ),
        Section("how", "How it was measured", render("bench_how.html", facts=facts)),
    ]
    models = len({row["model"] for row in facts["rows"]})
    return render_page(f"Speed of {count(models, 'model')}", sections, kind="benchmark")
