"""The page of explanations: images with their maps first, then the verdicts on the methods."""

import json
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from vitrail.explanation.head_maps import QueryMaps
from vitrail.explanation.overlays import colour_levels, heat_colours
from vitrail.explanation.verdict import (
    CLEAR_CORRELATION,
    ERRORS,
    MAX_CORRELATION,
    REMOVED_SHARES,
    RULE,
    Finding,
    MethodCheck,
)
from vitrail.pages.charts import Chart, bar_chart, line_chart
from vitrail.pages.render import HOLE, Section, page_around, render
from vitrail.pages.thumbnails import data_uri, encoded, overlay_uri
from vitrail.pages.translation import page_text, translated_sentence
from vitrail.tasks.explanation import SIDE, ExplainRun, Explanation, Explanations, HeadDetails
from vitrail.tasks.names import short_name

HEAT_SIDE = 128  # pixels of a map in the page: the browser smooths it
STOPS = 32  # colours of the scale
KINDS: dict[Finding, str] = {"yes": "good", "no": "", "unclear": "unclear"}


def explain_page(found: Explanations) -> Iterator[str]:
    """The page piece by piece, one image at a time."""
    run = found.run
    controls = render("explain_controls.html", scale=colour_scale(), several=len(found) > 1)
    sections = [
        Section("images", "Images", controls + HOLE),
        Section("verdict", "Can the maps be trusted?", verdict_section(run)),
        Section("unread", "Images that could not be read", problem_section(run)),
    ]
    title = page_text("Explanation of {}", short_name(run.model))
    lead = render("facts.html", facts=run_facts(found))
    before, after = page_around(title, sections, kind="explanation", lead=lead)
    yield before
    for number, one in enumerate(found):
        yield str(image_block(one, number))
    yield after


def run_facts(found: Explanations) -> dict[str, str]:
    run = found.run
    methods = []
    for name, options in run.methods.items():
        text = ", ".join(f"{option} {value}" for option, value in options.items())
        methods.append(f"{name} ({text})" if text else name)
    facts = {
        "model": run.model,
        "family": run.family,
        "methods": ", ".join(methods),
        "images": str(len(found)),
    }
    if run.auto is not None:
        facts["chosen"] = translated_sentence(auto_reason(run))
    return facts


def auto_reason(run: ExplainRun) -> str:
    assert run.auto is not None
    return f"auto chose {run.auto.method}: {run.auto.reason}"


def image_block(one: Explanation, number: int) -> Markup:
    """One image: the prediction, the map of each method, and its layers and heads."""
    pixels = one.image
    height, width = (
        max(round(HEAT_SIDE * side / max(pixels.shape[:2])), 1) for side in pixels.shape[:2]
    )
    return render(
        "explain_image.html",
        path=one.name,
        title=PurePath(one.name).name or one.name,
        answer=one.answer,
        image=data_uri(pixels, SIDE, quality=88),
        maps={
            method: overlay_uri(heat_colours(one.heat(method), (height, width)))
            for method in one.maps
        },
        sheet=None if one.heads is None else encoded(one.heads.sheet, "jpeg"),
        picker=None if one.heads is None else picker(one.heads),
        number=number,
    )


def picker(heads: HeadDetails) -> dict[str, Any]:
    """What the script needs to show the map of any layer, head and patch."""
    layers = [
        {
            "name": name,
            "heads": len(maps.levels) - 1,
            "rows": maps.levels.shape[2],
            "columns": maps.levels.shape[3],
            "covers": [round(share, 4) for share in maps.covers],
        }
        for name, maps in heads.maps.items()
    ]
    facts = {"grid": heads.grid, "layers": layers, "colours": colour_scale()}
    return {"facts": json.dumps(facts), "atlases": [atlas(maps) for maps in heads.maps.values()]}


def atlas(maps: QueryMaps) -> str:
    """All maps of a layer as the grey pixels of one PNG: a row for each head and query."""
    heads, queries = maps.levels.shape[:2]
    return overlay_uri(maps.levels.reshape(heads * queries, -1))


def colour_scale() -> list[list[int]]:
    """Red, green and blue from the lowest level to the highest; opacity rises evenly."""
    return [list(map(int, row[:3])) for row in colour_levels(np.linspace(0, 1, STOPS))]


def verdict_section(run: ExplainRun) -> Markup:
    if not run.checks:
        return Markup()
    cards = [
        {
            "method": method,
            "kind": KINDS[check.verdict.tracks],
            "sentence": check.verdict.sentence,
            "reasons": check.verdict.reasons,
            "charts": verdict_charts(method, check),
        }
        for method, check in run.checks.items()
    ]
    return render("explain_verdict.html", cards=cards, rules=[RULE, ERRORS])


def verdict_charts(method: str, check: MethodCheck) -> list[Chart]:
    """Deletion and insertion curves beside those of random maps, and what shuffled weights do."""
    curves, verdict = check.curves, check.verdict
    whole, empty = curves.deletion[:, 0], curves.deletion[:, -1]
    without = check.random.mean(dim=(0, 1))  # (shares, images): what random maps leave
    random = torch.stack([whole, *without, empty], dim=1).mean(dim=0)
    removed = torch.tensor([0, *REMOVED_SHARES, 1])
    charts = []
    for title, label, values, shares in (
        (page_text("Deletion"), page_text("% of cells blurred"), curves.deletion, removed),
        (
            page_text("Insertion"),
            page_text("% of cells restored"),
            curves.insertion,
            (1 - removed),
        ),
    ):
        lines = {
            method: points(curves.shares, values.mean(dim=0)),
            page_text("random maps"): sorted(points(shares, random)),
        }
        note = page_text("score of the class")
        charts.append(line_chart(title, lines, x_label=label, note=note))
    bars = {
        page_text("head shuffled"): verdict.head_correlation,
        page_text("all shuffled"): verdict.correlation,
    }
    limits = (MAX_CORRELATION, CLEAR_CORRELATION)
    note = page_text("at most {} passes, {} fails", f"{limits[0]:g}", f"{limits[1]:g}")
    title = page_text("Rank correlation with maps of shuffled models")
    column = page_text("correlation")
    charts.append(bar_chart(title, bars, limits=limits, note=note, column=column))
    return charts


def points(shares: torch.Tensor, values: torch.Tensor) -> list[tuple[float, float]]:
    pairs = zip((100 * shares.double()).tolist(), values.tolist(), strict=True)
    return [(round(share, 2), value) for share, value in pairs]


def problem_section(run: ExplainRun) -> Markup:
    if not run.problems:
        return Markup()
    problems = [(name, translated_sentence(reason)) for name, reason in run.problems.items()]
    return render("explain_problems.html", problems=problems)
