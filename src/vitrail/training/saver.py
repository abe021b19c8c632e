"""When a run is saved, and what: a checkpoint to resume from, and weights to use."""

import time
from dataclasses import asdict, replace
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.models.model import Model
from vitrail.training.checkpoint import Saved, newest_step, write_step
from vitrail.training.goal import Masked
from vitrail.training.progress import Values
from vitrail.training.recipe import Recipe
from vitrail.training.run_state import RunState
from vitrail.training.train_state import TrainState, Weights
from vitrail.training.world import World
from vitrail.weights.native import replace_native

SECONDS_BETWEEN_SAVES = 60
MAX_TIME_SAVING = 0.1  # of the run's time, where the clock decides when to save


class Saver:
    """Writes OUT/best, OUT/last and OUT/steps. `best` are weights that are to be written with the
    next checkpoint: a run that is killed before it finds them again."""

    def __init__(self, recipe: Recipe, model: Model, out: Path, world: World) -> None:
        self.recipe, self.model, self.out, self.world = recipe, model, out, world
        self.best: tuple[Weights, Values] | None = None
        self.step = 0  # of the last checkpoint
        self.saved_at, self.seconds = time.perf_counter(), 0.0

    def is_due(self, step: int) -> bool:
        """After so many steps, or else after a minute of training, or more where saving is slow:
        when a run is saved changes nothing in it."""
        if self.recipe.monitor.save_every_steps is not None:
            return step % self.recipe.monitor.save_every_steps == 0
        pause = max(SECONDS_BETWEEN_SAVES, self.seconds * (1 / MAX_TIME_SAVING - 1))
        return self.world.any(time.perf_counter() - self.saved_at >= pause)

    def save(self, step: int, state: TrainState, run_state: RunState) -> None:
        """A checkpoint to resume from here; all processes give, and one writes."""
        began = time.perf_counter()
        for broken in self.world.gather(run_state.broken):
            run_state.broken |= broken
        tensors, weights = state.tensors(), state.eval_weights()
        if self.world.is_main:
            if self.best is not None:
                self.write_weights("best", self.best[0], run_state.best_step, self.best[1])
            self.write_weights("last", weights, step, {})
            # last, so that a run never resumes from a step whose results are not there
            saved = Saved(step, tensors, asdict(run_state))
            write_step(self.out / "steps", saved, keep=self.recipe.monitor.keep)
        self.best = None
        self.step = step
        self.world.wait()
        self.saved_at = time.perf_counter()
        self.seconds = self.saved_at - began

    def write_weights(self, name: str, weights: Weights, step: int, scores: Values) -> None:
        """A native checkpoint, to be used as it is."""
        provenance = {"recipe": asdict(self.recipe), "step": step}
        passport = replace(self.model.passport, provenance=provenance, scores=scores)
        replace_native(weights.model, passport, self.out / name, beside=weights.beside)

    def restore(self, state: TrainState, run_state: RunState) -> tuple[int, RunState] | None:
        """Step and state of the newest intact checkpoint, whose tensors `state` takes up; None if
        there is none."""
        saved = newest_step(self.out / "steps", self.world)
        if saved is None:
            return None
        found = RunState.from_saved(saved.run_state)
        if found.teacher_digest != run_state.teacher_digest:
            goal = self.recipe.goal
            teacher = goal.tokenizer if isinstance(goal, Masked) else getattr(goal, "teacher", None)
            raise UserError(
                f"{teacher}: is not the teacher that the run started with: restore that one, or "
                f"start a new run"
            )
        state.restore(saved.tensors)
        self.step = saved.step
        return saved.step, found
