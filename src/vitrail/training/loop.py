"""The one loop.

A step is a function of the recipe, the data and the step's number, so a run that was stopped at any
moment and resumed ends with the same bits as one that was not.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NoReturn

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from vitrail.core.errors import UserError
from vitrail.core.image_list import ImageList
from vitrail.core.randomness import seed_of
from vitrail.data.augment import mix
from vitrail.data.loader import Batch, Stream
from vitrail.training.evaluator import Evaluator
from vitrail.training.goal import Masked
from vitrail.training.interrupt import interruptible
from vitrail.training.log import Log
from vitrail.training.nan_policy import NanPolicy
from vitrail.training.optimiser import freeze, set_rate
from vitrail.training.outage import OutageError, why_stop
from vitrail.training.parallel import parallelise, sync_gradients
from vitrail.training.parts import Parts, fewest_images
from vitrail.training.precision import autocast, check_precision
from vitrail.training.progress import Progress, Values
from vitrail.training.recipe import Recipe
from vitrail.training.run_state import RunState, weights_digest
from vitrail.training.saver import Saver
from vitrail.training.schedule import rate_at
from vitrail.training.sharded import full_tensor
from vitrail.training.tally import Tally
from vitrail.training.task import Outcome, Task
from vitrail.training.train_state import TrainState
from vitrail.training.validate import dummy_images
from vitrail.training.world import World


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
        self.saver = Saver(recipe, self.model, out, self.world)
        self.evaluator = Evaluator(self.state, self.saver, out, self.world)
        self.nan_policy = NanPolicy(recipe)
        self.fewest = fewest_images(objective)
        self.step_began = time.perf_counter()
        self.step = 0
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
        outputs = self.evaluator.outputs
        return Outcome(self.step, self.total, self.run_state, stopped, self.speed, outputs)

    def train(self, log: Log | None, interrupted: threading.Event) -> bool:
        """Whether the run was interrupted."""
        while (ended := self.train_on(log, interrupted)) == "back":
            self.go_back(log)
        return ended == "interrupted"

    def train_on(
        self, log: Log | None, interrupted: threading.Event
    ) -> Literal["done", "interrupted", "back"]:
        """Steps from where the run stands, until it is over or has to go back."""
        monitor = self.recipe.monitor
        if self.run_state.needs_evaluation:
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
            if monitor.nan == "back" and self.step in self.run_state.skip and not known:
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
        monitor, seconds = self.recipe.monitor, 0.0
        evaluate_every = max(round(monitor.eval_every_epochs * self.stream.steps), 1)
        values: Values | None = None
        last = self.step == self.total
        loss = self.run_state.tally.mean_loss
        if self.step % evaluate_every == 0 or last:
            began = time.perf_counter()
            values = self.evaluate()
            seconds = time.perf_counter() - began
        if values is not None or self.step % monitor.log_every_steps == 0:
            self.write_line(log, values or {})
        if last or self.saver.is_due(self.step):
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
        """A line of metrics, after which the tally is reset."""
        if log is not None:
            epoch = round(self.step / self.stream.steps, 4)
            values = self.run_state.tally.values()
            log.write(self.step, epoch=epoch, **values, lr=self.lr(self.step - 1), **scores)
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
        if drawn is None and isinstance(images, Tensor):
            images, targets = mix(
                images,
                targets,
                recipe.augmentation,
                seed=recipe.seed,
                step=self.step,
                partners=batch.partners(),
            )
        elif drawn is not None:
            targets = drawn.to(world.device)
        self.task.objective.train()
        for optimiser in self.state.optimisers:
            optimiser.zero_grad(set_to_none=True)
        whole, hits, labelled = world.sums(self.backward(images, targets, parts))
        loss = whole / world.size
        self.run_state.tally.add(loss, self.apply(loss), hits, labelled)
        return loss

    def backward(self, images: Tensor | ImageList, targets: Tensor, parts: Parts) -> list[float]:
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
            self.nan_policy.refuse(
                loss, self.step, self.run_state.skip, checkpoint_step=self.saver.step
            )
            scaler.update()  # or the gradients of the next step could not be unscaled
            return norm
        for optimiser in optimisers:
            scaler.step(optimiser)
        scaler.update()
        if self.state.ema is not None:
            self.state.ema.update(self.task.objective, self.step)
        return norm

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
        """Score the weights on the validation images, and keep them if they are the best."""
        try:
            values = self.evaluator.evaluate(self.task, self.step, self.run_state)
        except OutageError as outage:
            self.run_state.needs_evaluation = True
            self.stop(str(outage))
        self.run_state.needs_evaluation = False
        return values

    def out_of_patience(self) -> bool:
        patience = self.recipe.monitor.patience
        return patience is not None and self.run_state.since_best >= patience

    def save(self) -> None:
        self.saver.save(self.step, self.state, self.run_state)

    def restore(self) -> None:
        """Take up the newest intact checkpoint; without one the run begins at its beginning."""
        found = self.saver.restore(self.state, self.run_state)
        if found is not None:
            self.step, self.run_state = found


def make_stream(task: Task, world: World) -> Stream:
    recipe = task.recipe
    return Stream(
        source=task.train,
        how=task.objective.model.passport.preprocessing,
        augmentation=recipe.augmentation,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        balance=not isinstance(recipe.goal, Masked) and recipe.goal.balance,
        native=task.objective.native,
        workers=recipe.workers,
        rank=world.rank,
        world=world.size,
    )


def total_steps(recipe: Recipe, stream: Stream) -> int:
    return recipe.schedule.steps or max(round(recipe.schedule.epochs * stream.steps), 1)
