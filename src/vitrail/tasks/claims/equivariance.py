"""`equivariance`: what a shift of the image does to a ViT, Swin, CoAtNet and a CNN."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitrail.evaluation.findings import Finding, crossed_interval
from vitrail.explanation.equivariance import measure_equivariance
from vitrail.tasks.claims.accuracies import accuracy_table
from vitrail.tasks.claims.claim import Citation, Claim, Drawing, Evidence, Setting, Stage, Table
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import resnet, vit
from vitrail.tasks.compare_plan import ModelChoice

SIDE = 32  # pixels: eight cells of 4 in the last map of all models
GROUPS = 8  # of images: a number for each
MODELS = ("ViT", "Swin", "CoAtNet", "CNN")
SHIFTS = {"shifted": "one patch", "pixel": "one pixel"}


def models_of(setting: Setting) -> list[ModelChoice]:
    """Four networks of about equal width whose last map has 8 x 8 cells."""
    dim, shared = setting.scale.dim, {"image_size": SIDE, "channels": setting.channels}
    swin = {"patch_size": 2, "dim": dim // 2, "depths": [2, 2], "heads": [2, 4], "window_size": 4}
    coatnet = {
        "stem": [dim // 4, dim // 4],
        "dims": [dim // 2, dim],
        "depths": [1, 2],
        "kinds": "CT",
        "strides": [1, 2],
        "dim_head": dim // 4,
        "head": "linear",
    }
    return [
        vit(setting, "ViT", image_size=SIDE),
        ModelChoice(name="Swin", model="swin_t", fields=shared | swin),
        ModelChoice(name="CoAtNet", model="coatnet_0", fields=shared | coatnet),
        resnet(setting, "CNN", image_size=SIDE, depths=[2, 2, 2]),
    ]


def stages(setting: Setting) -> Sequence[Stage]:
    return [setting.plan(models_of(setting))]


def judge(lab: Lab) -> Evidence:
    measured = {
        model: [
            lab.once(f"shift-{cell.name}", partial(moved, lab, cell.name))
            for cell in lab.cells(model)
        ]
        for model in MODELS
    }
    values = {
        (model, what): np.array([one[what] for one in runs])
        for model, runs in measured.items()
        for what in SHIFTS
    }
    findings = [
        less_than_vit(values[model, "shifted"], values["ViT", "shifted"], model, "shifted")
        for model in MODELS[1:]
    ]
    findings.append(less_than_vit(values["CNN", "pixel"], values["ViT", "pixel"], "CNN", "pixel"))
    rows = [(model, *(float(values[model, what].mean()) for what in SHIFTS)) for model in MODELS]
    columns = ("model", *(f"#shifted by {words}" for words in SHIFTS.values()))
    return Evidence(
        findings=tuple(findings),
        tables=(
            Table(
                title="How far the last map moves: 0 is equivariant, 1 as far as another image",
                columns=columns,
                rows=tuple(rows),
            ),
            accuracy_table(lab, MODELS),
        ),
        drawings=tuple(
            Drawing(
                title=f"Shifted by {words}",
                kind="bars",
                bars={model: float(values[model, what].mean()) for model in MODELS},
                note="the last map, as a share of how far another image moves it",
            )
            for what, words in SHIFTS.items()
        ),
    )


def moved(lab: Lab, run: str) -> dict[str, list[float]]:
    """How far the last map moves, for each group of images."""
    model = lab.load(run)
    images = lab.images(model)
    found: dict[str, list[float]] = {what: [] for what in SHIFTS}
    for group in images.chunk(min(GROUPS, len(images) // 2)):
        one = measure_equivariance(model, group)
        for what in SHIFTS:
            found[what].append(one.relative(what)[-1] or 0.0)
    return found


def less_than_vit(
    one: NDArray[np.float64], reference: NDArray[np.float64], model: str, what: str
) -> Finding:
    """That a shift moves the map of a model less than that of the ViT."""
    mean, interval = crossed_interval(one - reference)
    return Finding(
        sentence=f"a shift by {SHIFTS[what]} moves {model} less than the ViT",
        estimate=mean,
        interval=interval,
        below=0.0,
        how="differences of each seed and group of images; both count as chance",
    )


CLAIM = Claim(
    name="equivariance",
    sentence="Convolutions and relative attention are equivariant to shifts, the attention of a "
    "ViT with absolute positions is not: it has less inductive bias than a CNN.",
    citation=Citation(
        paper="CoAtNet",
        arxiv="2106.04803",
        where="2.1, table 1; An Image is Worth 16x16 Words (arXiv:2010.11929), 3.1",
    ),
    minutes=(25, 250),
    stages=stages,
    judge=judge,
)
