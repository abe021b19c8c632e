"""`few-shot`: the quick few-shot score of frozen features against fine-tuned accuracy."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from vitrail.data.sources import open_data
from vitrail.evaluation.fewshot import few_shot
from vitrail.evaluation.findings import Finding, rank_correlation
from vitrail.inference.features import compute_features
from vitrail.tasks.claims.claim import Citation, Claim, Drawing, Evidence, Setting, Stage, Table
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import vit
from vitrail.tasks.compare_runs import RUNS

TARGET, HALF = "digits", 0.5  # another data set; half of it is tested
SHOTS = 10
WIDTHS = (0.25, 1.0)  # of the scale's
LENGTHS = (0.02, 0.1, 0.3, 1.0)  # of pre-training
TUNING_LR = 1e-3


def checkpoints(setting: Setting) -> dict[str, tuple[int, int]]:
    """Width and pre-training steps of each checkpoint, by its name."""
    scale = setting.scale
    found = {}
    for width, length in product(WIDTHS, LENGTHS):
        dim, steps = int(width * scale.dim), max(round(length * scale.pretrain_steps), 2)
        found[f"width {dim}, {steps} steps"] = (dim, steps)
    return found


def stages(setting: Setting) -> Sequence[Stage]:
    plans, seed = list[Stage](), setting.seeds[:1]
    for name, (dim, steps) in checkpoints(setting).items():
        before = setting.plan([vit(setting, name, dim=dim)], seeds=seed, steps=steps)
        start = str(setting.out / RUNS / before.cells[0].name / "last")
        tuned = vit(setting, f"{name}, fine-tuned", start, dim=dim)
        plans += [
            before,
            setting.plan(
                [tuned],
                seeds=seed,
                data=TARGET,
                val_share=HALF,
                steps=max(setting.scale.steps // 2, 2),
                lr=TUNING_LR,
            ),
        ]
    return plans


def judge(lab: Lab) -> Evidence:
    rows: list[tuple[Any, ...]] = []
    for name in checkpoints(lab.setting):
        run = lab.cells(name)[0].name
        score = lab.once(f"few-shot-{run}", partial(few_shot_score, lab, run))
        rows.append((name, score, lab.cells(f"{name}, fine-tuned")[0].accuracy))
    shots, tuned = ([row[place] for row in rows] for place in (1, 2))
    rho, interval = rank_correlation(shots, tuned)
    points = sorted([shot, fine] for shot, fine in zip(shots, tuned, strict=True))
    columns = ("checkpoint", f"%{SHOTS}-shot accuracy", "%fine-tuned accuracy")
    return Evidence(
        findings=(
            Finding(
                sentence="checkpoints with a better few-shot score are better after fine-tuning",
                estimate=rho,
                interval=interval,
                above=0.0,
                how=f"Spearman's rank correlation over {len(rows)} checkpoints, Fisher's interval",
            ),
        ),
        tables=(
            Table(title=f"Pre-trained, then used on {TARGET}", columns=columns, rows=tuple(rows)),
        ),
        drawings=(
            Drawing(
                title="Fine-tuned accuracy by few-shot accuracy",
                kind="lines",
                lines={"checkpoints": points},
                x_label=f"{SHOTS}-shot accuracy",
                share=True,
            ),
        ),
    )


def few_shot_score(lab: Lab, run: str) -> float:
    """The accuracy of ridge regression on frozen features, the mean of three draws."""
    model, parts = lab.load(run), open_data(TARGET, val_share=HALF).parts
    train, test = (compute_features(model, parts[name], name=TARGET) for name in ("train", "val"))
    found = few_shot(
        train.head,
        train.targets,
        test.head,
        test.targets,
        classes=len(parts["train"].labels),
        shots=(SHOTS,),
    )
    return found[0].mean


CLAIM = Claim(
    name="few-shot",
    sentence="Few-shot accuracy by regularised least squares on frozen features tracks the "
    "accuracy after fine-tuning, and costs next to nothing.",
    citation=Citation(
        paper="An Image is Worth 16x16 Words",
        arxiv="2010.11929",
        where="4.1 (metrics) and 4.3, figure 4",
    ),
    minutes=(15, 150),
    stages=stages,
    judge=judge,
    caveat="The paper uses few-shot accuracy in place of fine-tuning where that would be too "
    "costly; it does not print their correlation.",
)
