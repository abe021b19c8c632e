"""The one loop.

A step is a function of the recipe, the data and the step's number, so a run that was stopped at any
moment and resumed ends with the same bits as one that was not.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from vitrail.core.errors import UserError
from vitrail.core.randomness import seed_of
from vitrail.data.augment import mix
from vitrail.data.images import BadImage
from vitrail.data.loader import Batch, Stream
from vitrail.data.source import Source
from vitrail.objectives.objective import Objective
from vitrail.training.checkpoint import Saved, newest_step, write_step
from vitrail.training.interrupt import interruptible
from vitrail.training.log import Log
from vitrail.training.optimiser import freeze, set_rate
from vitrail.training.outage import lost_too_many, sentence, why_stop
from vitrail.training.parallel import World, full_tensor, parallelise, sync_gradients
from vitrail.training.parts import Parts, fewest_images
from vitrail.training.pictures import write_sheet
from vitrail.training.precision import autocast, check_precision
from vitrail.training.progress import Progress, Values
from vitrail.training.recipe import Recipe
from vitrail.training.run_state import RunState, weights_digest
from vitrail.training.schedule import rate_at
from vitrail.training.tally import Tally
from vitrail.training.train_state import TrainState, Weights
from vitrail.training.validate import Answers, dummy_images, finite, is_better, predict
from vitrail.weights.native import replace_native

SECONDS_BETWEEN_SAVES = 60
MOST_TIME_SAVING = 0.1  # of the run's time, where the clock decides when to save
RECENT = 100  # steps, of which at most `watch.nan_limit` may be skipped


class Judge(Protocol):
    """How a run is judged: (the name of what decides, all values) from answers and targets. Of
    what is called a loss less is better, of everything else more."""

    def __call__(
        self, answers: NDArray[np.float32], targets: NDArray[np.float32]
    ) -> tuple[str, Values]: ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a run works on: the objective with its model, the data, the judge."""

    recipe: Recipe
    objective: Objective
    train: Source
    val: Source
    judge: Judge


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    total: int
    run_state: RunState
    stopped: bool  # by the person, before the end
    images_per_second: float  # 0 where no step was left to take
    answers: Answers | None = None  # of the best weights, where they became so in this process


