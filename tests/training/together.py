"""What happens to one of two processes, and what all of them make of it: what must be so is
asserted in each process."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from tests.training.cases import STOP, case_trainer
from tests.training.world import RECIPE, Stripes, accuracy
from vitrail import UserError
from vitrail.data.images import Unreadable
from vitrail.data.source import Splits
from vitrail.tasks import training_run, trials
from vitrail.tasks.run_options import Observer, make_options
from vitrail.tasks.run_report import write_report
from vitrail.training import capacity, loop, saver, sharded_files
from vitrail.training import world as worlds
from vitrail.training.capacity import time_steps
from vitrail.training.checkpoint import RUN, Saved, newest_step, steps_in, write_step
from vitrail.training.consolidate import write_weights
from vitrail.training.parallel import sync_gradients
from vitrail.training.progress import Progress
from vitrail.training.sharded import is_sharded
from vitrail.training.shards import BEST, shard_name
from vitrail.training.world import World, process_group

LIMIT = 8.0  # seconds, for a process that does not answer
SECONDS = 9.0  # that the main process writes, longer than that


def checkpoints_differ(folder: Path) -> None:
    """Each process has a directory of its own, as on machines that share no file system."""
    with process_group() as group:
        world = replace(group, local=(0, 1))  # each verifies every file
        directory = folder / f"steps-{world.rank}"
        resume = partial(newest_step, directory, world)
        for step in (1, 2):
            saved = Saved(step, {"now.weight": torch.full((2,), float(step))}, {"best": None})
            write_step(directory, saved, keep=9)
        first, second = steps_in(directory)
        assert newest_step_of(directory, world) == 2
        original = (second / shard_name(0)).read_bytes()

        if not world.is_main:  # damaged
            (second / shard_name(0)).write_bytes(original[:-1] + b"\0")
        assert "process 1 does not read" in refusal_of_all(resume, world)
        (second / shard_name(0)).write_bytes(original)

        if not world.is_main:  # whole, but of another run
            write_step(directory, Saved(2, {"now.weight": torch.zeros(2)}, {}), keep=9)
        assert "process 1 does not read" in refusal_of_all(resume, world)

        if not world.is_main:  # missing
            shutil.rmtree(second)
        assert "share" in refusal_of_all(resume, world)

        if world.is_main:  # the main process goes on from the one before, and so do all
            (second / RUN).write_text("{}")
        assert newest_step_of(directory, world) == 1

        if world.is_main:
            shutil.rmtree(first)
        assert newest_step_of(directory, world) is None


def newest_step_of(directory: Path, world: World) -> int | None:
    """The step that all go on from."""
    saved = newest_step(directory, world)
    steps = set(world.gather(None if saved is None else saved.step))
    assert len(steps) == 1
    return steps.pop()


def refusal_of_all(work: Callable[[], object], world: World) -> str:
    """The sentence by which every process refuses."""
    try:
        work()
        sentence = ""
    except UserError as error:
        sentence = str(error).replace(f"steps-{world.rank}", "steps")
    (found,) = set(world.gather(sentence))
    return found


class Cut(Stripes):
    """A storage that can be lost."""

    uniform = False
    lost = False

    def read(self, index: int) -> NDArray[np.uint8]:
        if self.lost:
            raise Unreadable(self.name(index), "cannot be read: Input/output error")
        return super().read(index)


def outage_of_one(folder: Path) -> None:
    """One process loses its storage at a step: all stop there, and go on from there."""
    with process_group() as world:
        out = folder / "ddp" / "sgd"
        source = Cut(100)

        def lose(now: Progress) -> None:
            source.lost = now.step == STOP and not world.is_main

        run = trainer_of(source, out, world)
        run.on_step = lose
        told = refusal_of_all(run.run, world)
        assert f"stopped and saved at step {STOP}: 8 of 100 training images" in told, told
        assert "Input/output error" in told, told
        assert [path.name for path in steps_in(out / "steps")] == [f"step-{STOP:09d}"]
        world.wait()
        source.lost = False
        again = trainer_of(source, out, world)
        again.run(resume=True)

        val = Cut(40)
        val.lost = not world.is_main
        again.task = replace(again.task, val=val)
        again.evaluator.loader = None  # which reads the old images
        told = refusal_of_all(again.evaluate, world)
        assert "20 of 40 validation images cannot be used (such as stripes/1" in told, told


def trainer_of(source: Cut, out: Path, world: World | None = None) -> loop.Trainer:
    run = case_trainer("sgd", out, world=world, max_broken=0.01)
    run.stream = replace(run.stream, source=source)
    run.task = replace(run.task, train=source)
    return run


def slow_writing(folder: Path) -> None:
    """The main process needs longer than others wait for an answer, to save and to report."""
    out, data, stripes = folder / "run", folder / "stripes.npz", Stripes(40)
    own = folder / f"stripes-{os.environ['RANK']}.npz"
    assert stripes.targets is not None
    np.savez(own, x_train=stripes.images, y_train=stripes.targets)
    own.replace(data)  # each process the same
    small = {"fields.dim": 16, "fields.depth": 1, "fields.heads": 2}
    values = {"out": str(out), "steps": 2, "batch_size": 16, "set": small}
    options = make_options("train", data, values)

    def slow(write: Any) -> Any:
        def slowly(*args: Any, **options: Any) -> Any:
            time.sleep(SECONDS)
            return write(*args, **options)

        return slowly

    with (
        patch.object(worlds, "PATIENCE", timedelta(seconds=LIMIT)),
        patch.object(saver, "write_weights", slow(write_weights)),
        patch.object(training_run, "write_report", slow(write_report)),
    ):
        assert training_run.start_run(options, Observer()).step == 2


def each_saves_a_part(folder: Path) -> None:
    """Every tensor that all have is copied and written by one of them, and all are read again."""
    with process_group() as world:
        run, saved = case_trainer("adamw", folder / "saved" / "adamw", world=world), set[str]()
        save_async = sharded_files.save_async

        def note(tensors: Any, *args: Any) -> Any:
            saved.update(tensors)
            return save_async(tensors, *args)

        with patch.object(sharded_files, "save_async", note):
            run.run()
        every = world.gather(saved)
        names = [name for part in every for name in part]
        assert len(names) == len(set(names))
        assert min(map(len, every)) > len(names) / (2 * world.size), [len(part) for part in every]
        tensors = run.state.tensors()
        assert {name for name in names if not name.startswith(BEST)} == tensors.keys()
        found = newest_step(folder / "saved" / "adamw" / "steps", world)
        assert found is not None
        assert all(tensor.equal(found.tensors[name]) for name, tensor in tensors.items())


def outputs_of_all(folder: Path) -> None:
    """The main process alone has the outputs of all validation images; all have their scores."""
    with process_group() as world:
        run = case_trainer("sgd", folder / "outputs" / "sgd", world=world)
        values = run.evaluate()
        assert world.gather(values) == [values] * world.size
        assert "accuracy" in values
        outputs = run.evaluator.outputs
        assert world.gather(outputs is not None) == [True] + [False] * (world.size - 1)
        if outputs is not None:
            source = run.task.val
            assert source.targets is not None
            assert outputs.logits.shape == outputs.targets.shape == (40, 2)
            assert (outputs.indices == np.arange(40)).all()
            assert (outputs.targets == np.eye(2)[source.targets]).all()


def gradients_in_shares(folder: Path) -> None:
    """After every part of a batch each process has its share of the gradients, and no more."""
    with process_group() as world:
        run = case_trainer("sgd", folder / "shares" / "sgd", world=world, parallel="fsdp")
        parts = list[bool]()

        @contextmanager
        def check(compute: Any, *, now: bool, empty: bool) -> Iterator[None]:
            with sync_gradients(compute, now=now, empty=empty):
                yield
            parts.append(now)
            for name, parameter in compute.named_parameters():
                assert parameter.grad is not None, f"{name} is kept whole"
                assert parameter.grad.to_local().shape == parameter.to_local().shape

        with patch.object(loop, "sync_gradients", check):
            run.train_step(next(run.stream.batches(0, 1)))
        assert parts == [False, True]


def batch_sizes_in_shares(folder: Path) -> None:
    """Batch sizes are tried with the share of the model that the run gives a process."""
    splits = Splits({"train": Stripes(100), "val": Stripes(40, seed=1)})
    recipe, whole = replace(RECIPE, parallel="fsdp"), list[str]()

    def note(state: Any, *args: Any) -> float:
        parameters = state.objective.named_parameters()
        whole.extend(name for name, parameter in parameters if not is_sharded(parameter))
        return time_steps(state, *args)

    with process_group() as world, patch.object(capacity, "time_steps", note):
        found = trials.time_batch_sizes(recipe, splits, accuracy, world)
        assert [trial.batch_size for trial in found] == [16, 32]
        assert not whole, whole


def full_disk_of_one(folder: Path) -> None:
    """Where one process cannot write, nothing of the checkpoint stays, and the one before does."""
    full = OSError(errno.ENOSPC, "No space left on device")
    with process_group() as world:
        run = case_trainer("sgd", folder / "full" / "sgd", world=world)
        steps = run.out / "steps"
        run.saver.save(1, run.state, run.run_state)
        run.saver.wait()
        other = patch.object(sharded_files, "write_shard", side_effect=full)
        with other if world.rank == 1 else nullcontext():
            run.saver.save(2, run.state, run.run_state)
            run.saver.wait()
        assert "step 2 could not be saved (No space left" in (run.saver.problem or "")
        world.wait()
        assert [path.name for path in steps.iterdir()] == ["step-000000001"]


HAPPENINGS = {
    "checkpoints differ": checkpoints_differ,
    "outage of one": outage_of_one,
    "slow writing": slow_writing,
    "each saves a part": each_saves_a_part,
    "outputs of all": outputs_of_all,
    "gradients in shares": gradients_in_shares,
    "batch sizes in shares": batch_sizes_in_shares,
    "full disk of one": full_disk_of_one,
}
