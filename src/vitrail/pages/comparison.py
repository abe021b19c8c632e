"""The page of a comparison: accuracy over the share of labels and over cost, a table, tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.pages.charts import Chart, Point, line_chart
from vitrail.pages.render import Section, number, percent, render, render_page, setting
from vitrail.pages.ticks import tick_texts, ticks
from vitrail.pages.translation import count, page_text, translated_sentence

Means = Sequence[Mapping[str, Any]]
Lines = Mapping[str, Sequence[tuple[float, float, Point]]]
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
NARROW = 0.5  # accuracies in a range below this have an axis of their own, not one from 0
UNEVEN = 2  # the same steps took so many times as long in one run as in another
# Settings that the head of the page or the table shows already.
SHOWN = ("data", "models", "shares", "seeds", "image_sizes")


def comparison_page(facts: Mapping[str, Any]) -> str:
    """The page of a comparison's facts."""
    means, settings = facts["means"], facts["settings"]
    models = len({one["model"] for one in means}) or len(settings["models"])
    sections = [
        Section("accuracy", "Accuracy and cost", chart_section(facts)),
        Section("table", "Means over seeds", mean_table(means)),
        Section("tests", "Which model is better?", test_section(facts)),
        Section("runs", "Every run", run_table(facts["cells"])),
        Section("settings", "Settings", setting_section(facts)),
    ]
    title = page_text("{} on {}", count(models, "model"), facts["data"])
    return render_page(title, sections, kind="comparison", lead=lead(facts))


