"""The options that train and pretrain share, and how they become arguments of the task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from vitrail.cli.options import (
    COMPUTING,
    OUTPUT,
    Device,
    Out,
    OutputOptions,
    Threads,
    parse_changes,
    parse_size,
)
from vitrail.core.errors import UserError

RECIPE = Group("Recipe", sort_key=1)


@dataclass(frozen=True, kw_only=True)
class RunOptions(OutputOptions):
    """What decides a run, and where it computes."""

    out: Out = None
    """Directory of the run. [default: runs/DATA]"""
    model: Annotated[str | None, Parameter(group=RECIPE)] = None
    """Architecture (see vitrail models). [default: a small one chosen for the data]"""
    start: Annotated[str | None, Parameter(name=["--from", "--start"], group=RECIPE)] = None
    """Checkpoint to start from: Vitrail directory, foreign file, or hub id owner/name."""
    epochs: Annotated[float | None, Parameter(group=RECIPE)] = None
    """Epochs to train. [default: chosen from the number of images]"""
    steps: Annotated[int | None, Parameter(group=RECIPE)] = None
    """Steps to train, instead of epochs."""
    minutes: Annotated[float | None, Parameter(group=RECIPE)] = None
    """Time for the whole run: as many steps as it allows, by the speed measured at the start."""
    batch_size: Annotated[str | None, Parameter(group=RECIPE)] = None
    """Images per step, or auto: the size that is fastest on this machine."""
    lr: Annotated[str | None, Parameter(group=RECIPE)] = None
    """Peak learning rate, or find: where the loss falls fastest in 100 trial steps."""
    image_size: Annotated[str | None, Parameter(group=RECIPE)] = None
    """Image size: 224, or height x width as 192x672."""
    val_share: Annotated[float | None, Parameter(group=RECIPE)] = None
    """Share of the images held out for validation if the data has no val split. [default: 0.1]"""
    set: Annotated[tuple[str, ...], Parameter(group=RECIPE)] = ()
    """Set any other field of the recipe: --set optimiser.weight_decay=0.1. May be repeated."""
    seed: Annotated[int | None, Parameter(group=RECIPE)] = None
    """Random seed. [default: 0]"""
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, Parameter(group=COMPUTING)
    ] = None
    """Precision of matrix products; weights stay in float32. [default: float32]"""
    device: Device = "auto"
    threads: Threads = None
    workers: Annotated[int | None, Parameter(group=COMPUTING)] = None
    """Processes that read and augment images; any number gives the same result. [default: 0]"""
    processes: Annotated[int, Parameter(group=COMPUTING)] = 1
    """Training processes on this machine (torchrun)."""
    parallel: Annotated[Literal["ddp", "fsdp", "hsdp"] | None, Parameter(group=COMPUTING)] = None
    """Share gradients only (ddp), weights too (fsdp), or weights within groups (hsdp).
    [default: ddp]"""
    resume: Annotated[
        bool | Literal["auto"], Parameter(group=OUTPUT, metavar="\\[auto]", show_choices=False)
    ] = False
    """Continue the run in OUT from its last checkpoint; --resume auto starts it if there is none,
    so that one command can be repeated until it is done."""
    dry_run: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Build the model, time a few steps, print the recipe and stop."""

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the task."""
        size = self.image_size
        same = (
            "out", "model", "start", "epochs", "steps", "minutes", "val_share", "seed", "precision",
            "device", "threads", "workers", "processes", "parallel", "resume", "dry_run",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in same},
            "batch_size": parse_number("--batch-size", self.batch_size, "auto"),
            "lr": parse_number("--lr", self.lr, "find"),
            "image_size": None if size is None else parse_size(size, "--image-size"),
            "set": parse_changes(None, self.set),
        }


def parse_number(option: str, text: str | None, word: str) -> int | float | str | None:
    """A number, whole for a batch size, or the word that leaves it to trials.

    >>> parse_number("--lr", "3e-4", "find"), parse_number("--batch-size", "auto", "auto")
    (0.0003, 'auto')
    """
    if text is None or text == word:
        return text
    whole = option == "--batch-size"
    try:
        value = float(text)
        if whole and (value != int(value) or value < 1):
            raise ValueError
    except (ValueError, OverflowError):
        kind = "a whole number of at least 1" if whole else "a number"
        raise UserError(f"{option} must be {kind}, or {word}, got {text!r}") from None
    return int(value) if whole else value
