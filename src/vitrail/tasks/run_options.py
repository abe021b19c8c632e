"""The options of a run, in plain values: what train, pretrain and resume take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vitrail.core.records import validate
from vitrail.tasks.progress import OnProgress, silent
from vitrail.training.goal import MaskedObjective
from vitrail.training.progress import Progress

Verb: TypeAlias = Literal["train", "pretrain"]
Parallel: TypeAlias = Literal["ddp", "fsdp", "hsdp"]
Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]
Size: TypeAlias = int | tuple[int, int]
OnStep: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a call; None leaves the choice to the recipe. `set` holds any other field of
    the recipe, by its dotted place."""

    verb: Verb
    data: str
    out: str | None = None
    recipe: str | None = None
    model: str | None = None
    start: str | None = None
    objective: MaskedObjective | None = None
    tokenizer: str | None = None
    epochs: float | None = None
    steps: int | None = None
    minutes: float | None = None
    folds: int | None = None
    fold: int | None = None  # of them, counted from 1
    batch_size: int | Literal["auto"] | None = None
    lr: float | Literal["find"] | None = None
    image_size: tuple[int, int] | None = None
    native_resolution: bool = False
    max_tokens: int | None = None
    val_share: float | None = None
    set: dict[str, Any] | None = None
    seed: int | None = None
    workers: int | None = None
    parallel: Parallel | None = None
    precision: Precision | None = None
    device: str = "auto"
    threads: int | None = None
    processes: int = 1
    resume: bool | Literal["auto"] = False
    dry_run: bool = False

    @property
    def changes(self) -> dict[str, Any]:
        return dict(self.set or {})


# What two starts of one run may differ in: where it computes, not what.
FREE = ("workers", "parallel", "device", "threads", "processes", "resume", "dry_run", "out")


def make_options(verb: Verb, data: str | Path, values: Mapping[str, Any]) -> RunOptions:
    """The options of a call, each checked."""
    given = {"verb": verb, "data": fspath(data), **values}
    for name in ("out", "recipe", "start", "tokenizer"):
        if isinstance(given.get(name), Path):
            given[name] = fspath(given[name])
    if isinstance(given.get("image_size"), int):
        given["image_size"] = (given["image_size"], given["image_size"])
    return validate(RunOptions, given, where=verb)


@dataclass(frozen=True)
class Observer:
    """Who wants to know how a run goes: after each step, and of the work before and after."""

    on_step: OnStep | None = None
    on_progress: OnProgress = silent

    def show_step(self, now: Progress) -> None:
        if self.on_step is not None:
            self.on_step(now)
        if now.step:
            self.on_progress("training", now.step, now.total)
