"""The one loop.

A step is a function of the recipe, the data and the step's number, so a run that was stopped at any
moment and resumed ends with the same bits as one that was not.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils import clip_grad_norm_

from vitrail.core.errors import UserError
from vitrail.core.randomness import seed_of
from vitrail.data.augment import mix
from vitrail.data.loader import Batch, Stream, in_order
from vitrail.data.source import Source
from vitrail.objectives.supervised import Supervised
from vitrail.train.average import Average
from vitrail.train.checkpoint import (
    Saved,
    flatten_optimisers,
    newest_step,
    restore_optimisers,
    write_step,
)
from vitrail.train.log import Log
from vitrail.train.optimiser import make_optimisers, set_rate
from vitrail.train.precision import autocast, check_precision
from vitrail.train.recipe import Recipe
from vitrail.train.schedule import rate_at
from vitrail.weights.native import write_native

Values = dict[str, float]

SECONDS_BETWEEN_SAVES = 60


class Judge(Protocol):
    """How a run is judged: (name of the deciding value, all values) from logits and targets."""

    def __call__(
        self, logits: NDArray[np.float32], targets: NDArray[np.float32]
    ) -> tuple[str, Values]: ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a run works on: the objective with its model, the data, the judge."""

    recipe: Recipe
    objective: Supervised
    train: Source
    val: Source
    judge: Judge


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    step: int
    total: int
    loss: float
    images_per_second: float
    scores: Values | None = None


@dataclass
class Memory:
    """What a run remembers beside its tensors."""

    best: float | None = None
    best_step: int = 0
    since_best: int = 0
    skip: list[int] = field(default_factory=list)  # steps whose update was not finite
    broken: dict[str, str] = field(default_factory=dict)  # images that cannot be read, and why


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    total: int
    memory: Memory
    stopped: bool  # by the person, before the end


