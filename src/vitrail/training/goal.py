"""What a run learns: labels, labels with a teacher, or to predict what is masked.

A recipe holds one of three records, distinguished by their `objective`.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field

from vitrail.core.errors import UserError
from vitrail.core.ranges import check

MaskedObjective: TypeAlias = Literal["masked-patch", "beit", "mae", "simmim", "tokenizer"]


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """How labels are learnt. `loss` "auto": softmax for one label an image, sigmoid for several.
    "asymmetric" (arXiv:2009.14119) is sigmoid with less weight for what is easy: a label that an
    image has by the exponent `gamma_positive`, one that it has not by `gamma_negative`, and these
    not at all where their probability is below `negative_clip`."""

    loss: Literal["auto", "softmax", "sigmoid", "asymmetric"] = "auto"
    gamma_negative: float = 4.0
    gamma_positive: float = 1.0
    negative_clip: float = 0.05
    smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    balance: bool = False  # draw every class equally often

    def __post_init__(self) -> None:
        check("goal.smoothing", self.smoothing, at_least=0, below=1)
        check("goal.gamma_negative", self.gamma_negative, at_least=0)
        check("goal.gamma_positive", self.gamma_positive, at_least=0)
        check("goal.negative_clip", self.negative_clip, at_least=0, below=1)


@dataclass(frozen=True, kw_only=True)
class Labels(LabelOptions):
    """Learn the labels of images."""

    objective: Literal["labels"] = "labels"


@dataclass(frozen=True, kw_only=True)
class Distil(LabelOptions):
    """Learn labels and the outputs of a `teacher`, a checkpoint (arXiv:2012.12877); `share` is the
    teacher's part of the loss. A recipe may leave the teacher open, a run needs one."""

    objective: Literal["distil"] = "distil"
    teacher: str | None = None
    distillation: Literal["hard", "soft"] = "hard"
    share: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check("goal.share", self.share, at_least=0, at_most=1)
        check("goal.temperature", self.temperature, above=0)


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Learn without labels, by an `objective` with `options` of its own; beit predicts the tokens
    of a `tokenizer`, a checkpoint."""

    objective: MaskedObjective = "mae"
    options: dict[str, Any] = field(default_factory=dict)
    tokenizer: str | None = None


Goal: TypeAlias = Annotated[Labels | Distil | Masked, Field(discriminator="objective")]
KINDS: dict[str, type[Labels | Distil | Masked]] = {
    "labels": Labels,
    "distil": Distil,
    **dict.fromkeys(get_args(MaskedObjective), Masked),
}


def with_objective(goal: dict[str, Any], objective: str) -> dict[str, Any]:
    """The plain values of a goal with another objective: fields that both have stay, the others get
    their defaults. An unknown objective is left to the check of the recipe."""
    if objective not in KINDS:
        return {**goal, "objective": objective}
    values = asdict(KINDS[objective]())
    return values | {name: goal[name] for name in goal if name in values} | {"objective": objective}


def goal_for(goal: dict[str, Any], name: str) -> dict[str, Any]:
    """The plain values of a goal that has a field of this name: a field of `Distil` turns labels
    into that; what belongs to another goal is refused."""
    objective = goal.get("objective", "labels")
    if objective not in KINDS or name in _names(KINDS[objective]):
        return goal
    if objective == "labels" and name in _names(Distil):
        return with_objective(goal, "distil")
    if any(name in _names(kind) for kind in KINDS.values()):
        raise UserError(f"goal.{name} does not apply to {objective}: leave it out")
    return goal


def one_goal(goal: dict[str, Any]) -> dict[str, Any]:
    """The plain values of one goal from those of earlier versions, which had the fields of all.

    >>> one_goal({"smoothing": 0.1, "teacher": None, "options": {}, "tokenizer": None})
    {'smoothing': 0.1, 'objective': 'labels'}
    """
    objective = goal.get("objective", "labels")
    if objective == "labels" and goal.get("teacher") is not None:
        objective = "distil"
    if objective not in KINDS:
        return goal
    every = {name: value for kind in (Distil, Masked) for name, value in asdict(kind()).items()}
    own = _names(KINDS[objective])
    fields = {n: v for n, v in goal.items() if n in own or n not in every or v != every[n]}
    return {**fields, "objective": objective}


def _names(kind: type[Labels | Distil | Masked]) -> set[str]:
    return {one.name for one in fields(kind)}
