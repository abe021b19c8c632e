"""How the weights of a run are evaluated on its validation images, and which are the best."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from vitrail.core.errors import UserError
from vitrail.data.images import BadImage, Unreadable
from vitrail.data.loader import Batch, EvalLoader
from vitrail.training.counts import CountedScorer, Counts
from vitrail.training.outage import OutageError, lost_too_many, sentence
from vitrail.training.progress import Values
from vitrail.training.reconstructions import write_sheet
from vitrail.training.run_state import RunState
from vitrail.training.saver import Saver
from vitrail.training.task import Task
from vitrail.training.train_state import TrainState
from vitrail.training.validate import (
    MAX_KEPT,
    ValidationOutputs,
    compute_outputs,
    finite,
    is_better,
)
from vitrail.training.world import World


def score_outputs(task: Task, outputs: ValidationOutputs) -> tuple[str, Values]:
    """The metric that chooses weights, and all values: from counts, or where a score ranks all
    images (mean average precision) from their outputs."""
    if outputs.counts is not None and isinstance(task.scorer, CountedScorer):
        return task.scorer.metric, outputs.counts.values()
    metric, values = task.scorer(outputs.logits, outputs.targets)
    counts = Counts(())
    losses = task.objective.val_losses(outputs.logits, outputs.targets)
    counts.add({}, losses, len(outputs.logits))
    return metric, values if losses is None else {**values, **counts.values()}


def tell_death(why: str) -> str:
    return f"a process that reads images has died: {why}; started anew"


class Evaluator:
    """Scores the weights to use, and hands the best to the saver. `outputs` are those of the best
    weights, if they became so in this process; `problems` are sentences about what could not be
    written, until they are taken."""

    def __init__(self, state: TrainState, saver: Saver, out: Path, world: World) -> None:
        self.state, self.saver, self.out, self.world = state, saver, out, world
        self.outputs: ValidationOutputs | None = None
        self.loader: EvalLoader | None = None
        self.problems: list[str] = []

    def evaluate(
        self,
        task: Task,
        step: int,
        run_state: RunState,
        observe: Callable[[Iterable[Batch]], Iterable[Batch]] = iter,
    ) -> Values:
        """All scores of a step; OutageError where too many images cannot be used. The batches go
        through `observe`, which may end it all by an exception."""
        scorer = task.scorer if isinstance(task.scorer, CountedScorer) else None
        keep = scorer is None or len(task.val) * len(task.val.labels) <= MAX_KEPT
        with self.state.with_eval_weights():
            outputs = compute_outputs(
                task.objective,
                observe(self.batches(task)),
                self.world,
                classes=len(task.val.labels),
                seed=task.recipe.seed,
                scorer=scorer,
                keep=keep,
                precision=task.recipe.precision,
            )
        if self.loader is not None:
            self.problems += map(tell_death, self.loader.reader.deaths)
        images = len(task.val)
        lost, share = images - outputs.images, task.recipe.max_broken
        if lost_too_many(lost, images, share):
            kind = Unreadable if outputs.storage_failed else BadImage
            found = [kind(*bad) for bad in outputs.broken.items()]
            why = sentence("validation images", lost, images, share, found)
            raise OutageError(why, storage=outputs.storage_failed)
        run_state.broken |= outputs.broken
        # the main process alone has the outputs
        scored = self.score(task, outputs) if self.world.is_main else None
        scored = self.world.from_main(scored)
        assert scored is not None
        run_state.metric, values, run_state.warning = scored
        run_state.shown = list(outputs.shown)
        if outputs.shown and self.world.is_main:
            self.write_sheet(task, outputs, step)
        self.choose(values, step, run_state, outputs)
        return values

    def score(self, task: Task, outputs: ValidationOutputs) -> tuple[str, Values, str | None]:
        """The metric that chooses weights, all values, and what a person should know."""
        warning = task.objective.warning(outputs.logits) if outputs.kept else None
        return *score_outputs(task, outputs), warning

    def write_sheet(self, task: Task, outputs: ValidationOutputs, step: int) -> None:
        """What cannot be written, on a full disk perhaps, is told: it is no reason to end a run."""
        how = task.objective.model.passport.preprocessing
        try:
            write_sheet(outputs.shown, how, self.out, step)
        except UserError as problem:
            self.problems.append(f"{problem}; training goes on")

    def take_problems(self) -> list[str]:
        taken, self.problems = self.problems, []
        return taken

    def batches(self, task: Task) -> EvalLoader:
        """Those of the validation images, read by workers that stay for the next evaluation."""
        if self.loader is None:
            self.loader = EvalLoader(
                task.val,
                task.objective.model.passport.preprocessing,
                max(task.recipe.batch_size // task.recipe.accumulate, 64),
                native=task.objective.native,
                workers=task.recipe.workers,
                rank=self.world.rank,
                world=self.world.size,
                device=self.world.device,
            )
        return self.loader

    def choose(
        self, values: Values, step: int, run_state: RunState, outputs: ValidationOutputs
    ) -> None:
        """Keep the weights if they are the best so far."""
        value, run_state.since_best = values[run_state.metric], run_state.since_best + 1
        if run_state.best_scores and not is_better(run_state.metric, values, run_state.best_scores):
            return
        if math.isfinite(value) and value != run_state.best:  # a tie uses up patience
            run_state.best, run_state.since_best = value, 0
        run_state.best_step, run_state.best_scores = step, finite(values)
        self.saver.best = self.state.eval_tensors(self.world), finite(values)
        self.outputs = outputs if outputs.kept else None
