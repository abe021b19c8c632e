"""The state of a run, for progress displays."""

from dataclasses import dataclass

Values = dict[str, float]


@dataclass(frozen=True)
class Progress:
    """The loss is the mean since the last line of metrics, `scores` those of an evaluation in this
    step, and `messages` what a person should know, before step 1 how the run is set up."""

    step: int
    total: int
    loss: float
    images_per_second: float
    scores: Values | None = None
    warning: str | None = None
    messages: tuple[str, ...] = ()