class Trainer:
    """Steps, evaluations and checkpoints of one run in the directory `out`."""

    def __init__(
        self, task: Task, out: Path, show: Callable[[Progress], None] = lambda _: None
    ) -> None:
        recipe = task.recipe
        self.task, self.recipe, self.out, self.show = task, recipe, out, show
        self.model = task.objective.model
        self.device = next(self.model.parameters()).device
        check_precision(recipe.precision, self.device)
        self.stream = Stream(
            source=task.train,
            how=self.model.passport.preprocessing,
            augmentation=recipe.augmentation,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            balance=recipe.goal.balance,
            workers=recipe.workers,
        )
        steps = recipe.schedule.steps
        self.total = steps or max(round(recipe.schedule.epochs * self.stream.steps), 1)
        self.optimisers = make_optimisers(self.model, recipe.optimiser)
        self.average = None if recipe.average is None else Average(self.model, recipe.average)
        self.memory = Memory()
        self.best: tuple[dict[str, Tensor], Values] | None = None
        self.saved_at = time.perf_counter()
        self.step = 0

    def run(self, *, resume: bool = False) -> Outcome:
        """Train to the end, or to the end of the step in which Ctrl-C was pressed."""
        self.out.mkdir(parents=True, exist_ok=True)
        if resume:
            self.restore()
        log = Log(self.out, self.step)
        compute = torch.compile(self.task.objective) if self.recipe.compile else self.task.objective
        with interruptible() as interrupted:
            stopped = self.train(compute, log, interrupted)
        if stopped:
            self.save()
        log.close()
        return Outcome(self.step, self.total, self.memory, stopped)

    def train(self, compute: Callable[..., Any], log: Log, interrupted: threading.Event) -> bool:
        """Whether the run was interrupted."""
        evaluate_every = max(round(self.recipe.watch.every * self.stream.steps), 1)
        began, seen = time.perf_counter(), 0
        for batch in self.stream.batches(self.step, self.total):
            known = self.step in self.memory.skip
            loss = self.take(batch, compute)
            seen += len(batch.images)
            speed = seen / (time.perf_counter() - began)
            if self.step in self.memory.skip and not known and self.recipe.watch.nan == "back":
                return self.go_back(compute, log, interrupted)
            self.step += 1
            values: Values | None = None
            last = self.step == self.total
            if self.step % evaluate_every == 0 or last:
                values = self.evaluate()
                log.write(self.step, loss=loss, lr=self.rate(self.step - 1), **values)
            if last or self.time_to_save():
                self.save()
            self.show(Progress(self.step, self.total, loss, speed, values))
            if self.out_of_patience():
                self.save()
                return False
            if interrupted.is_set():
                return True
        return False

    def take(self, batch: Batch, compute: Callable[..., Any]) -> float:
        """One step: gradients of the batch in parts, clipped, applied. Gives the mean loss."""
        self.memory.broken |= {bad.path: bad.reason for bad in batch.broken}
        recipe, count = self.recipe, len(batch.images)
        set_rate(self.optimisers, recipe.optimiser.lr * self.rate(self.step))
        # dropout and stochastic depth draw from torch's generator: from this step's seed alone
        torch.manual_seed(seed_of("step", recipe.seed, self.step))
        images, targets = batch.images.to(self.device), batch.targets.to(self.device)
        if not count:
            return 0.0
        images, targets = mix(
            images, targets, recipe.augmentation, seed=recipe.seed, step=self.step
        )
        self.task.objective.train()
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        whole = 0.0
        size = -(-count // recipe.accumulate)
        for part, target in zip(images.split(size), targets.split(size), strict=True):
            with autocast(recipe.precision, self.device):
                loss: Tensor = compute(part, target)["loss"] * (len(part) / count)
            loss.backward()
            whole += float(loss.detach())
        self.apply(whole)
        return whole

    def apply(self, loss: float) -> None:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        clip = self.recipe.optimiser.clip
        norm = clip_grad_norm_(parameters, clip if clip is not None else math.inf)
        if not (math.isfinite(loss) and math.isfinite(norm)) or self.step in self.memory.skip:
            self.refuse(loss)
            return
        for optimiser in self.optimisers:
            optimiser.step()
        if self.average is not None:
            self.average.update(self.model, self.step)

    def refuse(self, loss: float) -> None:
        """An update that is not finite is not made; what happens then is the recipe's choice."""
        if self.recipe.watch.nan == "stop":
            raise UserError(
                f"the loss is {loss} at step {self.step}, with a gradient that is not finite: "
                f"lower lr ({self.recipe.optimiser.lr:g}), or train with watch.nan=skip"
            )
        if self.step not in self.memory.skip:
            self.memory.skip.append(self.step)

    def go_back(self, compute: Callable[..., Any], log: Log, interrupted: threading.Event) -> bool:
        """Return to the newest checkpoint, knowing which step not to take again."""
        skip = self.memory.skip
        self.restore()
        self.memory.skip = skip
        return self.train(compute, log, interrupted)

    def rate(self, step: int) -> float:
        return rate_at(step, self.total, self.recipe.schedule)

    def weights(self) -> dict[str, Tensor]:
        """The weights to be judged and kept: the average where there is one."""
        state = self.model.state_dict()
        return state if self.average is None else state | self.average.state

    def evaluate(self) -> Values:
        """Judge the weights on the validation images, and keep them if they are the best."""
        logits, targets = self.predict()
        key, values = self.task.judge(logits, targets)
        if self.memory.best is None or values[key] > self.memory.best:
            self.memory.best, self.memory.best_step = values[key], self.step
            self.memory.since_best = 0
            # written with the next checkpoint: a run that is killed before it finds it again
            self.best = (
                {name: t.detach().cpu().clone() for name, t in self.weights().items()},
                values,
            )
        else:
            self.memory.since_best += 1
        return values

    @torch.inference_mode()
    def predict(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.model.eval()
        weights, logits, targets = self.weights(), [], []
        how, size = self.model.passport.preprocessing, max(self.recipe.batch_size, 64)
        for batch in in_order(self.task.val, how, size, workers=self.recipe.workers):
            self.memory.broken |= {bad.path: bad.reason for bad in batch.broken}
            if len(batch.images):
                images = batch.images.to(self.device)
                logits.append(functional_call(self.model, weights, (images,)).float().cpu())
                targets.append(batch.targets)
        if not logits:
            raise UserError("no validation image could be read: look at the data with the doctor")
        return torch.cat(logits).numpy(), torch.cat(targets).numpy()

    def time_to_save(self) -> bool:
        """After so many steps, or else after so many seconds: when a run is saved changes nothing
        in it."""
        if self.recipe.watch.save is not None:
            return self.step % self.recipe.watch.save == 0
        return time.perf_counter() - self.saved_at >= SECONDS_BETWEEN_SAVES

    def out_of_patience(self) -> bool:
        patience = self.recipe.watch.patience
        return patience is not None and self.memory.since_best > patience

    def keep(self, name: str, state: dict[str, Tensor], step: int, values: Values) -> None:
        """A native checkpoint of judged weights, to be used as it is."""
        provenance = {"recipe": asdict(self.recipe), "step": step}
        passport = replace(self.model.passport, provenance=provenance, scores=values)
        write_native(state, passport, self.out / name, overwrite=True)

    def save(self) -> None:
        """A run checkpoint, to go on from here."""
        self.saved_at = time.perf_counter()
        tensors = {f"model.{k}": t.detach().cpu() for k, t in self.model.state_dict().items()}
        tensors |= flatten_optimisers(self.optimisers)
        if self.average is not None:
            tensors |= {f"average.{name}": t.cpu() for name, t in self.average.state.items()}
        saved = Saved(self.step, tensors, asdict(self.memory))
        if self.best is not None:
            state, values = self.best
            self.keep("best", state, self.memory.best_step, values)
            self.best = None
        weights = {name: tensor.detach().cpu() for name, tensor in self.weights().items()}
        self.keep("last", weights, self.step, {})
        # last, so that a run never goes on from a step whose results are not there
        write_step(self.out / "steps", saved, keep=self.recipe.watch.keep)

    def restore(self) -> None:
        """Take up the newest whole checkpoint; without one the run begins at its beginning."""
        saved = newest_step(self.out / "steps")
        if saved is None:
            return
        part = {"model": dict[str, Tensor](), "average": dict[str, Tensor]()}
        for key, tensor in saved.tensors.items():
            kind, _, name = key.partition(".")
            if kind in part:
                part[kind][name] = tensor
        self.model.load_state_dict(part["model"])
        if self.average is not None:
            self.average.state = {name: t.clone() for name, t in part["average"].items()}
        restore_optimisers(self.optimisers, saved.tensors)
        self.memory, self.step = Memory(**saved.memory), saved.step


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of breaking into the middle of a step; pressed twice, it
    breaks."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
