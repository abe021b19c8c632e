"""The page of a comparison: accuracy over the share of labels and over cost, a table, tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.pages.charts import Chart, Point, line_chart
from vitrail.pages.render import Section, count, number, percent, render, render_page, setting

Means = Sequence[Mapping[str, Any]]
COSTS = {"flops": "training FLOPs", "seconds": "training seconds"}
# Settings that the head of the page or the table shows already.
SHOWN = ("data", "models", "shares", "seeds", "image_sizes")


def comparison_page(facts: Mapping[str, Any]) -> str:
    """The page of a comparison's facts."""
    means, settings = facts["means"], facts["settings"]
    models = len({one["model"] for one in means}) or len(settings["models"])
    sections = [
        Section("accuracy", "Accuracy and cost", render_charts(comparison_charts(means))),
        Section("table", "Means over seeds", mean_table(means)),
        Section("tests", "Which model is better?", test_section(facts)),
        Section("runs", "Every run", run_table(facts["cells"])),
        Section("settings", "Settings", setting_section(facts)),
    ]
    title = f"{count(models, 'model')} on {facts['data']}"
    return render_page(title, sections, kind="comparison", lead=lead(facts))


def lead(facts: Mapping[str, Any]) -> Markup:
    settings = facts["settings"]
    shown = {
        "data": facts["data"],
        "tested on": f"{facts['test_images'] or 0:,} images of {facts['split'] or 'no split'}",
        "runs": f"{len(facts['cells']):,}",
        "seeds": f"{len(settings['seeds']):,}",
        "training time": duration(sum(cell["seconds"] for cell in facts["cells"])),
    }
    body = render("facts.html", facts=shown)
    if facts["remaining"]:
        left = count(len(facts["remaining"]), "run")
        text = f"not finished: {left} of this comparison {'is' if left == '1 run' else 'are'} left"
        body += render("note.html", text=text)
    return body


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(700), duration(9_000)
    ('42 s', '12 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def render_charts(charts: Sequence[Chart]) -> Markup:
    return render("comparison_charts.html", charts=charts)


def comparison_charts(means: Means) -> list[Chart]:
    """Accuracy over the share of labels, and over what training cost; a line for each model."""
    charts = []
    if len({one["share"] for one in means}) > 1:
        note = "mean over seeds, with intervals of 95 %"
        lines = by_model(means, lambda one: 100 * one["share"])
        charts.append(chart_of("Accuracy by labels", lines, "% of the labels", note))
    for cost, words in COSTS.items():
        lines = by_model(means, lambda one, cost=cost: one[cost])
        if any(x > 0 for line in lines.values() for x, _, _ in line):
            note = "each line from the smallest share of labels to the largest"
            charts.append(chart_of(f"Accuracy by {words}", lines, words, note))
    return charts


def by_model(means: Means, x_of: Any) -> dict[str, list[tuple[float, float, Point]]]:
    """(x, accuracy, interval) of each model, and of each image size where there are several."""
    per_model: dict[str, set[Any]] = {}
    for one in means:
        per_model.setdefault(one["model"], set()).add(tuple(one["image_size"]))
    sizes = any(len(found) > 1 for found in per_model.values())
    lines: dict[str, list[tuple[float, float, Point]]] = {}
    for one in means:
        name = f"{one['model']}, {size_text(one['image_size'])}" if sizes else one["model"]
        point = (float(x_of(one)), one["accuracy"], tuple(one["interval"]))
        lines.setdefault(name, []).append(point)
    return lines


def chart_of(
    title: str, lines: Mapping[str, Sequence[tuple[float, float, Point]]], x_label: str, note: str
) -> Chart:
    return line_chart(
        title,
        {name: [(x, y) for x, y, _ in line] for name, line in lines.items()},
        x_label=x_label,
        share=True,
        log_x=True,
        intervals={name: [ends for *_, ends in line] for name, line in lines.items()},
        note=note,
    )


def size_text(size: Sequence[int]) -> str:
    """
    >>> size_text([28, 28]), size_text([192, 160])
    ('28', '192x160')
    """
    return "x".join(map(str, dict.fromkeys(size)))


def share_text(share: float) -> str:
    """
    >>> share_text(0.01), share_text(1.0), share_text(0.005)
    ('1%', '100%', '0.5%')
    """
    return f"{100 * share:.3g}%"


def mean_table(means: Means) -> Markup:
    sizes = len({tuple(one["image_size"]) for one in means}) > 1
    heads = ["model", "#labels", "#images", *(["#size"] if sizes else []), "#accuracy"]
    heads += ["#95 % interval", "#range of seeds", "#parameters", "#training FLOPs", "#seconds"]
    rows = [
        [
            one["model"],
            share_text(one["share"]),
            f"{one['labelled']:,}",
            *([size_text(one["image_size"])] if sizes else []),
            percent(one["accuracy"]),
            range_text(one["interval"]),
            range_text((one["lowest"], one["highest"])) if len(one["seeds"]) > 1 else "–",
            f"{one['params']:,}",
            big_number(one["flops"]),
            number(round(one["seconds"], 1)),
        ]
        for one in means
    ]
    return render("comparison_table.html", heads=heads, rows=rows)


def range_text(ends: Sequence[float]) -> str:
    """
    >>> range_text((0.912, 0.934))
    '91.2% to 93.4%'
    """
    return f"{percent(ends[0])} to {percent(ends[1])}"


def big_number(value: float) -> str:
    """
    >>> big_number(17_563_828_224), big_number(2.5e15), big_number(12)
    ('17.6 G', '2.5 P', '12')
    """
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def test_section(facts: Mapping[str, Any]) -> Markup:
    """The pairs in words, those with a clear difference first."""
    if not facts["tests"]:
        return Markup()
    heads = ["first", "second", "#labels", "#size", "#difference", "#95 % interval", "#p"]
    heads += ["#p, Holm"]
    rows = [
        [
            test["first"],
            test["second"],
            share_text(test["share"]),
            size_text(test["image_size"]),
            f"{100 * test['difference']:+.1f}",
            f"{100 * test['interval'][0]:+.1f} to {100 * test['interval'][1]:+.1f}",
            p_text(test["p_value"]),
            p_text(test["p_holm"]),
        ]
        for test in facts["tests"]
    ]
    sentences = [test["sentence"] for test in facts["tests"]]
    return render(
        "comparison_tests.html", sentences=sentences, heads=heads, rows=rows, how=facts["how"]
    )


def p_text(value: float) -> str:
    """
    >>> p_text(0.0312), p_text(1e-8)
    ('0.031', '<0.001')
    """
    return "<0.001" if value < 0.001 else f"{value:.2g}"


def run_table(cells: Sequence[Mapping[str, Any]]) -> Markup:
    heads = ["run", "#images", "#steps", "#accuracy", "#95 % interval", "#training FLOPs"]
    heads += ["#seconds"]
    rows = [
        [
            cell["name"],
            f"{cell['labelled']:,}",
            f"{cell['steps']:,}",
            percent(cell["accuracy"]),
            range_text(cell["interval"]),
            big_number(cell["flops"]),
            number(round(cell["seconds"], 1)),
        ]
        for cell in cells
    ]
    return render("comparison_table.html", heads=heads, rows=rows)


def setting_section(facts: Mapping[str, Any]) -> Markup:
    settings = facts["settings"]
    macs = {one["model"]: big_number(one["macs"]) for one in facts["means"]}
    models = [
        [
            one["name"],
            one["model"] + (f" from {one['start']}" if one["start"] else ""),
            ", ".join(f"{name} {setting(value)}" for name, value in one["fields"].items()) or "–",
            macs.get(one["name"], "–"),
        ]
        for one in settings["models"]
    ]
    same = {
        name.replace("_", " "): setting(value)
        for name, value in settings.items()
        if name not in SHOWN and value not in (None, {})
    }
    return render("comparison_settings.html", models=models, same=same, machine=facts["machine"])
