"""What there is to say of a training run, beside what its best weights get right and wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.data.findings import Findings
from vitrail.evaluation.cautions import Score
from vitrail.evaluation.judged import Judged


@dataclass(frozen=True, kw_only=True)
class Report(Judged):
    """A run in plain values: how it was trained, how it went, and what its best weights say of the
    images of one part. `model` is the model in a few words, `test` the score of a part that had no
    say in choosing the weights, `cautions` what must be known before trusting a score, `stopped`
    where the run was interrupted, `best_step` the step whose weights were kept."""

    title: str
    recipe: Mapping[str, Any]
    facts: Mapping[str, str]
    lines: Sequence[Mapping[str, Any]]
    findings: Findings | None
    model: str
    test: Score | None = None
    cautions: Sequence[str] = ()
    stopped: str | None = None
    best_step: int | None = None