def lead(facts: Mapping[str, Any]) -> Markup:
    settings = facts["settings"]
    shown = {
        "data": facts["data"],
        "tested on": page_text(
            "{} of {}",
            count(facts["test_images"] or 0, "image"),
            facts["split"] or page_text("no split"),
        ),
        "runs": f"{len(facts['cells']):,}",
        "seeds": f"{len(settings['seeds']):,}",
        "training time": duration(sum(cell["seconds"] for cell in facts["cells"])),
    }
    body = render("facts.html", facts=shown)
    if facts["remaining"]:
        left = len(facts["remaining"])
        text = page_text(
            "not finished: {} of this comparison is left"
            if left == 1
            else "not finished: {} of this comparison are left",
            count(left, "run"),
        )
        body += render("note.html", text=text)
    return body


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(700), duration(9_000)
    ('42 s', '12 min', '2.5 h')
    """
    if seconds < 90:
        return page_text("{} s", f"{seconds:.0f}")
    if seconds < 5_400:
        return page_text("{} min", f"{seconds / 60:.0f}")
    return page_text("{} h", f"{seconds / 3_600:.1f}")


def chart_section(facts: Mapping[str, Any]) -> Markup:
    charts = comparison_charts(facts["means"])
    return render("comparison_charts.html", charts=charts, note=uneven_note(facts["cells"]))


def uneven_note(cells: Sequence[Mapping[str, Any]]) -> str:
    """Where the same steps of a model took much longer in one run than in another."""
    groups: dict[Any, list[float]] = {}
    for cell in cells:
        same = (cell["model"], tuple(cell["image_size"]), cell["steps"], cell["images_seen"])
        groups.setdefault(same, []).append(cell["seconds"])
    uneven = {same: times for same, times in groups.items() if max(times) > UNEVEN * min(times)}
    if not uneven:
        return ""
    (model, _, steps, _), times = max(
        uneven.items(), key=lambda one: max(one[1]) / max(min(one[1]), 1e-9)
    )
    return page_text(
        "seconds are not comparable here: {} of {} took {} to {} s. Other work may have shared the "
        "machine",
        count(steps, "step"),
        model,
        f"{min(times):,.0f}",
        f"{max(times):,.0f}",
    )


def comparison_charts(means: Means) -> list[Chart]:
    """Accuracy over the share of labels, and over what training cost; a line for each model."""
    charts = []
    if len({one["share"] for one in means}) > 1:
        note = page_text("mean over seeds, with intervals of 95 %")
        lines = by_model(means, lambda one: 100 * one["share"])
        title, label = page_text("Accuracy by labels"), page_text("% of the labels")
        charts.append(chart_of(title, lines, label, note))
    size, unit = flops_unit(means)
    costs = {
        page_text("Accuracy by training FLOPs"): (
            page_text("training {}FLOPs", unit),
            lambda one: one["flops"] / size,
        ),
        page_text("Accuracy by training seconds"): (
            page_text("training seconds"),
            lambda one: one["seconds"],
        ),
    }
    for title, (label, cost) in costs.items():
        lines = by_model(means, cost)
        if any(x > 0 for line in lines.values() for x, _, _ in line):
            charts.append(chart_of(title, lines, label, cost_note(lines)))
    return charts


def cost_note(lines: Lines) -> str:
    """What the points of a model have in common."""
    if all(len(line) == 1 for line in lines.values()):
        return page_text("a point for each model")
    if all(len({x for x, _, _ in line}) == 1 for line in lines.values()):
        return page_text(
            "a model costs the same at every share of labels: its points lie above each other"
        )
    return page_text("each line from the smallest share of labels to the largest")


def flops_unit(values: Sequence[Mapping[str, Any]]) -> tuple[float, str]:
    """One unit for the training FLOPs of a page, that of the smallest.

    >>> flops_unit([{"flops": 3e9}, {"flops": 2e12}]), flops_unit([])
    ((1000000000.0, 'G'), (1.0, ''))
    """
    least = min((one["flops"] for one in values if one["flops"] > 0), default=0)
    return next(((size, unit) for size, unit in UNITS if least >= size), (1.0, ""))


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


def chart_of(title: str, lines: Lines, x_label: str, note: str) -> Chart:
    """Accuracies that lie close together have an axis of their own, which the note states."""
    ends = [end for line in lines.values() for *_, pair in line for end in pair]
    narrow = max(ends) - min(ends) < NARROW
    if narrow:
        up = ticks(ends, share=True, from_zero=False)
        low, *_, high = tick_texts(up, share=True)
        note += page_text("; axis from {} to {}", low, high)
    return line_chart(
        title,
        {name: [(x, y) for x, y, _ in line] for name, line in lines.items()},
        x_label=x_label,
        share=True,
        log_x=True,
        from_zero=not narrow,
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
    size, unit = flops_unit(means)
    heads += ["#95 % interval", "#range of seeds", "#parameters"]
    heads += ["#" + page_text("training {}FLOPs", unit), "#seconds"]
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
            scaled_text(one["flops"] / size),
            number(round(one["seconds"], 1)),
        ]
        for one in means
    ]
    return render("comparison_table.html", heads=heads, rows=rows)


def range_text(ends: Sequence[float]) -> str:
    """
    >>> range_text((0.912, 0.934))
    '91.2 to 93.4%'
    """
    return page_text("{} to {}", percent(ends[0]).removesuffix("%"), percent(ends[1]))


def scaled_text(value: float) -> str:
    """
    >>> scaled_text(3.1432), scaled_text(31432)
    ('3.14', '31,432')
    """
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def big_number(value: float) -> str:
    """
    >>> big_number(17_563_828_224), big_number(2.5e15), big_number(12)
    ('17.6 G', '2.5 P', '12')
    """
    for size, unit in UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def test_section(facts: Mapping[str, Any]) -> Markup:
    """The pairs in words, then as a table."""
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
            page_text("{} to {}", *(f"{100 * end:+.1f}" for end in test["interval"])),
            p_text(test["p_value"]),
            p_text(test["p_holm"]),
        ]
        for test in facts["tests"]
    ]
    sentences = [translated_sentence(test["sentence"]) for test in facts["tests"]]
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
    size, unit = flops_unit(cells)
    heads = [
        "run",
        "#images",
        "#steps",
        "#accuracy",
        "#95 % interval",
        "#" + page_text("training {}FLOPs", unit),
    ]
    heads += ["#seconds"]
    rows = [
        [
            cell["name"],
            f"{cell['labelled']:,}",
            f"{cell['steps']:,}",
            percent(cell["accuracy"]),
            range_text(cell["interval"]),
            scaled_text(cell["flops"] / size),
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
            page_text("{} from {}", one["model"], one["start"]) if one["start"] else one["model"],
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
