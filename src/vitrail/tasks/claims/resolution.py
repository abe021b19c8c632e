"""`resolution`: fine-tuning at a higher resolution, with resized position embeddings."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from vitrail.data.sources.origin import Origin, Subset
from vitrail.evaluation.findings import Finding
from vitrail.evaluation.paired import paired_difference
from vitrail.inference.outputs import compute_outputs
from vitrail.models.model import Model
from vitrail.tasks.claims.accuracies import PAIRED, accuracy_bars, accuracy_table, ahead
from vitrail.tasks.claims.claim import Citation, Claim, Evidence, Setting, Stage, Table
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import vit
from vitrail.tasks.compare_runs import RUNS
from vitrail.weights.load import load

LOW = 16  # pixels a side, of pre-training
BEFORE, SAME, HIGHER = "pre-trained", "fine-tuned at the same size", "fine-tuned at higher"
TUNING_LR = 1e-3
TESTED = 1_000  # images of the test without fine-tuning


def stages(setting: Setting) -> Sequence[Stage]:
    scale = setting.scale
    first = setting.plan([vit(setting, BEFORE, image_size=LOW)], steps=scale.pretrain_steps)
    plans: list[Stage] = [first]
    for cell in first.cells:
        start = str(setting.out / RUNS / cell.name / "last")
        models = [
            vit(setting, SAME, start, image_size=LOW),
            vit(setting, HIGHER, start),
        ]
        steps = scale.steps // 2
        plans.append(setting.plan(models, seeds=[cell.seed], steps=steps, lr=TUNING_LR))
    return plans


def judge(lab: Lab) -> Evidence:
    right = lab.once("resized", lambda: resized_positions(lab))
    resized, shuffled = (np.array(right[name], dtype=bool) for name in ("resized", "shuffled"))
    apart = paired_difference(resized, shuffled)
    side = lab.setting.side
    return Evidence(
        findings=(
            ahead(lab, HIGHER, SAME, f"fine-tuned at {side} pixels it is ahead of {LOW} pixels"),
            Finding(
                sentence="before fine-tuning, resized positions are ahead of the same ones in "
                "random places",
                estimate=apart.difference,
                interval=apart.interval,
                above=0.0,
                unit="points",
                how=PAIRED,
            ),
        ),
        tables=(
            accuracy_table(lab, (BEFORE, SAME, HIGHER)),
            Table(
                title=f"Trained at {LOW} pixels, tested at {side} without fine-tuning",
                columns=("positions", "%accuracy", "#images"),
                rows=(
                    ("resized", float(resized.mean()), resized.shape[1]),
                    ("resized, in random places", float(shuffled.mean()), shuffled.shape[1]),
                ),
            ),
        ),
        drawings=(accuracy_bars(lab, (BEFORE, SAME, HIGHER)),),
    )


def resized_positions(lab: Lab) -> dict[str, list[list[bool]]]:
    """For each seed, which test images are right at the higher resolution without fine-tuning."""
    split, source = lab.test_split()
    assert isinstance(source, Origin)
    places = np.unique(np.linspace(0, len(source) - 1, TESTED).astype(np.int64))
    found: dict[str, list[list[bool]]] = {"resized": [], "shuffled": []}
    for cell in lab.cells(BEFORE):
        model = load(lab.checkpoint(cell.name), image_size=lab.setting.side).eval()
        for name in found:
            if name == "shuffled":
                shuffle_positions(model, cell.seed)
            outputs = compute_outputs(
                model, Subset(source, places), name=lab.setting.data, split=split
            )
            found[name].append((outputs.predicted == outputs.truth).tolist())
    return found


@torch.no_grad()
def shuffle_positions(model: Model, seed: int) -> None:
    table = model.get_parameter("positions.table")
    assert isinstance(table, nn.Parameter)
    order = torch.randperm(table.shape[1], generator=torch.Generator().manual_seed(seed))
    table.copy_(table[:, order])


CLAIM = Claim(
    name="resolution",
    sentence="Fine-tuning at a higher resolution than that of pre-training helps, with position "
    "embeddings that are resized in two dimensions.",
    citation=Citation(
        paper="An Image is Worth 16x16 Words", arxiv="2010.11929", where="3.2 and table 5"
    ),
    minutes=(15, 150),
    stages=stages,
    judge=judge,
    caveat="Both steps see the same images and labels; images of more pixels cost more compute, as "
    "they do in the paper.",
)
