"""A prediction: the best labels of one image, from the scores of its classes. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.core.html_text import html_table
from vitrail.core.json_text import utf8_name


@dataclass(frozen=True)
class Output:
    """What the model computed for one image: values, or the problem that prevented it."""

    name: str
    values: NDArray[np.float32] | None
    problem: str | None = None


@dataclass(frozen=True, repr=False)
class Prediction:
    """The best label with its probability, and the `top` few; an image that cannot be read has
    none, and `problem` says why."""

    name: str
    label: str | None
    score: float | None
    top: tuple[tuple[str, float], ...]
    problem: str | None = None

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": utf8_name(self.name),
            "label": self.label,
            "score": self.score,
            "top": [{"label": label, "score": score} for label, score in self.top],
            "problem": self.problem,
        }

    def __repr__(self) -> str:
        if self.label is None or self.score is None:
            return f"Prediction({self.name}, no label: {self.problem})"
        return f"Prediction({self.name}, {self.label} {self.score:.1%})"

    def _repr_html_(self) -> str:
        rows = [(label, f"{score:.1%}") for label, score in self.top]  # classes may share a name
        return html_table(self.name, rows if self.problem is None else [("problem", self.problem)])


NOT_FINITE = "output is NaN or infinite"


def check_finite(name: str, values: NDArray[np.float32]) -> Output:
    if np.isfinite(values).all():
        return Output(name, values)
    return Output(name, None, NOT_FINITE)


def rank_classes(output: Output, labels: Sequence[str], top: int) -> Prediction:
    """Scores as a person reads them: the best first, and of equal ones the first."""
    if output.values is None:
        return Prediction(output.name, None, None, (), problem=output.problem)
    best = np.argsort(-output.values, kind="stable")[:top]
    ranked = tuple((labels[place], float(output.values[place])) for place in best.tolist())
    return Prediction(output.name, ranked[0][0], ranked[0][1], ranked)


def format_line(one: Prediction) -> str:
    """A line of a table.

    >>> format_line(Prediction("cat.jpg", "cat", 0.75, (("cat", 0.75), ("dog", 0.25))))
    'cat.jpg  cat 75.0%  dog 25.0%'
    """
    ranked = "  ".join(f"{label} {score:.1%}" for label, score in one.top)
    return f"{one.name}  {ranked if one.problem is None else f'no label: {one.problem}'}"
