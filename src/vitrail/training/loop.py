"""The one loop.

A step is a function of the recipe, the data and the step's number, so a run that was stopped at any
moment and resumed ends with the same bits as one that was not.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.image_list import ImageList
from vitrail.core.randomness import seed_of, words
from vitrail.data.augment import Augmentation, mix
from vitrail.data.loader import Batch, dense_targets
from vitrail.data.samples import outlive_workers
from vitrail.models.sample_noise import SampleNoise
from vitrail.training.device_defaults import matmul_precision
from vitrail.training.evaluator import Evaluator, tell_death
from vitrail.training.heartbeat import Heartbeat
from vitrail.training.interrupt import Interrupted, StoppedError, forget_children, interruptible
from vitrail.training.log import Log
from vitrail.training.loggers import flat_settings
from vitrail.training.micro_batch import more_parts, read_accumulate
from vitrail.training.nan_policy import NanPolicy
from vitrail.training.optimiser import freeze, set_rate
from vitrail.training.outage import Lost, OutageError, Waiting, count_lost
from vitrail.training.parallel import parallelise, sync_gradients
from vitrail.training.parts import Parts, fewest_images
from vitrail.training.precision import autocast, check_precision
from vitrail.training.progress import Progress, Values
from vitrail.training.recipe_file import as_plain_values
from vitrail.training.run_lock import sole_writer
from vitrail.training.run_state import RunState, weights_digest
from vitrail.training.saver import Saver
from vitrail.training.schedule import rate_at
from vitrail.training.stream import make_stream, total_steps
from vitrail.training.tally import Tally
from vitrail.training.task import Outcome, Task
from vitrail.training.train_state import TrainState
from vitrail.training.validate import dummy_images
from vitrail.training.world import World, start_heartbeat

FLAGS_EVERY = 10  # steps, where asking a GPU or other processes would hold them up


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
        self.stream = replace(self.stream, epochs=self.total / self.stream.steps)
        off = round(recipe.augmentation.mix_off_epochs * self.stream.steps)
        self.mix_until = self.total - off  # a step
        objective = task.objective
        freeze(objective, recipe.optimiser.freeze)
        self.noise = SampleNoise(objective, tuple(self.model.blocks_by_depth().values()))
        self.compute = parallelise(objective, recipe, self.world, task.deferred)
        self.state = TrainState(objective, recipe, self.world.device)
        self.run_state = RunState(teacher_digest=weights_digest(task.objective.teacher()))
        self.saver = Saver(recipe, self.model, out, self.world)
        self.evaluator = Evaluator(self.state, self.saver, out, self.world)
        self.nan_policy = NanPolicy(recipe)
        self.results: list[tuple[int, Tensor]] = []  # of steps whose losses are on the device still
        self.accumulate, self.messages = recipe.accumulate, list[str]()
        self.waiting = Waiting(recipe.monitor.outage_minutes)
        cuda = self.world.device.type == "cuda"
        self.flags_every = FLAGS_EVERY if cuda else 1
        self.read_losses_every = FLAGS_EVERY if cuda and recipe.monitor.nan == "stop" else 1
        self.heartbeat: Heartbeat | None = None
        self.interrupted = Interrupted()
        self.fewest = fewest_images(objective)
        self.step_began = time.perf_counter()
        self.step = 0
        self.speed = 0.0
        self.last_loss = 0.0

    def run(self, *, resume: bool = False) -> Outcome:
        """Train to the end, or to the end of the step in which Ctrl-C was pressed."""
        self.out.mkdir(parents=True, exist_ok=True)
        with sole_writer(self.out, self.world):
            return self.run_locked(resume=resume)

    def run_locked(self, *, resume: bool) -> Outcome:
        self.saver.sweep()
        if resume:
            self.restore()
        self.accumulate = read_accumulate(self.out, self.recipe.accumulate, self.world)
        self.heartbeat = start_heartbeat(self.world)
        log = self.open_log() if self.world.is_main else None
        self.world.wait()  # however long the main process takes to open it
        try:
            # until all is saved: a scheduler that asks once more must not end that
            with interruptible(alone=self.world.size == 1) as self.interrupted:
                with matmul_precision(self.recipe):
                    stopped = self.train(log)
                if stopped:
                    self.save()
                self.finish_saving()
        except BaseException:
            if self.world.size == 1:  # others may be gone, and would be waited for in vain
                with suppress(Exception):
                    self.saver.wait()
            raise
        finally:
            if self.heartbeat is not None:
                self.heartbeat.close()
            if log is not None:
                log.close()
        outputs = self.evaluator.outputs
        names = [name for name in self.world.gather(self.interrupted.name) if name is not None]
        by = names[0] if stopped and names else None
        return Outcome(self.step, self.total, self.run_state, stopped, self.speed, outputs, by)

    def open_log(self) -> Log:
        settings = flat_settings(as_plain_values(self.recipe))
        return Log(self.out, self.step, self.recipe.monitor.loggers, settings)

    def train(self, log: Log | None) -> bool:
        """Whether the run was interrupted."""
        try:
            while (ended := self.train_on(log)) in ("back", "again"):
                if ended == "back":
                    self.go_back(log)
                elif self.step and self.world.any(self.interrupted.is_set()):
                    return True
        except StoppedError:
            return True
        return ended == "interrupted"

    def train_on(self, log: Log | None) -> Literal["done", "interrupted", "back", "again"]:
        """Steps from where the run stands, until it is over, has to go back, or has waited for its
        storage and reads the same step again."""
        monitor = self.recipe.monitor
        if self.run_state.needs_evaluation:
            self.finish_step(log)
            if self.out_of_patience():
                self.save()
                return "done"
        began, seen = time.perf_counter(), 0
        for batch in self.waited_for():
            lost = self.lost_images(batch)
            if lost.wait(self.waiting, self.run_state.broken, self.step):
                return "again"
            if lost.why_stop is not None:
                self.stop(lost.why_stop)
            lost.remember(self.run_state)
            self.waiting = Waiting(monitor.outage_minutes)
            known = self.step in self.run_state.skip
            self.train_step_in_memory(batch)
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
            asks = self.step % self.flags_every == 0 and self.step < self.total
            if asks and self.world.any(self.interrupted.is_set()):
                self.read_losses()
                return "interrupted"
        return "done"

    def finish_step(self, log: Log | None) -> float:
        """Evaluate, log and save where it is time to. Gives the seconds that evaluating took."""
        monitor, seconds = self.recipe.monitor, 0.0
        evaluate_every = max(round(monitor.eval_every_epochs * self.stream.steps), 1)
        values: Values | None = None
        last = self.step == self.total
        evaluates = self.step % evaluate_every == 0 or last
        logs = evaluates or self.step % monitor.log_every_steps == 0
        asks = monitor.save_every_steps is not None or self.step % self.flags_every == 0
        saves = last or (asks and self.saver.is_due(self.step))
        if logs or saves:
            self.read_losses()
        loss = self.run_state.tally.mean_loss
        if evaluates:
            began = time.perf_counter()
            self.mark("the evaluation")
            values = self.evaluate()
            seconds = time.perf_counter() - began
        if logs:
            self.write_line(log, values or {})
        if saves:
            self.save()
        problems = log.take_problems() if log is not None else ()
        messages, self.messages = (*self.messages, *problems), []
        warning = self.run_state.warning
        self.on_step(Progress(self.step, self.total, loss, self.speed, values, warning, messages))
        return seconds

    def mark(self, doing: str, *, may_take_long: bool = False) -> None:
        """Tell the other processes how far this one is."""
        if self.heartbeat is not None:
            self.heartbeat.mark(doing, may_take_long=may_take_long)

    def stop(self, why: str) -> NoReturn:
        """Too many images cannot be used. What was learnt is saved first."""
        if not self.step:
            raise UserError(f"stopped at step 0: {why} and start the run again")
        self.save()
        self.finish_saving()
        raise UserError(
            f"stopped and saved at step {self.step}: {why} and resume the run, or raise max_broken "
            "in its recipe.yaml"
        )

    def waited_for(self) -> Iterator[Batch]:
        """The batches from this step on, with the time that each was waited for in the tally. A
        worker that has died is replaced: the next one reads the same images."""
        start = self.step
        batches = outlive_workers(
            lambda done: self.stream.batches(start + done, self.total),
            lambda why: self.messages.append(tell_death(why)),
        )
        while True:
            self.step_began = time.perf_counter()
            self.mark(f"reading the images of step {self.step}")
            batch = next(batches, None)
            if self.stream.workers:
                forget_children()
            if batch is None:
                return
            self.run_state.tally.data_seconds += time.perf_counter() - self.step_began
            self.mark(f"step {self.step}")
            yield batch

    def write_line(self, log: Log | None, scores: Values) -> None:
        """A line of metrics, after which the tally is reset."""
        if log is not None:
            epoch = round(self.step / self.stream.steps, 4)
            values = self.run_state.tally.values()
            log.write(self.step, epoch=epoch, **values, lr=self.lr(self.step - 1), **scores)
        self.run_state.tally = Tally()

    def lost_images(self, batch: Batch) -> Lost:
        """Images of this step that cannot be used, by all processes."""
        read, lost = map(int, self.world.sums((len(batch.images), len(batch.broken))))
        found = [bad for part in self.world.gather(batch.broken) for bad in part] if lost else []
        images, share = len(self.task.train), self.recipe.max_broken
        return count_lost(self.run_state, found, batch.epoch, self.step, (read, images), share)

    def train_step_in_memory(self, batch: Batch) -> None:
        """One step; where memory runs out it is computed in twice as many parts, from then on."""
        while True:
            try:
                self.train_step(batch)
                return
            except torch.OutOfMemoryError:
                self.results = [one for one in self.results if one[0] != self.step]
                self.accumulate = more_parts(self.accumulate, batch, self.out, self.world)
                self.messages.append(
                    f"out of memory at step {self.step}: batches are computed in "
                    f"{self.accumulate} parts from here on"
                )
                torch.cuda.empty_cache()

    def train_step(self, batch: Batch, lr: float | None = None) -> None:
        """One step: gradients of the batch in parts, clipped, applied."""
        recipe, world = self.recipe, self.world
        parts = Parts(batch.parts(self.accumulate), world, least=self.fewest)
        if not parts.count:
            return
        set_rate(self.state.optimisers, self.lr(self.step) if lr is None else lr)
        # dropout and stochastic depth draw by sample; who else draws does so from this step's seed
        torch.manual_seed(seed_of("step", recipe.seed, self.step, world.rank))
        keys = words("noise", recipe.seed, self.step, batch.places).view(np.int64)
        images = batch.images.to(world.device)  # where the stream has put them already
        targets = batch.targets.to(world.device, non_blocking=True)
        targets = dense_targets(targets, len(self.task.train.labels))
        if recipe.channels_last and isinstance(images, Tensor):
            images = images.to(memory_format=torch.channels_last)
        drawn = self.task.objective.draw(recipe.seed, batch.epoch, batch.indices)
        if drawn is None and isinstance(images, Tensor):
            images, targets = mix(
                images,
                targets,
                self.mixing(),
                seed=recipe.seed,
                step=self.step,
                partners=batch.partners(),
            )
        elif drawn is not None:
            targets = drawn.to(world.device, non_blocking=True)
        self.task.objective.train()
        for optimiser in self.state.optimisers:
            optimiser.zero_grad(set_to_none=True)
        noise = torch.from_numpy(keys)
        sums = world.total(self.backward(images, targets, noise, parts))
        norm = self.state.clip_gradients(recipe.optimiser.clip)
        self.results.append((self.step, torch.cat([sums, norm.to(sums)[None]])))
        if len(self.results) < self.read_losses_every or self.read_losses():
            self.saver.wait_copied()
            self.state.update_weights(self.step)

    def mixing(self) -> Augmentation:
        """The augmentation of this step, whose mixup and cutmix may be off by now."""
        augmentation = self.recipe.augmentation
        if self.step < self.mix_until:
            return augmentation
        return replace(augmentation, mixup=0.0, cutmix=0.0)

    def backward(
        self, images: Tensor | ImageList, targets: Tensor, noise: Tensor, parts: Parts
    ) -> Tensor:
        """Gradients of the loss, in which every image of the step counts the same; the loss, and
        how many images were right of how many that have labels, on the device. A process without an
        image of a part computes a black one without a label, or others would wait for it."""
        device = self.world.device
        kind = torch.float32 if device.type == "mps" else torch.float64
        sums = torch.zeros(3, dtype=kind, device=device)
        share = self.world.size / parts.count
        rows = (tensors.split(parts.mine) for tensors in (images, targets, noise))
        for number, (part, target, keys) in enumerate(zip(*rows, strict=True)):
            if not parts.all[number]:
                continue
            weight = len(part) * share
            if not len(part):
                part, target = self.dummy_batch()
                keys = noise.new_zeros(1)
            self.noise.start(keys, seed_of("noise", self.recipe.seed, self.step, number), device)
            with sync_gradients(self.compute, now=number == parts.last, empty=not weight):
                with autocast(self.recipe.precision, device):
                    losses = self.compute(part, target)
                    loss: Tensor = losses["loss"] * weight
                self.state.scaler.scale(loss).backward()
            counts = [losses.get(name, loss.new_zeros(())) for name in ("hits", "labelled")]
            sums += torch.stack([value.detach().float() for value in (loss, *counts)])
        self.noise.stop()
        return sums

    def dummy_batch(self) -> tuple[Tensor, Tensor]:
        images, drawn = dummy_images(self.task.objective, self.recipe.seed)
        targets = torch.zeros(1, len(self.task.train.labels)) if drawn is None else drawn
        return images.to(self.world.device), targets.to(self.world.device)

    def read_losses(self) -> bool:
        """Bring the losses of the last steps from the device, all at once, and add them to the
        tally. Whether the last step may change the weights: what is not finite must not."""
        results, self.results = self.results, []
        if not results:
            return True
        good, scaler = True, self.state.scaler
        for step, values in zip(
            [step for step, _ in results],
            torch.stack([values for _, values in results]).tolist(),
            strict=True,
        ):
            whole, hits, labelled, norm = values
            loss = self.last_loss = whole / self.world.size
            # a loss that was scaled too far up is no accident: the scale comes down by itself
            scaled = scaler.is_enabled() and math.isfinite(loss) and scaler.get_scale() > 1
            finite = math.isfinite(loss) and (math.isfinite(norm) or scaled)
            good = finite and step not in self.run_state.skip
            if not good:
                skip = self.run_state.skip
                self.nan_policy.refuse(loss, step, skip, checkpoint_step=self.saver.step)
                scaler.update()  # or the gradients of the next step could not be unscaled
            self.run_state.tally.add(loss, norm, hits, labelled)
        return good

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
        self.saver.wait_copied()  # the mean takes their place meanwhile
        while True:
            try:
                values = self.evaluator.evaluate(
                    self.task, self.step, self.run_state, self.watch_evaluation
                )
            except OutageError as outage:
                if outage.storage and self.waiting.wait():
                    continue
                self.run_state.needs_evaluation = True
                self.stop(str(outage))
            except StoppedError:
                self.run_state.needs_evaluation = True
                raise
            self.messages += self.evaluator.take_problems()
            self.waiting = Waiting(self.recipe.monitor.outage_minutes)
            self.run_state.needs_evaluation = False
            return values

    def watch_evaluation(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of an evaluation: other processes learn how far it is, and a signal ends it
        in all of them, because it may take longer than a scheduler waits."""
        for number, batch in enumerate(batches):
            self.mark(f"batch {number} of the evaluation")
            if self.recipe.workers:
                forget_children()
            asks = number % self.flags_every == 0
            if asks and self.world.any(self.interrupted.is_set()):
                raise StoppedError
            yield batch
        self.mark("the scores of the evaluation", may_take_long=True)

    def out_of_patience(self) -> bool:
        patience = self.recipe.monitor.patience
        return patience is not None and self.run_state.since_best >= patience

    def save(self) -> None:
        self.mark("the checkpoint", may_take_long=True)
        self.saver.save(self.step, self.state, self.run_state)
        if self.saver.problem is not None:
            self.messages.append(f"{self.saver.problem}; training goes on")

    def finish_saving(self) -> None:
        """Until everything is on the disk."""
        self.mark("the end of the last checkpoint", may_take_long=True)
        self.saver.finish_all(self.step, self.state, self.run_state)

    def restore(self) -> None:
        """Take up the newest intact checkpoint; without one the run begins at its beginning."""
        found = self.saver.restore(self.state, self.run_state)
        if found is not None:
            self.step, self.run_state = found
