"""`pooling`: a class token against the mean of the patches, and the learning rate each needs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.evaluation.findings import Finding
from vitrail.evaluation.paired import paired_difference
from vitrail.tasks.claims.accuracies import PAIRED, accuracy_lines, accuracy_table, alike
from vitrail.tasks.claims.claim import Citation, Claim, Evidence, Setting, Stage
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import vit

RATES = (0.002, 0.008, 0.032)
POOLS: dict[str, dict[str, Any]] = {
    "class token": {"pool": "cls", "class_token": True},
    "mean": {"pool": "mean", "class_token": False},
}
MARGIN = 0.02


def name_of(pool: str, rate: float) -> str:
    """
    >>> name_of("mean", 0.002)
    'mean, lr 0.002'
    """
    return f"{pool}, lr {rate:g}"


def stages(setting: Setting) -> Sequence[Stage]:
    return [
        setting.plan(
            [vit(setting, name_of(pool, rate), **fields) for pool, fields in POOLS.items()], lr=rate
        )
        for rate in RATES
    ]


def judge(lab: Lab) -> Evidence:
    """The best rate of each is chosen on every second test image, and judged on the others."""
    right = {pool: [lab.right(name_of(pool, rate)) for rate in RATES] for pool in POOLS}
    best = {pool: choose(each) for pool, each in right.items()}
    token, mean = (right[pool][best[pool]][:, 1::2] for pool in POOLS)
    exchanged = right["mean"][best["class token"]][:, 1::2]
    apart = paired_difference(mean, exchanged)
    rates = {pool: RATES[place] for pool, place in best.items()}
    names = [name_of(pool, rate) for pool in POOLS for rate in RATES]
    lines = {pool: list(zip(RATES, each, strict=True)) for pool, each in right.items()}
    return Evidence(
        findings=(
            alike(
                token,
                mean,
                "at its own best learning rate each is as good as the other",
                margin=MARGIN,
            ),
            Finding(
                sentence="the mean is worse at the best learning rate of the class token than at "
                "its own",
                estimate=apart.difference,
                interval=apart.interval,
                above=0.0,
                unit="points",
                how=PAIRED,
            ),
        ),
        tables=(accuracy_table(lab, names),),
        drawings=(
            accuracy_lines(lines, title="Accuracy by learning rate", x_label="learning rate"),
        ),
        notes=tuple(f"best learning rate of the {pool}: {rate:g}" for pool, rate in rates.items()),
    )


def choose(each: Sequence[NDArray[np.bool_]]) -> int:
    """The place of the best on every second test image, those with even numbers."""
    return int(np.argmax([one[:, ::2].mean() for one in each]))


CLAIM = Claim(
    name="pooling",
    sentence="A class token and the mean of the patches are equally good, but need different "
    "learning rates.",
    citation=Citation(
        paper="An Image is Worth 16x16 Words", arxiv="2010.11929", where="appendix D.3, figure 9"
    ),
    minutes=(20, 200),
    stages=stages,
    judge=judge,
)
