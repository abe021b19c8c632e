"""How the weights of a run are evaluated on its validation images, and which are the best."""

import math
from pathlib import Path

from vitrail.data.images import BadImage, Unreadable
from vitrail.data.loader import EvalLoader
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


class Evaluator:
    """Scores the weights to use, and hands the best to the saver. `outputs` are those of the best
    weights, if they became so in this process."""

    def __init__(self, state: TrainState, saver: Saver, out: Path, world: World) -> None:
        self.state, self.saver, self.out, self.world = state, saver, out, world
        self.outputs: ValidationOutputs | None = None
        self.loader: EvalLoader | None = None

    def evaluate(self, task: Task, step: int, run_state: RunState) -> Values:
        """All scores of a step; OutageError where too many images cannot be used."""
        scorer = task.scorer if isinstance(task.scorer, CountedScorer) else None
        keep = scorer is None or len(task.val) * len(task.val.labels) <= MAX_KEPT
        with self.state.with_eval_weights():
            outputs = compute_outputs(
                task.objective,
                self.batches(task),
                self.world,
                classes=len(task.val.labels),
                seed=task.recipe.seed,
                scorer=scorer,
                keep=keep,
                precision=task.recipe.precision,
            )
        images = len(task.val)
        lost, share = images - outputs.images, task.recipe.max_broken
        if lost_too_many(lost, images, share):
            kind = Unreadable if outputs.storage_failed else BadImage
            found = [kind(*bad) for bad in outputs.broken.items()]
            why = sentence("validation images", lost, images, share, found)
            raise OutageError(why, storage=outputs.storage_failed)
        run_state.broken |= outputs.broken
        run_state.metric, values = score_outputs(task, outputs)
        run_state.warning = task.objective.warning(outputs.logits) if outputs.kept else None
        run_state.shown = list(outputs.shown)
        if outputs.shown and self.world.is_main:
            how = task.objective.model.passport.preprocessing
            write_sheet(outputs.shown, how, self.out, step)
        self.choose(values, step, run_state, outputs)
        return values

    def batches(self, task: Task) -> EvalLoader:
        """Those of the validation images, read by workers that stay for the next evaluation."""
        if self.loader is None:
            self.loader = EvalLoader(
                task.val,
                task.objective.model.passport.preprocessing,
                max(task.recipe.batch_size, 64),
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
        self.saver.best = self.state.eval_tensors(), finite(values)
        self.outputs = outputs if outputs.kept else None
