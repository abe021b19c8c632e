"""The page of a claim that was put to the test: verdict, source, findings, numbers, runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.pages.charts import Chart, bar_chart, chart_style, figure_svg, line_chart, new_figure
from vitrail.pages.comparison import big_number, duration, range_text
from vitrail.pages.render import Section, number, percent, render, render_page, setting
from vitrail.pages.translation import page_text, translated_sentence

LARGE = 100_000  # counts above it have a unit: 2.1 M
RUN_COLUMNS = (
    "run", "#training images", "#steps", "#image size", "%accuracy", "#parameters",
    "#multiply-adds", "#training seconds",
)  # fmt: skip


def reproduction_page(facts: Mapping[str, Any]) -> str:
    """The page of a reproduction's facts."""
    sections = [
        Section("findings", "Findings", finding_section(facts)),
        Section("numbers", "Measurements", number_section(facts)),
        Section("runs", "What was run", run_section(facts)),
    ]
    return render_page(facts["claim"], sections, kind="claim", lead=lead(facts))


def lead(facts: Mapping[str, Any]) -> Markup:
    source = facts["source"]
    where = translated_sentence(source["where"])
    used = sorted({one["seed"] for one in facts["runs"]})  # a claim may need fewer than are given
    trained = {"seeds": ", ".join(map(str, used)), "runs": f"{len(facts['runs']):,}"}
    shown = {
        "data": facts["data"] or page_text("none"),
        "scale": facts["scale"]["name"],
        **(trained if facts["runs"] else {}),
        "computing": duration(sum(facts["seconds"].values())),
        "machine": translated_sentence(facts["machine"]),
    }
    return render(
        "reproduction_lead.html",
        sentence=facts["sentence"],
        source=f"{source['paper']} (arXiv:{source['arxiv']}), {where}",
        verdict=page_text(facts["verdict"]),
        in_words=facts["in_words"],
        kind={"shown": "good", "contradicted": "bad"}.get(facts["verdict"], "note"),
        caveat=facts["caveat"],
        facts=shown,
    )


def finding_section(facts: Mapping[str, Any]) -> Markup:
    heads = ["what the claim expects", "#measured", "#95 % interval", "#expected", "verdict", "how"]
    rows = [
        [
            translated_sentence(one["sentence"]),
            amount(one["estimate"], one["unit"]),
            ends_text(one),
            expected_text(one),
            page_text(one["verdict"]),
            translated_sentence(one["how"]),
        ]
        for one in facts["findings"]
    ]
    return render("reproduction_findings.html", heads=heads, rows=rows, how=facts["how"])


def amount(value: float | None, unit: str) -> str:
    """
    >>> amount(0.0312, "points"), amount(2.04, "number"), amount(0.81, "share"), amount(None, "")
    ('+3.1 points', '2.04', '81%', '–')
    """
    if value is None:
        return "–"
    if unit == "points":
        return page_text("{} points", bare(value, unit))
    return page_text("{} pixels", bare(value, unit)) if unit == "pixels" else bare(value, unit)


def ends_text(finding: Mapping[str, Any]) -> str:
    low, high = (bare(end, finding["unit"]) for end in finding["interval"])
    return page_text("{} to {}", low, high)


def bare(value: float | None, unit: str) -> str:
    """An amount without its unit.

    >>> bare(0.031, "points"), bare(None, "points")
    ('+3.1', 'any')
    """
    if value is None:
        return page_text("any")
    if unit == "points":
        return f"{100 * value:+.1f}"
    return f"{100 * value:.5g}%" if unit == "share" else number(value)


def expected_text(finding: Mapping[str, Any]) -> str:
    """
    >>> expected_text({"above": 0.0, "below": None, "unit": "number"})
    'above 0'
    >>> expected_text({"above": -0.02, "below": 0.02, "unit": "points"})
    '-2.0 to +2.0'
    """
    above, below, unit = finding["above"], finding["below"], finding["unit"]
    if above is not None and below is not None:
        return page_text("{} to {}", bare(above, unit), bare(below, unit))
    end = above if below is None else below
    return page_text("above {}" if below is None else "below {}", bare(end, unit) if end else "0")


