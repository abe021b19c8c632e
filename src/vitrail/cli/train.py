"""`vitrail train`: from a folder of images to a model."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.running import start

if TYPE_CHECKING:
    from vitrail.cli.display import Display
    from vitrail.data.source import Splits
    from vitrail.train.loop import Outcome, Task


MOST_EXAMINED = 200_000  # images that the doctor looks at unasked


@dataclass(frozen=True)
class Train:
    """What to train on, with what, and where the result goes."""

    data: str
    """Class folders, a manifest, tars, arrays, IDX files, or digits."""
    _: KW_ONLY
    out: str | None = None
    """The directory of the run; by default runs/NAME-OF-THE-DATA."""
    recipe: str | None = None
    """small, tune, finetune, imagenet1k, imagenet21k, jft, deit, deit_distilled, swin, beit,
    mobilevit, or a recipe.yaml; by default small, or tune with --from."""
    model: str | None = None
    """A variant (vitrail models); by default a small ViT chosen from the data."""
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
    """Any other field of the recipe: --set optimiser.weight_decay=0.1. May be repeated."""
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
    """Print the recipe and stop."""
    json: bool = False
    """Print the outcome as a JSON object."""


def train(asked: Train) -> None:
    """Train a model on labelled images; what comes out is in OUT/best, OUT/last and
    OUT/report.html."""
    start(asked, "train", write_report)


def write_report(task: Task, splits: Splits, out: Path, outcome: Outcome, display: Display) -> None:
    """OUT/report.html: curves, what the best weights get wrong, and what is wrong with the data."""
    from vitrail.data.doctor import examine
    from vitrail.evaluate.answers import answers_of
    from vitrail.evaluate.report import Report
    from vitrail.evaluate.report_page import report_page
    from vitrail.models.measure import count
    from vitrail.train.log import Log
    from vitrail.train.prepare import judged_part
    from vitrail.weights.atomic import write_file
    from vitrail.weights.load import load

    recipe = task.recipe
    part, source = judged_part(splits, recipe.data)
    model = load(out / "best")
    answers = answers_of(model, source, name=recipe.data)
    few = sum(map(len, splits.parts.values())) <= MOST_EXAMINED
    watch = display.watch("looking at the data")
    findings = examine(splits, recipe.data, watch=watch) if few else None
    if findings is not None:  # a short run has not met every image
        outcome.memory.broken |= {bad.picture.name: bad.reason for bad in findings.broken}
    report = Report(
        title=out.name,
        recipe=asdict(recipe),
        facts={
            "best at step": f"{outcome.memory.best_step:,} of {outcome.total:,}",
            "parameters": f"{count(model):,}",
            "images per second": f"{outcome.images_per_second:,.0f}",
            "written": time.strftime("%Y-%m-%d %H:%M"),
        },
        lines=Log.read(out),
        labels=source.labels,
        logits=answers.logits,
        targets=answers.targets,
        indices=answers.indices,
        source=source,
        part=part,
        findings=findings,
        broken=outcome.memory.broken,
    )

    def fill(path: Path) -> None:
        path.write_text(report_page(report), encoding="utf-8")

    write_file(out / "report.html", fill, overwrite=True)
