"""The page of a probe: accuracy on frozen features for each setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.pages.charts import Chart, bar_chart, line_chart
from vitrail.pages.evaluation import interval_text
from vitrail.pages.render import Section, percent, render, render_page
from vitrail.pages.translation import page_text, translated_sentence


@dataclass(frozen=True)
class ProbeRow:
    """The accuracy of one setting, the interval of 95 % confidence, and remarks by their title.
    `place` is where a curve has it: the number of shots or of neighbours."""

    setting: str
    accuracy: float
    interval: tuple[float, float]
    remarks: Mapping[str, str]
    place: int | None = None


def probe_page(facts: Mapping[str, Any], rows: Sequence[ProbeRow], axis: str) -> str:
    """The page of a probe's facts; `axis` names what the settings are."""
    titles = list(dict.fromkeys(title for row in rows for title in row.remarks))
    heads = [
        axis,
        "#accuracy",
        "#95 % interval",
        *(f"#{translated_sentence(title)}" for title in titles),
    ]
    cells = [
        [page_text(row.setting), percent(row.accuracy), interval_text(row.interval)]
        + [row.remarks.get(title, "") for title in titles]
        for row in rows
    ]
    body = render(
        "probe.html", facts=facts, heads=heads, rows=cells, chart=accuracy_chart(rows, axis)
    )
    skipped = {bad["image"]: bad["reason"] for bad in facts["broken"]}
    sections = [
        Section("accuracy", "Accuracy", body),
        Section("skipped", "Skipped images", render("skipped.html", broken=skipped)),
    ]
    return render_page(page_text("{} on {}", facts["model"], facts["data"]), sections, kind="probe")


def accuracy_chart(rows: Sequence[ProbeRow], axis: str) -> Chart:
    """A curve where the settings are numbers, with the ends of the interval; else bars."""
    points = [(row.place, row) for row in rows if row.place is not None]
    if len(points) < 2:
        return bar_chart(
            page_text("Accuracy"),
            {page_text(row.setting): row.accuracy for row in rows},
            share=True,
        )
    series = {
        page_text("accuracy"): [(place, row.accuracy) for place, row in points],
        page_text("lower end"): [(place, row.interval[0]) for place, row in points],
        page_text("upper end"): [(place, row.interval[1]) for place, row in points],
    }
    note = page_text("with the ends of the 95 % interval")
    return line_chart(page_text("Accuracy"), series, x_label=page_text(axis), share=True, note=note)
