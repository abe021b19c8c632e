"""The page of an evaluation, from the values that its JSON file has and some images."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vitrail.pages.charts import Chart, reliability_chart
from vitrail.pages.classification import (
    Example,
    by_class_section,
    classes_section,
    confusion_section,
    mistakes_section,
    skipped_section,
)
from vitrail.pages.curves import SHARES
from vitrail.pages.render import Section, either, percent, render, render_page
from vitrail.pages.translation import page_text

# Every headline metric: its title, what it means, and whether it is shown in percent.
METRICS: dict[str, tuple[str, str, bool]] = {
    **{name: (*words, True) for name, words in SHARES.items()},
    "f1": ("Mean F1", "harmonic mean of precision and recall, averaged over classes", True),
    "ece": ("Calibration error", "mean gap between confidence and accuracy", True),
    "nll": ("Negative log-likelihood", "of the true labels; 0 is perfect", False),
    "brier": ("Brier score", "mean squared error of the probabilities; 0 is perfect", False),
}

Facts = Mapping[str, Any]


def evaluation_page(
    facts: Facts,
    *,
    title: str,
    preprocessing: str,
    mistakes: Mapping[str, Sequence[Example]],
    by_class: Sequence[Example] = (),
    wrong: int = 0,
    corrupted: Mapping[str, str] | None = None,
) -> str:
    """`facts` is what evaluation.json holds. `preprocessing` says in a sentence what images go
    through; `mistakes` are galleries by title; `by_class` are images that a click on a class or a
    confusion shows; `wrong` counts mistakes; `corrupted` has an image (data URI) under each
    corruption."""
    multi_label, root = facts["confusion"] is None, str(facts["data"])
    labels = [row["label"] for row in facts["classes"]]
    confusions = Section("confusions", "Confusions", Markup())
    if not multi_label:
        confusions = confusion_section(labels, facts["confusion"], examples=by_class)
    sections = [
        mistakes_section(
            mistakes, images=facts["images"], wrong=wrong, multi_label=multi_label, root=root
        ),
        confusions,
        classes_section(facts["classes"], multi_label=multi_label, examples=by_class),
        by_class_section(by_class, root=root),
        Section("calibration", "Calibration", calibration(facts, multi_label)),
        Section("corruptions", "Corrupted images", corruptions(facts, corrupted or {})),
        Section("resolutions", "Image sizes", sizes(facts["resolutions"], page_text("image size"))),
        Section("patches", "Patch sizes", sizes(facts["patch_sizes"], page_text("patch size"))),
        skipped_section(facts["broken"]),
        Section(
            "method",
            "How it was measured",
            render(
                "method.html",
                facts=facts,
                preprocessing=preprocessing,
                multi_label=multi_label,
                level=facts["intervals_are"]["level"],
            ),
        ),
    ]
    lead = render(
        "evaluation_lead.html",
        facts=facts,
        classes=len(labels),
        cards=[card(facts, name) for name in METRICS if facts.get(name) is not None],
    )
    return render_page(title, sections, kind="evaluation", lead=lead)


def card(facts: Facts, name: str) -> dict[str, str]:
    title, meaning, share = METRICS[name]
    interval = facts["intervals"].get(name)
    return {
        "title": page_text(title),
        "value": either(facts[name], share),
        "interval": interval_text(interval, share=share),
        "meaning": page_text(meaning),
    }


def interval_text(interval: Sequence[float] | None, *, share: bool = True) -> str:
    """
    >>> interval_text((0.91, 0.97))
    '91.0% to 97.0%'
    """
    return "" if interval is None else page_text("{} to {}", *(either(x, share) for x in interval))


def calibration(facts: Facts, multi_label: bool) -> Markup:
    """Reliability before and after the temperature."""
    scaled = facts["temperature"]
    charts = [reliability(page_text("As the model predicts"), facts["reliability"], facts["ece"])]
    rows = [[page_text("as the model predicts"), *calibration_cells(facts)]]
    if scaled is not None:
        title = page_text("At temperature {}", f"{scaled['temperature']:.3g}")
        charts.append(reliability(title, scaled["reliability"], scaled["ece"]))
        row = page_text("at temperature {}", f"{scaled['temperature']:.4g}")
        rows.append([row, *calibration_cells(scaled)])
    return render(
        "calibration.html",
        charts=charts,
        rows=rows,
        scaled=scaled,
        worse=scaled is not None and scaled["nll"] >= facts["nll"],
        multi_label=multi_label,
    )


def reliability(title: str, bins: Facts, error: float) -> Chart:
    note = page_text("expected calibration error {}", percent(error))
    return reliability_chart(title, bins["counts"], bins["confidence"], bins["accuracy"], note=note)


def calibration_cells(facts: Facts) -> list[str]:
    return [percent(facts["ece"]), either(facts["nll"], False), either(facts["brier"], False)]


def corruptions(facts: Facts, images: Mapping[str, str]) -> Markup:
    """A row for each corruption, a column for each severity."""
    found = facts["corruptions"]
    if found is None:
        return Markup()
    clean = found["clean"]
    rows = [
        {
            "name": name,
            "cells": [(value, 0.75 * value / max(clean, value, 1e-9)) for value in values],
            "mean": sum(values) / len(values),
        }
        for name, values in found["by_severity"].items()
    ]
    columns = list(zip(*found["by_severity"].values(), strict=True))
    return render(
        "corruptions.html",
        found=found,
        metric=page_text(METRICS[found["metric"]][0]),
        interval=interval_text(found["interval_of_mean"]),
        rows=rows,
        means=[sum(column) / len(column) for column in columns],
        images=images,
    )


def sizes(results: Sequence[Facts], what: str) -> Markup:
    if not results:
        return Markup()
    metric = next((row["metric"] for row in results if row["metric"]), "accuracy")
    return render("sizes.html", results=results, what=what, metric=page_text(METRICS[metric][0]))