def finding_text(finding: Mapping[str, Any]) -> str:
    """A finding in one line."""
    measured = amount(finding["estimate"], finding["unit"])
    return f"{finding['verdict']}: {finding['sentence']}: {measured} ({ends_text(finding)})"


def number_section(facts: Mapping[str, Any]) -> Markup:
    tables = [
        (translated_sentence(one["title"]), *formatted(one["columns"], one["rows"]))
        for one in facts["tables"]
    ]
    charts = [chart_of(one) for one in facts["drawings"]]
    return render("reproduction_numbers.html", charts=charts, tables=tables, notes=facts["notes"])


def formatted(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[Any]]:
    """Heads and cells as a page shows them; marks are those of `tasks.claims.claim.Table`.

    >>> formatted(["model", "%accuracy"], [["ViT", 0.812]])
    (['model', '#accuracy'], [['ViT', '81.2%']])
    """
    heads = [f"#{one[1:]}" if one[0] in "%~#" else one for one in columns]
    return heads, [[cell(c, v) for c, v in zip(columns, row, strict=True)] for row in rows]


def cell(column: str, value: Any) -> str:
    if value is None:
        return "–"
    match column[0]:
        case "%":
            return percent(value)
        case "~":
            return range_text(value)
        case "#":
            return big_number(value) if value >= LARGE else number(value)
    return str(value)


def chart_of(drawing: Mapping[str, Any]) -> Chart:
    """A chart from its numbers."""
    title, note = (translated_sentence(drawing[name]) for name in ("title", "note"))
    share = drawing["share"]
    if drawing["kind"] == "bars":
        return bar_chart(title, drawing["bars"], share=share, note=note)
    if drawing["kind"] == "grid":
        return grid_chart(title, drawing["grid"], note)
    lines = {name: [(p[0], p[1]) for p in line] for name, line in drawing["lines"].items()}
    ends = {
        name: [(p[2], p[3]) for p in line if len(p) > 2] for name, line in drawing["lines"].items()
    }
    return line_chart(
        title,
        lines,
        x_label=page_text(drawing["x_label"]),
        share=share,
        log_x=drawing["log_x"],
        intervals=ends if all(ends.values()) else None,
        note=note,
    )


def grid_chart(title: str, grid: Sequence[Sequence[float]], note: str) -> Chart:
    """Numbers of a grid as shades."""
    with chart_style():
        figure = new_figure(3.4, 2.9)
        axes = figure.add_subplot()
        shades = axes.imshow(grid, cmap="viridis", interpolation="nearest")
        axes.set(xlabel=page_text("column"), ylabel=page_text("row"))
        figure.colorbar(shades, ax=axes)
        svg = figure_svg(figure, title)
    columns = (page_text("column {}", place + 1) for place in range(len(grid[0])))
    heads = [page_text("row"), *columns]
    rows = [[str(place + 1), *(f"{one:.2f}" for one in row)] for place, row in enumerate(grid)]
    return Chart(title, svg, heads, rows, note)


def run_section(facts: Mapping[str, Any]) -> Markup:
    runs = [
        (
            one["name"],
            one["labelled"],
            one["steps"],
            one["image_size"][0],
            one["accuracy"],
            one["params"],
            one["macs"],
            one["seconds"],
        )
        for one in facts["runs"]
    ]
    heads, rows = formatted(RUN_COLUMNS, runs)
    scale = {
        name.replace("_", " "): setting(value)
        for name, value in facts["scale"].items()
        if name != "name"
    }
    spent = {name: duration(value) for name, value in facts["seconds"].items() if value}
    return render(
        "reproduction_runs.html",
        command=facts["command"],
        machine=translated_sentence(facts["machine"]),
        version=facts["version"],
        details=facts["details"],
        scale=scale if rows else {},
        spent=spent,
        heads=heads,
        rows=rows,
    )
