"""`engine="auto"`: the fastest engine for a model on this machine, found by measuring.

Building a model for an engine takes seconds, which a short job never earns back, so eager computes
it. For a longer one the installed engines are built and timed in turns with eager, on the given
batch and threads, within a share of the time that the job would take. The winner is kept in the
cache, and the next start only opens it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import UserError
from vitrail.core.records import validate
from vitrail.inference.calibration import Calibration
from vitrail.inference.engines.agreement import sample_images
from vitrail.inference.engines.cache import (
    find_entry,
    has_entry,
    make_key,
    new_entry,
    remove_entry,
)
from vitrail.inference.engines.catalogue import AUTO, EAGER, LIBRARIES, check_engine
from vitrail.inference.engines.model_graph import ModelGraph
from vitrail.inference.engines.opening import (
    EngineError,
    OpenLibrary,
    library_key,
    open_library,
    why_only_eager,
)
from vitrail.inference.engines.runner import (
    GRAPH_SECONDS,
    EngineLibrary,
    Plan,
    Runner,
    versions_of,
)
from vitrail.inference.engines.timing import round_seconds, time_in_turns
from vitrail.inference.quantisation import Quantisation, check_drop
from vitrail.models.model import Model

MIN_BATCHES = 16  # of each caller, for which it is worth to time one batch
SHARE = 0.25  # of the job's time may be spent on trying
MAX_SECONDS = 300.0  # for trying, however long the job
TIMING = 0.15  # of the time for trying is left for timing, or more if a round takes more
LEAST_ROUNDS = 1  # that are timed
FINAL = 0.6  # of the time for timing belongs to engines that are close
FINAL_ROUNDS = 3  # for which there must be time, or engines that are close are not timed again
CLOSE = 1.2  # times as long as the fastest
MARGIN = 1.03  # times as fast as eager is no noise
RETRY = 2.0  # times as much time as before, for engines that there was no time for
INT8_ENGINE = "onnxruntime"  # OpenVINO's int8 was slower than its float32 where it was measured

OnProgress = Callable[[str, int, int | None], None]
logger = logging.getLogger(__name__)


def silent(what: str, done: int, total: int | None) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Choice:
    """The fastest engine; images per second of each that was timed; why others were rejected, which
    were not tried for lack of time, how long the winner takes to open, and how many seconds there
    were for trying."""

    engine: str
    speeds: Mapping[str, float]
    rejected: Mapping[str, str] = field(default_factory=dict)
    untried: Sequence[str] = ()
    open_seconds: float = 0.0
    budget: float = 0.0

    def saves(self, images: int) -> float:
        """Seconds that the winner saves for so many images."""
        return images * (1 / self.speeds[EAGER] - 1 / self.speeds[self.engine]) - self.open_seconds

    def is_worth_retrying(self, costs: Mapping[str, float], budget: float) -> bool:
        """Whether an engine that there was no time for may fit now: estimates are rough, so one
        that still does not fit must not be tried at every start."""
        fits = any(costs[name] < budget for name in self.untried)
        return fits and budget >= RETRY * self.budget


@dataclass(frozen=True)
class OpenRunner:
    """A runner, the engine that it is of, the plan that it was made for, and in int8 what that
    cost."""

    engine: str
    run: Runner
    plan: Plan
    quantisation: Quantisation | None = None

    def compute(self, images: Float[Tensor, "N C H W"]) -> NDArray[np.float32]:
        """Values for at most a batch of images; other engines than eager compute full batches."""
        missing = self.plan.shape[0] - len(images)
        if self.engine == EAGER or not missing:
            return self.run(images)
        assert missing > 0, "more images than a batch"
        filled = torch.cat([images, images.new_zeros(missing, *images.shape[1:])])
        return self.run(filled)[: len(images)]


def open_runner(
    model: Model,
    plan: Plan,
    engine: str = AUTO,
    *,
    images: int | None = None,
    calibration: Calibration | None = None,
    on_progress: OnProgress = silent,
) -> OpenRunner:
    """The runner of an engine; "auto" chooses by the number of images, and takes eager where that
    is not known. With a calibration it computes in int8."""
    check_engine(engine)
    if calibration is not None:
        return open_int8(model, plan, engine, calibration, on_progress)
    graph = ModelGraph(model, plan)
    if engine != EAGER and (reason := why_only_eager(model, plan)) is not None:
        if engine != AUTO:
            raise UserError(f"the engine {engine} cannot be used: {reason}: use the engine eager")
        engine = EAGER
    if engine in LIBRARIES:
        return OpenRunner(engine, open_library(LIBRARIES[engine], graph).run, plan)
    chosen = None
    if engine == AUTO and images is not None and images >= min_images(plan):
        chosen = choose(graph, images, on_progress)
    return chosen or OpenRunner(EAGER, graph.eager, plan)


def min_images(plan: Plan) -> int:
    """Of a job for which "auto" looks at other engines than eager."""
    return MIN_BATCHES * plan.callers * plan.shape[0]


def open_int8(
    model: Model, plan: Plan, engine: str, calibration: Calibration, on_progress: OnProgress
) -> OpenRunner:
    """The runner of an engine in int8, refused where it loses more than is allowed."""
    engine = check_engine(INT8_ENGINE) if engine == AUTO else engine
    if engine not in LIBRARIES or not LIBRARIES[engine].has_int8:
        known = " or ".join(name for name, one in LIBRARIES.items() if one.has_int8)
        raise UserError(f"int8 is computed by the engine {known}, got {engine}")
    if (reason := why_only_eager(model, plan)) is not None:
        raise UserError(f"int8 cannot be used: {reason}: leave out precision int8")
    on_progress("calibrating int8", 0, None)
    opened = open_library(LIBRARIES[engine], ModelGraph(model, plan, calibration.samples))
    assert opened.quantisation is not None
    check_drop(opened.quantisation, calibration.max_drop, instead="leave out precision int8")
    return OpenRunner(engine, opened.run, plan, opened.quantisation)


def choose(graph: ModelGraph, images: int, on_progress: OnProgress) -> OpenRunner | None:
    """The engine that computes so many images first, or None for eager."""
    began = time.perf_counter()
    libraries = {name: one for name, one in LIBRARIES.items() if one.is_installed()}
    costs = {name: one.seconds_per_layer * graph.layers for name, one in libraries.items()}
    key = choice_key(graph, libraries)
    known = find_choice(key, graph)
    speed = speed_of_eager(graph) if known is None else known.speeds[EAGER]
    budget = min(SHARE * images / speed, MAX_SECONDS)
    if known is not None and not known.is_worth_retrying(costs, budget):
        return open_winner(known, graph, images)
    batch_seconds = graph.plan.callers * graph.plan.shape[0] / speed
    trial = Trial(graph, batch_seconds, budget, began + budget)
    if not costs or not trial.has_time_for(min(costs.values()), runners=2):
        return None if known is None else open_winner(known, graph, images)
    choice, runner = try_engines(trial, costs, on_progress)
    with new_entry(key, asdict(replace(choice, budget=budget)), lambda folder: None):
        pass
    return None if choice.engine == EAGER else OpenRunner(choice.engine, runner, graph.plan)


@dataclass(frozen=True)
class Trial:
    """Engines are tried for a graph: `batch_seconds` is what eager takes for a batch of every
    caller, `budget` the seconds for all, until the `deadline` by time.perf_counter."""

    graph: ModelGraph
    batch_seconds: float
    budget: float
    deadline: float

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()

    def has_time_for(self, cost: float, *, runners: int) -> bool:
        """Whether there is time to build one more engine at this cost, to compare it with eager,
        and to time so many runners in one round, beside the first that does not count."""
        if not self.graph.is_traced:
            cost += GRAPH_SECONDS * self.graph.layers
        compared = 2 * self.batch_seconds
        timing = (1 + LEAST_ROUNDS) * round_seconds(self.graph.plan, runners, self.batch_seconds)
        return cost + compared + max(timing, TIMING * self.budget) <= self.seconds_left


def choice_key(graph: ModelGraph, libraries: Mapping[str, EngineLibrary]) -> str:
    return make_key(
        choice=sorted(libraries),
        plan=asdict(graph.plan),
        model=graph.digest,
        versions={name: versions_of(one) for name, one in libraries.items()},
    )


def open_winner(choice: Choice, graph: ModelGraph, images: int) -> OpenRunner | None:
    """The engine that won before, if so many images pay for opening it."""
    if choice.engine == EAGER or choice.saves(images) <= 0:
        return None
    try:
        opened = open_library(LIBRARIES[choice.engine], graph)
    except EngineError as error:
        logger.warning("%s", error)
        return None
    return OpenRunner(choice.engine, opened.run, graph.plan)


def find_choice(key: str, graph: ModelGraph) -> Choice | None:
    """What won before, unless the files of the winner are gone."""
    entry = find_entry(key)
    try:
        if entry is None:
            return None
        choice = validate(Choice, entry.facts, where=key)
        if not min(choice.speeds[EAGER], choice.speeds[choice.engine]) > 0:
            return None
    except (UserError, KeyError):  # damaged: it is measured again
        return None
    if not {*choice.untried, choice.engine} <= {EAGER, *LIBRARIES}:
        return None
    if choice.engine == EAGER or has_entry(library_key(LIBRARIES[choice.engine], graph)):
        return choice
    return None


def try_engines(
    trial: Trial, costs: Mapping[str, float], on_progress: OnProgress
) -> tuple[Choice, Runner]:
    """Build the engines that there is time for, and time them in turns with eager."""
    graph = trial.graph
    opened = {EAGER: OpenLibrary(graph.eager, 0.0)}
    rejected, untried = dict[str, str](), list[str]()
    for number, (name, cost) in enumerate(costs.items()):
        on_progress("trying engines", number, len(costs))
        if not trial.has_time_for(cost, runners=len(opened) + 1):
            untried.append(name)
            continue
        try:
            opened[name] = open_library(LIBRARIES[name], graph)
        except EngineError as error:
            rejected[name] = str(error)
            logger.warning("%s", error)
    on_progress("trying engines", len(costs), len(costs))
    runners = {name: one.run for name, one in opened.items()}
    speeds = {EAGER: graph.plan.callers * graph.plan.shape[0] / trial.batch_seconds}
    if len(runners) > 1:
        speeds = time_runners(runners, trial)
    best = max(speeds, key=lambda name: speeds[name])
    if speeds[best] < MARGIN * speeds[EAGER]:
        best = EAGER
    for name, one in opened.items():  # what is not used is not kept
        if one.is_new and name != best:
            remove_entry(library_key(LIBRARIES[name], graph))
    logger.info("engine %s of %s images/s", best, speeds)
    return Choice(best, speeds, rejected, untried, opened[best].seconds), runners[best]


def time_runners(runners: Mapping[str, Runner], trial: Trial) -> dict[str, float]:
    """Images per second of each. After the first rounds only those that come close to the fastest
    are timed again, because between them few rounds cannot tell; but not where a round takes a
    third of the time that is left."""
    plan = trial.graph.plan
    images, expected = sample_images(plan), trial.batch_seconds

    def time_some(names: Iterable[str], seconds: float) -> dict[str, list[float]]:
        return time_in_turns(
            {name: runners[name] for name in names},
            plan,
            images,
            seconds=seconds,
            min_rounds=LEAST_ROUNDS,
            expected=expected,
        )

    times = time_some(runners, trial.seconds_left * (1 - FINAL))
    fastest = min(median(taken) for taken in times.values())
    close = [name for name, taken in times.items() if median(taken) < CLOSE * fastest]
    again = round_seconds(plan, len(close), plan.callers * fastest)
    if len(close) > 1 and FINAL_ROUNDS * again < trial.seconds_left:
        for name, taken in time_some(close, trial.seconds_left).items():
            times[name] += taken
    return {name: plan.shape[0] / median(taken) for name, taken in times.items()}


def speed_of_eager(graph: ModelGraph) -> float:
    """Images per second with all callers at work, from one batch each."""
    images = sample_images(graph.plan)
    alone = {EAGER: graph.eager}
    times = time_in_turns(alone, graph.plan, images, seconds=0, min_rounds=1, warm=False)
    return graph.plan.shape[0] / min(times[EAGER])