class Trainer:
    """Steps, evaluations and checkpoints of one run in the directory `out`."""

    def __init__(
        self,
        task: Task,
        out: Path,
        on_step: Callable[[Progress], None] = lambda _: None,
        world: World | None = None,
    ) -> None:
        recipe = task.recipe
        self.task, self.recipe, self.out, self.on_step = task, recipe, out, on_step
        self.world = world or World()
        self.model = task.objective.model
        check_precision(recipe.precision, self.world.device)
        self.stream = make_stream(task, self.world)
        self.total = total_steps(recipe, self.stream)
        objective = task.objective.to(self.world.device)
        if recipe.compile:
            objective.compile()
        freeze(objective, recipe.optimiser.freeze)
        self.compute = parallelise(objective, recipe.parallel, self.world)
        self.state = TrainState(objective, recipe, self.world.device)
        self.run_state = RunState(teacher_digest=weights_digest(task.objective.teacher()))
        self.fewest = fewest_images(objective)
        self.best: tuple[Weights, Values] | None = None
        self.answers: Answers | None = None  # of the best weights
        self.saved_at = self.step_began = time.perf_counter()
        self.save_seconds = 0.0
        self.step = self.checkpoint_step = 0
        self.speed = 0.0

    def run(self, *, resume: bool = False) -> Outcome:
        """Train to the end, or to the end of the step in which Ctrl-C was pressed."""
        self.out.mkdir(parents=True, exist_ok=True)
        if resume:
            self.restore()
        log = Log(self.out, self.step) if self.world.is_main else None
        try:
            with interruptible(alone=self.world.size == 1) as interrupted:
                stopped = self.train(log, interrupted)
            if stopped:
                self.save()
        finally:
            if log is not None:
                log.close()
        return Outcome(self.step, self.total, self.run_state, stopped, self.speed, self.answers)

    def train(self, log: Log | None, interrupted: threading.Event) -> bool:
        """Whether the run was interrupted."""
        while (ended := self.train_on(log, interrupted)) == "back":
            self.go_back(log)
        return ended == "interrupted"

    def train_on(
        self, log: Log | None, interrupted: threading.Event
    ) -> Literal["done", "interrupted", "back"]:
        """Steps from where the run stands, until it is over or has to go back."""
        watch = self.recipe.watch
        if self.run_state.unjudged:
            self.finish_step(log)
            if self.out_of_patience():
                self.save()
                return "done"
        began, seen = time.perf_counter(), 0
        for batch in self.waited_for(self.stream.batches(self.step, self.total)):
            if (why := self.outage(batch)) is not None:
                self.stop(why)
            known = self.step in self.run_state.skip
            self.train_step(batch)
            self.run_state.tally.seconds += time.perf_counter() - self.step_began
            seen += len(batch.images) * self.world.size
            self.speed = seen / (time.perf_counter() - began)
            if watch.nan == "back" and self.step in self.run_state.skip and not known:
                return "back"
            self.step += 1
            began += self.finish_step(log)  # the clock of the speed stands still
            if self.out_of_patience():
                self.save()
                return "done"
            if self.step < self.total and self.world.any(interrupted.is_set()):
                return "interrupted"
        return "done"

    def finish_step(self, log: Log | None) -> float:
        """Evaluate, log and save where it is time to. Gives the seconds that evaluating took."""
        watch, seconds = self.recipe.watch, 0.0
        evaluate_every = max(round(watch.eval_every_epochs * self.stream.steps), 1)
        values: Values | None = None
        last = self.step == self.total
        loss = self.run_state.tally.mean_loss
        if self.step % evaluate_every == 0 or last:
            began = time.perf_counter()
            values = self.evaluate()
            seconds = time.perf_counter() - began
        if values is not None or self.step % watch.log_every_steps == 0:
            self.write_line(log, values or {})
        if last or self.time_to_save():
            self.save()
        self.on_step(
            Progress(self.step, self.total, loss, self.speed, values, self.run_state.warning)
        )
        return seconds

    def stop(self, why: str) -> NoReturn:
        """Too many images cannot be used. What was learnt is saved first."""
        if not self.step:
            raise UserError(f"stopped at step 0: {why} and start the run again")
        self.save()
        raise UserError(
            f"stopped and saved at step {self.step}: {why} and resume the run, or raise max_broken "
            "in its recipe.yaml"
        )

    def waited_for(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, with the time that each was waited for in the tally."""
        while True:
            self.step_began = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self.run_state.tally.data_seconds += time.perf_counter() - self.step_began
            yield batch

    def write_line(self, log: Log | None, scores: Values) -> None:
        """A line of metrics, after which the tally begins anew."""
        if log is not None:
            log.write(
                self.step, **self.run_state.tally.values(), lr=self.lr(self.step - 1), **scores
            )
        self.run_state.tally = Tally()

    def outage(self, batch: Batch) -> str | None:
        """Why not to go on: too many images of this step or of its epoch cannot be used."""
        read, lost = map(int, self.world.sums((len(batch.images), len(batch.broken))))
        found = [bad for part in self.world.gather(batch.broken) for bad in part] if lost else []
        images, share = len(self.task.train), self.recipe.max_broken
        return why_stop(self.run_state, found, batch.epoch, self.step, (read, images), share)

    def train_step(self, batch: Batch, lr: float | None = None) -> float:
        """One step: gradients of the batch in parts, clipped, applied. Gives the mean loss."""
        recipe, world = self.recipe, self.world
        parts = Parts(batch.parts(recipe.accumulate), world, least=self.fewest)
        if not parts.count:
            return 0.0
        set_rate(self.state.optimisers, self.lr(self.step) if lr is None else lr)
        # dropout and stochastic depth draw from torch's generator: from this step's seed alone
        torch.manual_seed(seed_of("step", recipe.seed, self.step, world.rank))
        images, targets = batch.images.to(world.device), batch.targets.to(world.device)
        drawn = self.task.objective.draw(recipe.seed, batch.epoch, batch.indices)
        if drawn is None:
            images, targets = mix(
                images,
                targets,
                recipe.augmentation,
                seed=recipe.seed,
                step=self.step,
                partners=batch.partners(),
            )
        else:
            targets = drawn.to(world.device)
        self.task.objective.train()
        for optimiser in self.state.optimisers:
            optimiser.zero_grad(set_to_none=True)
        whole, hits, labelled = world.sums(self.backward(images, targets, parts))
        loss = whole / world.size
        self.run_state.tally.add(loss, self.apply(loss), hits, labelled)
        return loss

    def backward(self, images: Tensor, targets: Tensor, parts: Parts) -> list[float]:
        """Gradients of the loss, in which every image of the step counts the same; the loss, and
        how many images were right of how many that have labels. A process without an image of a
        part computes a black one without a label, or others would wait for it."""
        sums, share = torch.zeros(3, dtype=torch.float64), self.world.size / parts.count
        pairs = zip(images.split(parts.mine), targets.split(parts.mine), strict=True)
        for number, (part, target) in enumerate(pairs):
            if not parts.all[number]:
                continue
            weight = len(part) * share
            if not len(part):
                part, target = self.dummy_batch()
            with sync_gradients(self.compute, now=number == parts.last, empty=not weight):
                with autocast(self.recipe.precision, self.world.device):
                    losses = self.compute(part, target)
                    loss: Tensor = losses["loss"] * weight
                self.state.scaler.scale(loss).backward()
            counts = [losses.get(name, loss.new_zeros(())) for name in ("hits", "labelled")]
            sums += torch.stack([value.detach().float() for value in (loss, *counts)]).cpu()
        found: list[float] = sums.tolist()
        return found

    def dummy_batch(self) -> tuple[Tensor, Tensor]:
        images, drawn = dummy_images(self.task.objective, self.recipe.seed)
        targets = torch.zeros(1, len(self.task.train.labels)) if drawn is None else drawn
        return images.to(self.world.device), targets.to(self.world.device)

    def apply(self, loss: float) -> float:
        """Update the weights by the clipped gradients; gives the norm they had before."""
        scaler, optimisers = self.state.scaler, self.state.optimisers
        for optimiser in optimisers:
            scaler.unscale_(optimiser)
        parameters = [p for p in self.task.objective.parameters() if p.grad is not None]
        clip = self.recipe.optimiser.clip
        norm = float(
            full_tensor(clip_grad_norm_(parameters, clip if clip is not None else math.inf))
        )
        # a loss that was scaled too far up is no accident: the scale comes down by itself
        scaled = scaler.is_enabled() and math.isfinite(loss) and scaler.get_scale() > 1
        finite = math.isfinite(loss) and (math.isfinite(norm) or scaled)
        if not finite or self.step in self.run_state.skip:
            self.refuse(loss)
            scaler.update()  # or the gradients of the next step could not be unscaled
            return norm
        for optimiser in optimisers:
            scaler.step(optimiser)
        scaler.update()
        if self.state.ema is not None:
            self.state.ema.update(self.task.objective, self.step)
        return norm

    def refuse(self, loss: float) -> None:
        """An update that is not finite is not made; what happens then is the recipe's choice."""
        if self.recipe.watch.nan == "stop":
            raise UserError(
                f"the loss is {loss} at step {self.step}, with a gradient that is not finite: "
                f"lower lr ({self.recipe.optimiser.lr:g}), or set watch.nan to skip in recipe.yaml"
            )
        skip, limit = self.run_state.skip, self.recipe.watch.nan_limit
        if self.step not in skip:
            skip.append(self.step)
        since = self.step - RECENT
        if self.recipe.watch.nan == "back":
            since = min(since, self.checkpoint_step)
        if sum(since <= step <= self.step for step in skip) > limit:
            raise UserError(
                f"more than {limit} of the steps from {max(since, 0)} to {self.step} had a loss or "
                f"a gradient that is not finite: lower lr ({self.recipe.optimiser.lr:g}), or raise "
                "watch.nan_limit"
            )

    def go_back(self, log: Log | None) -> None:
        """Return to the newest checkpoint, knowing which step not to take again; without one the
        run goes on from where it stands."""
        skip = self.run_state.skip
        self.restore()
        self.run_state.skip = skip
        if log is not None:
            log.cut(self.step)

    def lr(self, step: int) -> float:
        return self.recipe.optimiser.lr * rate_at(step, self.total, self.recipe.schedule)

    def evaluate(self) -> Values:
        """Judge the weights on the validation images, and keep them if they are the best."""
        run_state, recipe = self.run_state, self.recipe
        with self.state.with_eval_weights():
            answers = predict(
                self.task.objective,
                self.task.val,
                self.world,
                batch_size=max(recipe.batch_size, 64),
                workers=recipe.workers,
                seed=recipe.seed,
            )
        lost, images = len(self.task.val) - len(answers.logits), len(self.task.val)
        if lost_too_many(lost, images, recipe.max_broken):
            found = [BadImage(*bad) for bad in answers.broken.items()]
            run_state.unjudged = True
            self.stop(sentence("validation images", lost, images, recipe.max_broken, found))
        run_state.unjudged = False
        run_state.broken |= answers.broken
        run_state.decides, values = self.task.judge(answers.logits, answers.targets)
        loss = self.task.objective.val_loss(answers.logits, answers.targets)
        values = values if loss is None else {**values, "val_loss": loss}
        run_state.warning = self.task.objective.warning(answers.logits)
        run_state.shown = list(answers.shown)
        if answers.shown and self.world.is_main:
            write_sheet(answers.shown, self.stream.how, self.out, self.step)
        value, run_state.since_best = values[run_state.decides], run_state.since_best + 1
        if not run_state.best_scores or is_better(run_state.decides, values, run_state.best_scores):
            if math.isfinite(value) and value != run_state.best:  # a tie uses up patience
                run_state.best, run_state.since_best = value, 0
            run_state.best_step, run_state.best_scores = self.step, finite(values)
            # written with the next checkpoint: a run that is killed before it finds it again
            self.best = self.state.eval_weights().clone(), finite(values)
            self.answers = answers
        return values

    def time_to_save(self) -> bool:
        """After so many steps, or else after a minute of training, or more where saving is slow:
        when a run is saved changes nothing in it."""
        if self.recipe.watch.save is not None:
            return self.step % self.recipe.watch.save == 0
        pause = max(SECONDS_BETWEEN_SAVES, self.save_seconds * (1 / MOST_TIME_SAVING - 1))
        return self.world.any(time.perf_counter() - self.saved_at >= pause)

    def out_of_patience(self) -> bool:
        patience = self.recipe.watch.patience
        return patience is not None and self.run_state.since_best >= patience

    def keep(self, name: str, kept: Weights, step: int, values: Values) -> None:
        """A native checkpoint of judged weights, to be used as it is."""
        provenance = {"recipe": asdict(self.recipe), "step": step}
        passport = replace(self.model.passport, provenance=provenance, scores=values)
        replace_native(kept.model, passport, self.out / name, beside=kept.beside)

    def save(self) -> None:
        """A run checkpoint, to go on from here; the processes give, and one writes."""
        began = time.perf_counter()
        for broken in self.world.gather(self.run_state.broken):
            self.run_state.broken |= broken
        tensors, judged = self.state.tensors(), self.state.eval_weights()
        if self.world.is_main:
            if self.best is not None:
                self.keep("best", self.best[0], self.run_state.best_step, self.best[1])
            self.keep("last", judged, self.step, {})
            # last, so that a run never goes on from a step whose results are not there
            saved = Saved(self.step, tensors, asdict(self.run_state))
            write_step(self.out / "steps", saved, keep=self.recipe.watch.keep)
        self.best = None
        self.checkpoint_step = self.step
        self.world.wait()
        self.saved_at = time.perf_counter()
        self.save_seconds = self.saved_at - began

    def restore(self) -> None:
        """Take up the newest whole checkpoint; without one the run begins at its beginning."""
        saved = newest_step(self.out / "steps", self.world)
        if saved is None:
            return
        run_state = RunState.from_saved(saved.run_state)
        if run_state.teacher_digest != self.run_state.teacher_digest:
            named = self.recipe.goal.teacher or self.recipe.goal.tokenizer
            raise UserError(
                f"{named}: this is not what the run began to learn from: put back what was there, "
                "or begin another run"
            )
        self.state.restore(saved.tensors)
        self.run_state = run_state
        self.step = self.checkpoint_step = saved.step


def make_stream(task: Task, world: World) -> Stream:
    recipe = task.recipe
    return Stream(
        source=task.train,
        how=task.objective.model.passport.preprocessing,
        augmentation=recipe.augmentation,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        balance=recipe.goal.balance,
        workers=recipe.workers,
        rank=world.rank,
        world=world.size,
    )


def total_steps(recipe: Recipe, stream: Stream) -> int:
    return recipe.schedule.steps or max(round(recipe.schedule.epochs * stream.steps), 1)
