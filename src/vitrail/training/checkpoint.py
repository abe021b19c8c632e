"""Run checkpoints: all that a run needs to go on as if it had never stopped, written whole or not
at all.

A checkpoint is written to `step-N.tmp`, each file flushed to the disk, the manifest with the
SHA-256 of all others last; then it is renamed to `step-N`. What a save that failed has written is
removed at once, and what a run that was killed has left when it starts again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.training.sharded import is_sharded, shard_like
from vitrail.training.shards import INDEX, RunTensors, Shards, write_text, write_whole
from vitrail.training.world import World
from vitrail.weights.atomic import exchange
from vitrail.weights.files import digest, read_json, read_tensors

Sums = dict[str, str]  # SHA-256 by file

STATE = "state.safetensors"  # of earlier versions, which wrote all tensors to one file
RUN, MANIFEST = "run.json", "manifest.json"
FORMAT = 2
DRAFT = ".tmp"


@dataclass(frozen=True)
class Saved:
    """Where a run stood: how many steps were done, its tensors, and what it remembers."""

    step: int
    tensors: dict[str, Tensor]
    run_state: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """A checkpoint whose every byte is as it was written."""

    path: Path
    step: int
    run_state: dict[str, Any]

    @property
    def shards(self) -> Shards | None:
        """Its tensors; None for a checkpoint of an earlier version."""
        return Shards(self.path) if (self.path / INDEX).is_file() else None

    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors that a run goes on from, whole, each read when it is asked for."""
        shards = self.shards
        if shards is not None:
            return RunTensors(shards)
        return {name: tensor.clone() for name, tensor in read_tensors(self.path / STATE).items()}

    def read(self) -> dict[str, Tensor]:
        """The same, read."""
        return dict(self.tensors())


def draft_of(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}{DRAFT}"


def start_draft(draft: Path) -> None:
    """An empty directory to write to."""
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)


def discard(draft: Path) -> None:
    """Remove what a save that failed has written, as far as that is possible."""
    shutil.rmtree(draft, ignore_errors=True)


def finish_draft(draft: Path, step: int, run_state: dict[str, Any], sums: Sums) -> None:
    """Write what belongs to the tensors, the manifest last."""
    write_text(draft / RUN, json.dumps({"step": step, **run_state}))
    sums = sums | {name: digest(draft / name) for name in (INDEX, RUN)}
    sizes = {name: (draft / name).stat().st_size for name in sums}
    manifest = {"format": FORMAT, "files": sums, "bytes": sizes}
    write_text(draft / MANIFEST, json.dumps(manifest))
    flush(draft)


def publish(draft: Path, *, keep: int) -> Path:
    """Give a draft its name, and remove the oldest checkpoints beyond `keep`, and those of later
    steps: a run that saves this step has not gone on from them, because they are damaged."""
    place = draft.with_name(draft.name.removesuffix(DRAFT))
    if not place.exists():
        os.rename(draft, place)
    elif exchange(draft, place):  # the same step again: there is a checkpoint at every moment
        shutil.rmtree(draft, ignore_errors=True)
    else:
        remove(place)
        os.rename(draft, place)
    flush(draft.parent)
    known = steps_in(draft.parent)
    now = known.index(place) + 1
    for old in (*known[now:], *known[:now][:-keep]):
        remove(old)
    return place


def remove(step: Path) -> None:
    """Under another name first: half of a checkpoint must not look like one."""
    leftover = step.with_name(f"{step.name}.old{DRAFT}")
    shutil.rmtree(leftover, ignore_errors=True)
    os.rename(step, leftover)
    shutil.rmtree(leftover, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Remove what a run that was killed has left."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if re.fullmatch(rf"step-\d{{9}}(\.old)?{re.escape(DRAFT)}", path.name):
            shutil.rmtree(path, ignore_errors=True)


def write_step(directory: Path, saved: Saved, *, keep: int) -> Path:
    """Add a checkpoint of one process to `directory` and remove the oldest beyond `keep`."""
    draft = draft_of(directory, saved.step)
    start_draft(draft)
    sums = write_whole(draft, saved.tensors)
    finish_draft(draft, saved.step, saved.run_state, sums)
    return publish(draft, keep=keep)


def newest_step(directory: Path, world: World | None = None) -> Saved | None:
    """The newest intact checkpoint with its tensors, whole."""
    found = find_step(directory, world)
    return None if found is None else Saved(found.step, found.read(), found.run_state)


def find_step(directory: Path, world: World | None = None) -> Found | None:
    """The newest checkpoint whose every byte is as it was written. The main process chooses it,
    and all go on from the same one or none does. The processes of a machine verify its files
    together."""
    world = world or World()
    names = world.from_main([path.name for path in reversed(steps_in(directory))])
    for name in names:
        found, manifest = verify(directory / name, world.local)
        states = world.gather((manifest, found is not None))
        beside_main = states[: world.from_main(world.local[1])]
        if not all(intact for _, intact in beside_main):
            continue  # of a damaged checkpoint the one before it is taken
        for rank, (theirs, intact) in enumerate(states):
            if not intact or theirs != states[0][0]:
                raise UserError(
                    f"{directory / name}: process {rank} does not read what the main process reads "
                    "there: choose an out directory on a file system that all machines share"
                )
        return found
    return None


def verify(path: Path, share: tuple[int, int] = (0, 1)) -> tuple[Found | None, Sums]:
    """A checkpoint if it is what was written, and its manifest. Of `share` = (i, n) every n-th file
    is read, from the i-th on; all must be there."""
    try:
        manifest = read_json(path / MANIFEST)
        sums: Sums = manifest["files"]
        sizes = manifest.get("bytes", {})
        for number, name in enumerate(sorted(sums)):
            if (path / name).stat().st_size != sizes.get(name, (path / name).stat().st_size):
                return None, sums
            if number % share[1] == share[0] and digest(path / name) != sums[name]:
                return None, sums
        run_state = read_json(path / RUN)
        return Found(path, run_state.pop("step"), run_state), sums
    except (UserError, OSError, KeyError, TypeError, AttributeError):
        return None, {}


def steps_in(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if re.fullmatch(r"step-\d{9}", p.name))


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flatten_optimisers(optimisers: Iterable[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The state of optimisers as plain tensors by name; rates and decays come from the recipe."""
    return {
        f"optimiser.{number}.{index}.{name}": torch.as_tensor(value)
        for number, optimiser in enumerate(optimisers)
        for index, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
    }


def restore_optimisers(
    optimisers: Iterable[torch.optim.Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    for number, optimiser in enumerate(optimisers):
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key in tensors:
            kind, *place = key.split(".", 3)
            if kind == "optimiser" and int(place[0]) == number:
                tensor, like = tensors[key], parameters[int(place[1])]
                whole = tensor.shape == like.shape and not is_sharded(tensor)
                mine = shard_like(tensor, like) if whole else tensor
                state.setdefault(int(place[1]), {})[place[2]] = mine
        optimiser.load_state_dict(
            {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
        )


def like_optimiser(
    optimisers: list[torch.optim.Optimizer], key: str, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Memory for a tensor of an optimiser's state, shared as its parameter is."""
    _, number, index, _ = key.split(".", 3)
    groups = optimisers[int(number)].param_groups
    parameter: Tensor = [p for group in groups for p in group["params"]][int(index)]
    if tuple(parameter.shape) == tuple(shape):
        return torch.empty_like(parameter, dtype=dtype)
    return torch.empty(shape, dtype=dtype)
