"""How good a trained model is with images, or patches, of other sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.core.errors import UserError
from vitrail.data.source import Source
from vitrail.evaluation.answers import answers_of
from vitrail.evaluation.intervals import measure
from vitrail.models.model import Model


@dataclass(frozen=True, kw_only=True)
class Sized:
    """The headline number at one size, what was done to the weights for it, or, where they cannot
    be had at that size, the `problem`."""

    size: str
    metric: str | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None
    changes: tuple[str, ...] = ()
    problem: str | None = None


def at_sizes(
    load: Callable[..., Model],
    source: Source,
    sizes: Sequence[tuple[str, dict[str, Any]]],
    *,
    batch_size: int = 64,
    workers: int = 0,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Sized]:
    """One row for each size: what a person calls it, and the fields with which `load` gives the
    model at that size."""
    assert source.targets is not None, "matched() has seen to that"
    multi_label, found = source.targets.ndim == 2, []
    for number, (size, changes) in enumerate(sizes):
        on_progress(number, len(sizes))
        try:
            model = load(**changes)
        except UserError as error:
            found.append(Sized(size=size, problem=str(error)))
            continue
        answers = answers_of(model, source, name=size, batch_size=batch_size, workers=workers)
        metric = "mean_precision" if multi_label else "accuracy"
        logits = np.nan_to_num(answers.logits)
        known = measure(logits, answers.targets, multi_label=multi_label, seed=seed, only=metric)
        found.append(
            Sized(
                size=size,
                metric=metric,
                value=known.values[metric],
                interval=known.intervals.get(metric),
                changes=model.passport.origin.changes,
            )
        )
    return found
