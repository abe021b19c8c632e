"""How the weights of a run are evaluated on its validation images, and which are the best."""

import math
from pathlib import Path

from vitrail.data.images import BadImage
from vitrail.training.outage import OutageError, lost_too_many, sentence
from vitrail.training.progress import Values
from vitrail.training.reconstructions import write_sheet
from vitrail.training.run_state import RunState
from vitrail.training.saver import Saver
from vitrail.training.task import Task
from vitrail.training.train_state import TrainState
from vitrail.training.validate import ValidationOutputs, compute_outputs, finite, is_better
from vitrail.training.world import World


class Evaluator:
    """Scores the weights to use, and hands the best to the saver. `outputs` are those of the best
    weights, if they became so in this process."""

    def __init__(self, state: TrainState, saver: Saver, out: Path, world: World) -> None:
        self.state, self.saver, self.out, self.world = state, saver, out, world
        self.outputs: ValidationOutputs | None = None

    def evaluate(self, task: Task, step: int, run_state: RunState) -> Values:
        """All scores of a step; OutageError where too many images cannot be used."""
        with self.state.with_eval_weights():
            outputs = compute_outputs(
                task.objective,
                task.val,
                self.world,
                batch_size=max(task.recipe.batch_size, 64),
                workers=task.recipe.workers,
                seed=task.recipe.seed,
                precision=task.recipe.precision,
            )
        images = len(task.val)
        lost, share = images - len(outputs.logits), task.recipe.max_broken
        if lost_too_many(lost, images, share):
            found = [BadImage(*bad) for bad in outputs.broken.items()]
            raise OutageError(sentence("validation images", lost, images, share, found))
        run_state.broken |= outputs.broken
        run_state.metric, values = task.scorer(outputs.logits, outputs.targets)
        loss = task.objective.val_loss(outputs.logits, outputs.targets)
        values = values if loss is None else {**values, "val_loss": loss}
        run_state.warning = task.objective.warning(outputs.logits)
        run_state.shown = list(outputs.shown)
        if outputs.shown and self.world.is_main:
            how = task.objective.model.passport.preprocessing
            write_sheet(outputs.shown, how, self.out, step)
        self.choose(values, step, run_state, outputs)
        return values

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
        self.outputs = outputs
