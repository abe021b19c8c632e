"""`vitrail pretrain`: from a folder of images without labels to a model that knows images."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.running import start

if TYPE_CHECKING:
    from vitrail.cli.display import Display, Written
    from vitrail.data.source import Splits
    from vitrail.training.loop import Outcome, Task


@dataclass(frozen=True)
class Pretrain:
    """What to learn from, by which objective, and where the result goes."""

    data: str
    """Any folder of images, a manifest, tars, arrays, IDX files, hf:owner/name,
    torchvision:NAME:ROOT, digits, planted or fashion-mnist; labels are not read."""
    _: KW_ONLY
    objective: Literal["masked-patch", "beit", "mae", "simmim", "tokenizer"] | None = None
    """What is predicted: colours of corrupted patches, words of a tokenizer, pixels of hidden
    patches (mae, the default, and simmim); or, with tokenizer, the words themselves are learnt."""
    tokenizer: str | None = None
    """For beit: the checkpoint whose words are predicted, ours or DALL-E's encoder."""
    out: str | None = None
    """The directory of the run; by default runs/NAME-OF-THE-DATA-OBJECTIVE."""
    recipe: str | None = None
    """A recipe.yaml; by default one chosen from the data."""
    model: str | None = None
    """A variant (vitrail models); by default a small one chosen from the data."""
    start: Annotated[str | None, Parameter(name="--from")] = None
    """A checkpoint to begin from: native, foreign or hf-hub:owner/name."""
    epochs: float | None = None
    """Rounds through the images."""
    steps: int | None = None
    """Steps, instead of epochs."""
    batch_size: str | None = None
    """Images in a step, or auto: what this machine is fastest with."""
    lr: str | None = None
    """Peak learning rate, or find: where the loss falls fastest in a hundred trial steps."""
    image_size: str | None = None
    """224, or height x width as 192x672."""
    val_share: float | None = None
    """Share of the images to judge by, where the data has no val part; 0.1 unless said."""
    set: tuple[str, ...] = ()
    """Any other field of the recipe: --set goal.options.ratio=0.6. May be repeated."""
    seed: int | None = None
    """Decides every draw of the run; 0 unless said."""
    threads: int | None = None
    """Threads to compute with."""
    workers: int | None = None
    """Processes that read and augment images; their number changes nothing in the result."""
    processes: int = 1
    """Processes that train together on this machine, under torchrun."""
    parallel: Literal["ddp", "fsdp", "hsdp"] | None = None
    """What processes share: nothing but gradients (ddp), the weights too (fsdp), or both (hsdp)."""
    resume: bool | Literal["auto"] = False
    """Go on from the last checkpoint of the run in OUT, with its recipe; --resume auto begins the
    run where there is none, so that one command can be repeated until it is done."""
    dry_run: bool = False
    """Build the model, measure a few steps, print the recipe and stop."""
    json: bool = False
    """Print the outcome as a JSON object."""


def pretrain(asked: Pretrain) -> None:
    """Teach a model what images are like, without labels; then vitrail train --from OUT/last."""
    start(asked, "pretrain", write_report)


def write_report(
    task: Task, splits: Splits, out: Path, outcome: Outcome, display: Display, spent: float
) -> Written:
    """OUT/report.html: the curve of the loss, and what was hidden and guessed after each epoch."""
    from vitrail.cli.display import Written, interrupted_at
    from vitrail.evaluation.pretraining_page import Pretraining, pretraining_page
    from vitrail.models.summary import summarise
    from vitrail.training.log import Log
    from vitrail.training.pictures import pictures_in
    from vitrail.weights.atomic import write_file

    model = task.objective.model
    told = Pretraining(
        title=out.name,
        recipe=asdict(task.recipe),
        facts={
            "objective": task.recipe.goal.objective,
            "best at step": f"{outcome.run_state.best_step:,} of {outcome.total:,}",
            "model": summarise(model),
            "images per second": f"{outcome.images_per_second:,.0f}",
            "written": time.strftime("%Y-%m-%d %H:%M"),
        },
        lines=Log.read(out),
        pictures=pictures_in(out),
        rows=outcome.run_state.shown,
        warning=outcome.run_state.warning,
        stopped=interrupted_at(outcome),
        broken=outcome.run_state.broken,
    )

    def fill(path: Path) -> None:
        path.write_text(pretraining_page(told), encoding="utf-8")

    write_file(out / "report.html", fill, overwrite=True)
    return Written()
