"""What a run works on, and how it ended."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitrail.core.deferred_init import DeferredInit
from vitrail.data.source import Source
from vitrail.objectives.objective import Objective
from vitrail.training.progress import Values
from vitrail.training.recipe import Recipe
from vitrail.training.run_state import RunState
from vitrail.training.validate import ValidationOutputs


class Scorer(Protocol):
    """How a run is scored: (the metric that chooses weights, all values) from outputs and targets.
    Of what is called a loss less is better, of everything else more."""

    def __call__(
        self, outputs: NDArray[np.float32], targets: NDArray[np.float32], /
    ) -> tuple[str, Values]: ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """The objective with its model, the data, and how weights are scored. What `deferred` fills
    has no memory yet."""

    recipe: Recipe
    objective: Objective
    train: Source
    val: Source
    scorer: Scorer
    deferred: DeferredInit | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    total: int
    run_state: RunState
    stopped: bool  # by the person, before the end
    images_per_second: float  # 0 where no step was left to take
    outputs: ValidationOutputs | None = None  # of the best weights, if they are of this process
    stopped_by: str | None = None  # the signal
