"""`data-scale`: a ViT against a ResNet of equal compute, as the training data grows."""

from collections.abc import Sequence

from vitrail.tasks.claims.accuracies import (
    accuracy_lines,
    accuracy_table,
    ahead,
    difference_grows,
)
from vitrail.tasks.claims.claim import Citation, Claim, Evidence, Setting, Stage
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import resnet, vit

SHARES = (0.005, 0.05, 0.5)
SMALL, LARGE = SHARES[0], SHARES[-1]


def stages(setting: Setting) -> Sequence[Stage]:
    models = [vit(setting), resnet(setting)]
    return [setting.plan(models, shares=SHARES)]


def judge(lab: Lab) -> Evidence:
    models = ("ViT", "ResNet")
    small, large = (
        (lab.right("ViT", share=share), lab.right("ResNet", share=share))
        for share in (SMALL, LARGE)
    )
    lines = {
        model: [
            (float(lab.cells(model, share=share)[0].labelled), lab.right(model, share=share))
            for share in SHARES
        ]
        for model in models
    }
    return Evidence(
        findings=(
            ahead(
                lab, "ResNet", "ViT", "with little data the ResNet is ahead of the ViT", share=SMALL
            ),
            difference_grows(
                small, large, "the ViT gains on the ResNet as the training data grows"
            ),
            ahead(
                lab, "ViT", "ResNet", "with much data the ViT is ahead of the ResNet", share=LARGE
            ),
        ),
        tables=(accuracy_table(lab, models, shares=SHARES),),
        drawings=(
            accuracy_lines(lines, title="Accuracy by training images", x_label="training images"),
        ),
    )


CLAIM = Claim(
    name="data-scale",
    sentence="Trained on little data a ViT stays behind a ResNet of equal compute; it catches up "
    "and overtakes it as the data grows.",
    citation=Citation(
        paper="An Image is Worth 16x16 Words", arxiv="2010.11929", where="4.3, figures 3 and 4"
    ),
    minutes=(25, 240),
    stages=stages,
    judge=judge,
    caveat="The paper compares pre-training on 9 to 300 million images; here all data are small, "
    "and every run has the same number of steps.",
)
