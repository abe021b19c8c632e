"""What there is to say of a training run, beside what its best weights get right and wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.core.outputs import Outputs
from vitrail.data.findings import Findings
from vitrail.data.source import Source
from vitrail.evaluation.warnings import SplitScore


@dataclass(frozen=True, kw_only=True)
class Report(Outputs):
    """A run in plain values: how it was trained, how it went, and what its best weights say of the
    images of one part. `model` is the model in a few words, `test` the score of a part that had no
    say in choosing the weights, `warnings` what must be known before trusting a score, `stopped`
    where the run was interrupted, `best_step` the step whose weights were kept."""

    source: Source
    title: str
    recipe: Mapping[str, Any]
    facts: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    findings: Findings | None
    model: str
    test: SplitScore | None = None
    warnings: Sequence[str] = ()
    stopped: str | None = None
    best_step: int | None = None
