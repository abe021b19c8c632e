"""One process of a run that something happens to, started by torchrun or alone:

    python -m tests.faults.worker OUT STEPS KIND [KILL ...]

A KILL is "step:rank:when": that process kills itself in that step, or in the save after it, once.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.training.cases import case_trainer
from vitrail.training import checkpoint, shards
from vitrail.training.launcher import exit_now, report_errors
from vitrail.training.loop import Trainer
from vitrail.training.recipe import Monitor, Schedule
from vitrail.training.world import World, process_group

EVERY = 3  # steps between checkpoints


def make_trainer(out: Path, steps: int, kind: str, world: World | None) -> Trainer:
    return case_trainer(
        "adamw",
        out,
        world=world,
        parallel=kind,
        schedule=Schedule(steps=steps, warmup=1),
        monitor=Monitor(eval_every_epochs=1, save_every_steps=EVERY, outage_minutes=0, keep=20),
    )


def kill_once(marker: Path) -> None:
    """SIGKILL for this process, but not for the one that takes its place."""
    if not marker.exists():
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def arm(run: Trainer, kills: list[str], out: Path) -> None:
    """Let this process die where its rank is named."""
    train_step, save = run.train_step, run.save
    mine = [kill.split(":") for kill in kills if int(kill.split(":")[1]) == run.world.rank]
    places = {(int(step), when): out.parent / "killed" / f"{step}-{rank}-{when}"
              for step, rank, when in mine}  # fmt: skip

    def step(batch: Any, lr: float | None = None) -> None:
        train_step(batch, lr)
        if (run.step, "step") in places:
            kill_once(places[run.step, "step"])

    def save_and_die() -> None:
        now = next(
            (place for (at, when), place in places.items()
             if when == "save" and at <= run.step < at + EVERY and not place.exists()), None,
        )  # fmt: skip
        if now is not None:
            arm_files(now)
        save()

    run.train_step = step  # type: ignore[method-assign]
    run.save = save_and_die  # type: ignore[method-assign]


def arm_files(marker: Path) -> None:
    """Die while the files of a checkpoint are written: after the first."""

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            found = call(*args, **kwargs)
            kill_once(marker)
            return found

        return called

    for module, name in ((shards, "write_planned"), (checkpoint, "flush")):
        patch.object(module, name, dying(getattr(module, name))).start()


def main() -> None:
    out, steps, kind, *kills = sys.argv[1:]
    torch.set_num_threads(1)
    with report_errors(), process_group("cpu") as world:
        run = make_trainer(Path(out), int(steps), kind, world)
        arm(run, kills, Path(out))
        run.run(resume=True)
    exit_now(0)


if __name__ == "__main__":
    main()
