"""`hybrid`: a ViT on the feature map of a small ResNet, ahead of a ViT at small compute."""

from collections.abc import Sequence
from typing import Any

from vitrail.tasks.claims.accuracies import accuracy_lines, accuracy_table, ahead, difference_grows
from vitrail.tasks.claims.claim import Citation, Claim, Evidence, Setting, Stage
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import hybrid, stem, vit

NAMES = ("small ViT", "small hybrid", "large ViT", "large hybrid")


def stages(setting: Setting) -> Sequence[Stage]:
    dim, depth = setting.scale.dim, setting.scale.depth
    small: dict[str, Any] = {"dim": dim // 2}
    large: dict[str, Any] = {"dim": 3 * dim // 2, "depth": depth + 1}
    models = [
        vit(setting, NAMES[0], **small),
        hybrid(setting, NAMES[1], stem=stem(dim // 8), **small),
        vit(setting, NAMES[2], **large),
        hybrid(setting, NAMES[3], stem=stem(3 * dim // 8), **(large | {"depth": depth})),
    ]
    return [setting.plan(models)]


def judge(lab: Lab) -> Evidence:
    right = {name: lab.right(name) for name in NAMES}
    small, large = (right[NAMES[0]], right[NAMES[1]]), (right[NAMES[2]], right[NAMES[3]])
    lines = {
        kind: [(float(lab.cells(name)[0].macs), right[name]) for name in names]
        for kind, names in (("ViT", NAMES[::2]), ("hybrid", NAMES[1::2]))
    }
    return Evidence(
        findings=(
            ahead(lab, NAMES[1], NAMES[0], "the small hybrid is ahead of the small ViT"),
            difference_grows(small, large, "the lead of the hybrid is smaller for larger models"),
        ),
        tables=(accuracy_table(lab, NAMES),),
        drawings=(
            accuracy_lines(
                lines, title="Accuracy by compute", x_label="multiply-adds for an image"
            ),
        ),
    )


CLAIM = Claim(
    name="hybrid",
    sentence="At a small computational budget a hybrid is ahead of a ViT; for larger models the "
    "difference vanishes.",
    citation=Citation(
        paper="An Image is Worth 16x16 Words", arxiv="2010.11929", where="4.4, figure 5"
    ),
    minutes=(20, 200),
    stages=stages,
    judge=judge,
)
