"""Run checkpoints: all that a run needs to go on as if it had never stopped, written whole or not
at all."""

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.training.sharded import shard_like
from vitrail.training.world import World
from vitrail.weights.atomic import write_directory
from vitrail.weights.files import digest, read_json, read_tensors, write_tensors

Sums = dict[str, str]  # SHA-256 by file

STATE, RUN, MANIFEST = "state.safetensors", "run.json", "manifest.json"


@dataclass(frozen=True)
class Saved:
    """Where a run stood: how many steps were done, its tensors, and what it remembers."""

    step: int
    tensors: dict[str, Tensor]
    run_state: dict[str, Any]


def write_step(directory: Path, saved: Saved, *, keep: int) -> Path:
    """Add a checkpoint to `directory` and remove the oldest beyond `keep`."""

    def fill(draft: Path) -> None:
        write_tensors(saved.tensors, draft / STATE)
        run_state = {"step": saved.step, **saved.run_state}
        (draft / RUN).write_text(json.dumps(run_state) + "\n", encoding="utf-8")
        sums = {name: digest(draft / name) for name in (STATE, RUN)}
        (draft / MANIFEST).write_text(json.dumps({"files": sums}) + "\n", encoding="utf-8")

    written = write_directory(directory / f"step-{saved.step:09d}", fill, overwrite=True)
    for old in steps_in(directory)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return written


def newest_step(directory: Path, world: World | None = None) -> Saved | None:
    """The newest checkpoint whose every byte is as it was written. The main process chooses it,
    and all go on from the same one or none does."""
    world = world or World()
    name, sums, saved = newest_intact(directory) if world.is_main else ("", {}, None)
    name, sums = world.from_main((name, sums))
    if not name:
        return None
    if not world.is_main:
        theirs, saved = read_intact(directory / name)
        saved = saved if theirs == sums else None
    unread = [rank for rank, had in enumerate(world.gather(saved is not None)) if not had]
    if unread:
        raise UserError(
            f"{directory / name}: process {unread[0]} does not read what the main process reads "
            "there: choose an out directory on a file system that all machines share"
        )
    return saved


def newest_intact(directory: Path) -> tuple[str, Sums, Saved | None]:
    """Name, digests and contents; of a damaged checkpoint the one before it is taken."""
    for path in reversed(steps_in(directory)):
        sums, saved = read_intact(path)
        if saved is not None:
            return path.name, sums, saved
    return "", {}, None


def read_intact(path: Path) -> tuple[Sums, Saved | None]:
    """The digests of a checkpoint and what it holds; nothing if it is not what was written."""
    try:
        sums = read_json(path / MANIFEST)["files"]
        if all(digest(path / name) == sums[name] for name in (STATE, RUN)):
            run_state = read_json(path / RUN)
            return sums, Saved(run_state.pop("step"), read_tensors(path / STATE), run_state)
    except (UserError, OSError, KeyError, TypeError):
        pass
    return {}, None


def steps_in(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if re.fullmatch(r"step-\d{9}", p.name))


def flatten_optimisers(optimisers: Iterable[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The state of optimisers as plain tensors by name; rates and decays come from the recipe."""
    return {
        f"optimiser.{number}.{index}.{name}": torch.as_tensor(value)
        for number, optimiser in enumerate(optimisers)
        for index, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }


def restore_optimisers(
    optimisers: Iterable[torch.optim.Optimizer], tensors: dict[str, Tensor]
) -> None:
    for number, optimiser in enumerate(optimisers):
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            kind, *place = key.split(".", 3)
            if kind == "optimiser" and int(place[0]) == number:
                like = parameters[int(place[1])]
                mine = shard_like(tensor, like) if tensor.shape == like.shape else tensor
                state.setdefault(int(place[1]), {})[place[2]] = mine.clone()
        optimiser.load_state_dict(
            {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
        )
