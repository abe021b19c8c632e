"""`masked-patch`: pre-training by masked patches, between scratch and supervised pre-training."""

from collections.abc import Sequence

from vitrail.tasks.claims.accuracies import accuracy_bars, accuracy_table, ahead
from vitrail.tasks.claims.claim import Citation, Claim, Evidence, Pretraining, Setting, Stage
from vitrail.tasks.claims.lab import Lab
from vitrail.tasks.claims.small_models import vit, vit_fields
from vitrail.tasks.compare_runs import RUNS

SHARE = 0.01  # of the labels, for fine-tuning
TEACHER = "supervised pre-training"
SCRATCH, MASKED, SUPERVISED = "from scratch", "after masked patches", "after labels"


def stages(setting: Setting) -> Sequence[Stage]:
    scale, plans = setting.scale, list[Stage]()
    for seed in setting.seeds:
        masked = Pretraining(
            name=f"masked-patch-seed{seed}",
            objective="masked-patch",
            model="vit_ti_16",
            fields=vit_fields(setting),
            steps=scale.pretrain_steps,
            batch_size=scale.batch_size,
            seed=seed,
        )
        taught = setting.plan([vit(setting, TEACHER)], seeds=[seed], steps=scale.pretrain_steps)
        teacher = taught.cells[0].name
        starts = {SCRATCH: None, MASKED: masked.name, SUPERVISED: teacher}
        models = [
            vit(setting, name, None if run is None else str(setting.out / RUNS / run / "last"))
            for name, run in starts.items()
        ]
        plans += [masked, taught, setting.plan(models, seeds=[seed], shares=[SHARE])]
    return plans


def judge(lab: Lab) -> Evidence:
    models = (SCRATCH, MASKED, SUPERVISED)
    return Evidence(
        findings=(
            ahead(
                lab,
                MASKED,
                SCRATCH,
                "pre-trained by masked patches it is ahead of scratch",
                share=SHARE,
            ),
            ahead(
                lab,
                SUPERVISED,
                MASKED,
                "pre-trained with labels it is ahead of masked patches",
                share=SHARE,
            ),
        ),
        tables=(
            accuracy_table(
                lab, models, shares=[SHARE], title=f"Fine-tuned with {SHARE:.0%} of the labels"
            ),
            accuracy_table(lab, [TEACHER], title="Pre-trained with all labels, not fine-tuned"),
        ),
        drawings=(accuracy_bars(lab, models, share=SHARE),),
    )


CLAIM = Claim(
    name="masked-patch",
    sentence="Pre-training by masked patch prediction is ahead of training from scratch (by 2 "
    "points in the paper), and behind supervised pre-training (by 4).",
    citation=Citation(
        paper="An Image is Worth 16x16 Words", arxiv="2010.11929", where="4.6, appendix B.1.2"
    ),
    minutes=(25, 260),
    stages=stages,
    judge=judge,
    caveat="Both kinds of pre-training see all training images for the same number of steps. The "
    "supervised one sees the labels of all of them, which the paper's does not: it bounds the gap "
    "from above.",
)
