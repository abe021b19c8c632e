"""`vitrail train`: from a folder of images to a model."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.running import start

if TYPE_CHECKING:
    from pathlib import Path

    from vitrail.cli.display import Display, Written
    from vitrail.data.source import Splits
    from vitrail.training.loop import Outcome, Task


@dataclass(frozen=True)
class Train:
    """What to train on, with what, and where the result goes."""

    data: str
    """Class folders, a manifest, tars, arrays, IDX files, hf:owner/name, torchvision:NAME:ROOT,
    digits, planted or fashion-mnist."""
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
    """Build the model, measure a few steps, print the recipe and stop."""
    json: bool = False
    """Print the outcome as a JSON object."""


def train(asked: Train) -> None:
    """Train a model on labelled images; what comes out is in OUT/best, OUT/last and
    OUT/report.html."""
    start(asked, "train", write_report)


def write_report(
    task: Task, splits: Splits, out: Path, outcome: Outcome, display: Display, spent: float
) -> Written:
    from vitrail.cli.training_report import write_training_report

    return write_training_report(task, splits, out, outcome, display, spent)
