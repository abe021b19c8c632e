"""When a run is saved, and what: a checkpoint to resume from, and weights to use.

Tensors are copied while the next step computes its gradients, and the copies are written after
that: training waits only if it would change weights that are not copied yet. One save at a time.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.training.checkpoint import (
    discard,
    draft_of,
    find_step,
    finish_draft,
    publish,
    start_draft,
    sweep,
)
from vitrail.training.consolidate import write_weights
from vitrail.training.goal import Masked
from vitrail.training.progress import Values
from vitrail.training.recipe import Recipe
from vitrail.training.run_state import RunState
from vitrail.training.sharded import is_written_here
from vitrail.training.shards import BEST, Shards, write_whole
from vitrail.training.train_state import TrainState
from vitrail.training.world import World
from vitrail.weights.atomic import sweep_drafts

SECONDS_BETWEEN_SAVES = 60
MAX_TIME_SAVING = 0.1  # of the run's time, where the clock decides when to save


class Saver:
    """Writes OUT/best, OUT/last and OUT/steps. `best` are weights that are to be written with the
    next checkpoint: a run that is killed before it finds them again."""

    def __init__(self, recipe: Recipe, model: Model, out: Path, world: World) -> None:
        self.recipe, self.model, self.out, self.world = recipe, model, out, world
        self.best: tuple[dict[str, Tensor], Values] | None = None
        self.step = 0  # of the last checkpoint
        self.problem: str | None = None  # why the last save failed
        self.saved_at = time.perf_counter()  # when the last save began, be it one that failed
        self._pending: Pending | None = None
        self._stager: Any = None  # keeps its memory between saves
        self._thread: ThreadPoolExecutor | None = None

    def is_due(self, step: int) -> bool:
        """After so many steps, or else after a minute of training, or more where saving is slow:
        when a run is saved changes nothing in it. The clock never asks for one while another is
        under way, which training would have to wait for."""
        if self.recipe.monitor.save_every_steps is not None:
            return step % self.recipe.monitor.save_every_steps == 0
        last = self._pending
        under_way = last is not None and last.ended is None
        took = 0.0 if last is None or last.ended is None else last.ended - last.began
        late = time.perf_counter() - self.saved_at >= max(
            SECONDS_BETWEEN_SAVES, took / MAX_TIME_SAVING
        )
        some_late, some_under_way = self.world.sums((late, under_way))
        return some_late > 0 and not some_under_way

    def save(self, step: int, state: TrainState, run_state: RunState) -> None:
        """A checkpoint to resume from here. All processes give what they have; it is written while
        they go on."""
        self.wait()  # a save never starts before the last has ended
        self.saved_at = time.perf_counter()
        for broken in self.world.gather(run_state.broken):
            run_state.broken |= broken
        tensors, best = unchanged_by_forward(state), self.best
        if best is not None:
            tensors |= {f"{BEST}{name}": tensor for name, tensor in best[0].items()}
        scores = None if best is None else (run_state.best_step, best[1])
        draft = draft_of(self.out / "steps", step)
        finish = partial(self.finish, draft, step, asdict(run_state), scores)
        if self.world.size == 1:
            copied = threading.Event()
            self._thread = self._thread or ThreadPoolExecutor(1, "saving")
            copy = partial(copy_tensors, tensors, copied, beside_steps(self.world.device))
            done: Future[Any] = self._thread.submit(write_alone, draft, copy, finish)
            done.add_done_callback(lambda _: copied.set())  # also where it failed
            wait: Callable[[], object] = copied.wait
        else:
            wait, done = self.start_together(draft, tensors, finish)
        clean_up = partial(discard, draft) if self.world.is_main else None
        self._pending = Pending(step, best, self.saved_at, wait, done, clean_up)
        self.best = None

    def start_together(
        self, draft: Path, tensors: Mapping[str, Tensor], finish: Any
    ) -> tuple[Callable[[], object], Future[Any]]:
        from vitrail.training.sharded_files import Writer, make_stager, save_async

        assert self.world.saving is not None
        self._stager = self._stager or make_stager(self.world.device)
        writer = Writer(draft, partial(start_draft, draft), finish)
        if self.world.device.type == "cuda":
            # the stager copies in a stream that does not wait for the optimiser's kernels
            torch.cuda.current_stream(self.world.device).synchronize()
        mine = {name: t for name, t in tensors.items() if is_written_here(name, t, self.world)}
        return save_async(mine, writer, self.world.saving, self._stager)

    def finish(
        self,
        draft: Path,
        step: int,
        run_state: dict[str, Any],
        best: tuple[int, Values] | None,
        sums: dict[str, str],
    ) -> None:
        """In the main process, when all tensors are written: the models to use, and the checkpoint
        last, so that a run never resumes from a step whose results are not there."""
        finish_draft(draft, step, run_state, sums)
        shards = Shards(draft)
        write = partial(write_weights, shards, recipe=self.recipe, model=self.model)
        if best is not None:
            write(self.out / "best", step=best[0], scores=best[1])
        write(self.out / "last", step=step, scores=None)
        publish(draft, keep=self.recipe.monitor.keep)

    def wait_copied(self) -> None:
        """Until weights may change: the last save has copied them, or has failed to."""
        if self._pending is not None:
            with suppress(Exception):  # which `wait` reports
                self._pending.wait_copied()

    def wait(self) -> None:
        """Until the last save has ended. If it failed the last good checkpoint is still there: the
        run goes on, and tries again when the next is due."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        error = pending.failure()
        if error is None:
            self.problem, self.step = None, pending.step
            return
        self.problem = self.why_unsaved(error, pending.step)
        self.best = self.best or pending.best

    def why_unsaved(self, error: BaseException, step: int) -> str:
        cause: BaseException = error
        if self.world.size > 1:
            from vitrail.training.sharded_files import why_failed

            cause = why_failed(error)
        if not isinstance(cause, OSError | UserError):
            raise error
        reason = getattr(cause, "strerror", None) or str(cause)
        full = getattr(cause, "errno", None) == errno.ENOSPC or "No space left" in reason
        good = (
            f"the checkpoint of step {self.step} is intact"
            if self.step
            else "no checkpoint was saved before"
        )
        fix = "make room on the disk" if full else "check the storage"
        return f"{self.out}: step {step} could not be saved ({reason}); {good}: {fix}"

    def finish_all(self, step: int, state: TrainState, run_state: RunState) -> None:
        """The end of a run: what could not be saved is tried once more."""
        self.wait()
        if self.problem is not None:
            self.save(step, state, run_state)
            self.wait()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if self.problem is not None:
            raise UserError(f"{self.problem}, and resume the run")

    def restore(self, state: TrainState, run_state: RunState) -> tuple[int, RunState] | None:
        """Step and state of the newest intact checkpoint, whose tensors `state` takes up; None if
        there is none."""
        self.wait()
        self.sweep()
        found = find_step(self.out / "steps", self.world)
        if found is None:
            return None
        saved = RunState.from_saved(found.run_state)
        if saved.teacher_digest != run_state.teacher_digest:
            goal = self.recipe.goal
            teacher = goal.tokenizer if isinstance(goal, Masked) else getattr(goal, "teacher", None)
            raise UserError(
                f"{teacher}: is not the teacher that the run started with: restore that one, or "
                f"start a new run"
            )
        state.load(found, self.world)
        self.step = found.step
        return found.step, saved

    def sweep(self) -> None:
        """Remove what a run that was killed left half written."""
        if self.world.is_main:
            sweep(self.out / "steps")
            for name in ("best", "last"):
                if self.out.is_dir():
                    sweep_drafts(self.out / name)


