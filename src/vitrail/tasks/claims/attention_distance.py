"""`attention-distance`: how far heads look, by depth, in a ViT and in a hybrid."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Any

from vitrail.evaluation.findings import Finding, Unit, rank_correlation
from vitrail.evaluation.intervals import t_interval
from vitrail.explanation.capture import capture
from vitrail.explanation.distance import mean_distance
from vitrail.tasks.claims.accuracies import accuracy_table
from vitrail.tasks.claims.claim import Citation, Claim, Drawing, Evidence, Setting, Stage, Table
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import hybrid, vit

MODELS = ("ViT", "hybrid")
Heads = list[list[float]]  # pixels, block by block and head by head


def stages(setting: Setting) -> Sequence[Stage]:
    return [setting.plan([vit(setting), hybrid(setting)])]


def judge(lab: Lab) -> Evidence:
    found: dict[str, list[Heads]] = {
        model: [
            lab.once(f"distance-{cell.name}", partial(distances, lab, cell.name))
            for cell in lab.cells(model)
        ]
        for model in MODELS
    }
    by_depth = [depth_correlation(run) for run in found["ViT"]]
    gaps = [mean(two[0]) - mean(one[0]) for one, two in zip(*found.values(), strict=True)]
    rows = [
        (model, seed, block + 1, min(heads), sum(heads) / len(heads), max(heads))
        for model, runs in found.items()
        for seed, run in zip(lab.setting.seeds, runs, strict=True)
        for block, heads in enumerate(run)
    ]
    columns = ("model", "#seed", "#block", "#nearest head", "#mean of heads", "#farthest head")
    return Evidence(
        findings=(
            over_seeds(
                "heads of the ViT look farther the deeper their block",
                by_depth,
                how="Spearman's rank correlation of depth and distance over the heads of a run",
            ),
            over_seeds(
                "heads of the hybrid's first block look farther than those of the ViT's",
                gaps,
                unit="pixels",
                how="difference of the means over heads",
            ),
        ),
        tables=(
            Table(title="Mean attention distance in pixels", columns=columns, rows=tuple(rows)),
            accuracy_table(lab, MODELS),
        ),
        drawings=(lines_by_block(found),),
    )


def depth_correlation(run: Heads) -> float:
    """Whether heads of deeper blocks look farther, in one run."""
    points = [(depth, reach) for depth, heads in enumerate(run) for reach in heads]
    return rank_correlation(*zip(*points, strict=True))[0]


def over_seeds(
    sentence: str, values: Sequence[float], *, how: str, unit: Unit = "number"
) -> Finding:
    """That a number of each run is above 0. Heads of one run learn together: seeds alone count."""
    return Finding(
        sentence=sentence,
        estimate=mean(values),
        interval=t_interval(values) or (-math.inf, math.inf),
        above=0.0,
        unit=unit,
        how=f"{how}; Student's interval over seeds",
    )


def distances(lab: Lab, run: str) -> Heads:
    """The mean attention distance of every head, over the test images."""
    model = lab.load(run)
    images = lab.images(model).to(next(model.parameters()))
    with capture(model) as maps:
        model(images)
    return [
        [round(one, 4) for one in mean_distance(each).mean(dim=0).tolist()]
        for each in maps.values()
    ]


def lines_by_block(found: dict[str, list[Heads]]) -> Drawing:
    """Every head of every seed as a point, a line for each model through its blocks' means."""
    lines: dict[str, Any] = {}
    for model, runs in found.items():
        blocks = range(len(runs[0]))
        heads = [[head for run in runs for head in run[block]] for block in blocks]
        lines[model] = [
            [float(block + 1), sum(one) / len(one), min(one), max(one)]
            for block, one in zip(blocks, heads, strict=True)
        ]
    note = "mean over heads and seeds; the upright lines reach from the nearest to the farthest"
    return Drawing(
        title="Mean attention distance in pixels",
        kind="lines",
        lines=lines,
        x_label="block",
        note=note,
    )


CLAIM = Claim(
    name="attention-distance",
    sentence="Attention reaches farther with depth, though some heads look far already in the "
    "lowest block; a hybrid has fewer local heads there.",
    citation=Citation(
        paper="An Image is Worth 16x16 Words",
        arxiv="2010.11929",
        where="4.5, figure 7 right, and appendix D.7, figure 11",
    ),
    minutes=(10, 100),
    stages=stages,
    judge=judge,
    caveat="Distances are of patches, so that what the convolutions of a hybrid's stem mix before "
    "its first block does not count.",
)
