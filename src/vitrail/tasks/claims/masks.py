"""`masks`: BEiT pre-trained with blockwise masks against random ones."""

from collections.abc import Sequence
from typing import Any

from vitrail.tasks.claims.accuracies import accuracy_bars, accuracy_table, ahead
from vitrail.tasks.claims.claim import Citation, Claim, Evidence, Pretraining, Setting, Stage
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import MLP_RATIO, PATCH
from vitrail.tasks.compare_plan import ModelChoice
from vitrail.tasks.compare_runs import RUNS

SHARE = 0.01  # of the labels, for fine-tuning
MASKINGS = ("blockwise", "random")
SCRATCH = "from scratch"
BLOCK = 4  # patches of a block, of 49: as many as the paper's 16 of 196
TOKENIZER = "tokenizer"


def beit_fields(setting: Setting) -> dict[str, Any]:
    scale = setting.scale
    return {
        "image_size": setting.side,
        "patch_size": PATCH,
        "dim": scale.dim,
        "depth": scale.depth,
        "heads": scale.heads,
        "mlp_dim": MLP_RATIO * scale.dim,
        "channels": setting.channels,
    }


def stages(setting: Setting) -> Sequence[Stage]:
    scale, fields = setting.scale, beit_fields(setting)
    words = {"image_size": setting.side, "stages": 3, "words": 64, "channels": setting.channels}
    common: dict[str, Any] = {"batch_size": scale.batch_size}
    plans: list[Stage] = [
        Pretraining(
            name=TOKENIZER,
            objective="tokenizer",
            model="vq_ti_8",
            fields=words,
            steps=max(scale.pretrain_steps // 2, 2),
            seed=setting.seeds[0],
            **common,
        )
    ]
    for seed in setting.seeds:
        for masking in MASKINGS:
            plans.append(
                Pretraining(
                    name=f"beit-{masking}-seed{seed}",
                    objective="beit",
                    model="beit_b_16",
                    fields=fields,
                    steps=scale.pretrain_steps,
                    seed=seed,
                    tokenizer=TOKENIZER,
                    options={"masking": masking, "least": BLOCK},
                    **common,
                )
            )
        models = [
            ModelChoice(
                name=name,
                model="beit_b_16",
                fields=fields,
                start=None
                if name == SCRATCH
                else str(setting.out / RUNS / f"beit-{name}-seed{seed}" / "last"),
            )
            for name in (*MASKINGS, SCRATCH)
        ]
        plans.append(setting.plan(models, seeds=[seed], shares=[SHARE]))
    return plans


def judge(lab: Lab) -> Evidence:
    models = (*MASKINGS, SCRATCH)
    return Evidence(
        findings=(
            ahead(
                lab,
                "blockwise",
                "random",
                "pre-trained with blockwise masks it is ahead of random masks",
                share=SHARE,
            ),
        ),
        tables=(
            accuracy_table(
                lab, models, shares=[SHARE], title=f"Fine-tuned with {SHARE:.0%} of the labels"
            ),
        ),
        drawings=(accuracy_bars(lab, models, share=SHARE),),
    )


CLAIM = Claim(
    name="masks",
    sentence="BEiT is better pre-trained with blockwise masks than with random ones.",
    citation=Citation(paper="BEiT", arxiv="2106.08254", where="3.3, table 4"),
    minutes=(30, 300),
    stages=stages,
    judge=judge,
    caveat="The tokenizer is a small VQ one that is trained on the same images, in place of "
    "DALL-E's.",
)