class Pending:
    """A save, under way until it has `ended`, and the best weights that it writes. If it fails,
    `clean_up` removes what it has written, which may take the room that the next one needs."""

    def __init__(
        self,
        step: int,
        best: tuple[dict[str, Tensor], Values] | None,
        began: float,
        wait_copied: Callable[[], object],
        done: Future[Any],
        clean_up: Callable[[], None] | None = None,
    ) -> None:
        self.step, self.best, self.began = step, best, began
        self.wait_copied, self.done, self.clean_up = wait_copied, done, clean_up
        self.ended: float | None = None
        self.is_over = threading.Event()
        done.add_done_callback(self.note_end)

    def note_end(self, done: Future[Any]) -> None:
        """Written or failed; called by the thread that has written."""
        try:
            if self.clean_up is not None and (done.cancelled() or done.exception() is not None):
                self.clean_up()
        finally:
            self.ended = time.perf_counter()
            self.is_over.set()

    def failure(self) -> BaseException | None:
        """Wait until all is written; why it is not. What torch raises where many processes save,
        CheckpointException, is no Exception."""
        self.is_over.wait()  # a future is done before what it calls has returned
        return self.done.exception()


def unchanged_by_forward(state: TrainState) -> dict[str, Tensor]:
    """All tensors of a run, of which a forward pass changes none: running statistics are copies."""
    tensors = state.tensors()
    for name, _ in state.objective.named_buffers():
        if f"now.{name}" in tensors:
            tensors[f"now.{name}"] = tensors[f"now.{name}"].clone()
    return tensors


def beside_steps(device: torch.device) -> AbstractContextManager[Any]:
    """On a GPU a stream of its own, in which copies do not wait for the kernels of a step."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


def copy_tensors(
    tensors: Mapping[str, Tensor], copied: threading.Event, where: AbstractContextManager[Any]
) -> dict[str, Tensor]:
    with where:
        copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    copied.set()
    return copies


def write_alone(draft: Path, copy: Callable[[], dict[str, Tensor]], finish: Any) -> None:
    """All of a checkpoint by one process, without torch.distributed."""
    copies = copy()
    start_draft(draft)
    finish(write_whole(draft, copies))
